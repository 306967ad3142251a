"""`bitnet chat`: a conversation in the terminal."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from bitnet_core.cli import options
from bitnet_core.cli.console import ReplyWriter, say, write_text
from bitnet_core.cli.options import ModelChoice, Sampling, Thinking
from bitnet_core.cli.run import report_speed
from bitnet_core.cli.streams import read_line
from bitnet_core.errors import TokenizerError, UsageError

if TYPE_CHECKING:
    from bitnet_core.api import Model

Messages = list[dict[str, str]]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat")(chat)


def chat(
    model: options.ModelOption = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", min=1, help="Tokens of one answer at most.")] = 512,
    device: options.DeviceOption = None,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    min_p: options.MinPOption = None,
    repetition_penalty: options.PenaltyOption = None,
    seed: options.SeedOption = None,
    stop: options.StopOption = None,
    kv: options.KvOption = options.KvType.f16,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
    mmap: options.MmapOption = True,
    fallback: options.FallbackOption = True,
    kv_budget: options.BudgetOption = None,
    max_sequences: options.SequencesOption = 32,
    eviction: options.EvictionOption = options.Evicted.lru,
    activation_block: options.ActivationOption = None,
    think: options.ThinkOption = None,
    max_thinking: options.MaxThinkingOption = None,
) -> None:
    """Talk with a model, with its own chat template.

    /clear forgets the conversation, /exit ends it. Ctrl-C stops an answer, and the program where there is none.
    What a model reasons before it answers is shown dim on a terminal, and is no part of the conversation.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed, tuple(stop or ()))
    thinking = Thinking(think, max_thinking)
    beginning: Messages = [{"role": "system", "content": system}] if system else []
    place = (model, device, kv, context, layout, mmap, None, fallback, kv_budget, max_sequences, eviction)
    with options.opened(ModelChoice(*place, activation_block)) as loaded:
        sampling = sampling.of(loaded)
        Thread(target=_prepare, args=(loaded,)).start()
        say("/clear forgets the conversation, /exit ends it.")
        messages = list(beginning)
        while (line := _read_line()) is not None:
            if line == "/exit":
                break
            if line == "/clear":
                messages = list(beginning)
                say("Forgotten.")
            elif line.startswith("/"):
                say(f"There is no {line.split()[0]}; there are /clear and /exit.")
            elif line:
                _turn(loaded, messages, line, max_tokens, sampling, thinking)


def _prepare(model: Model) -> None:
    """What the second turn needs, while the first line is being typed."""
    with suppress(TokenizerError):  # the turn tells
        model.tokenizer.prepare()


def _read_line() -> str | None:
    """What the user says, stripped; None at the end of the input."""
    try:
        return read_line("> ").strip()
    except EOFError:
        return None
    except UnicodeDecodeError as exc:
        raise UsageError("the input is not UTF-8 text") from exc


def _turn(model: Model, messages: Messages, line: str, max_tokens: int, sampling: Sampling, thinking: Thinking) -> None:
    """One question and its answer, both added to `messages`; neither if the question does not fit."""
    answer, reply = "", ReplyWriter()
    question = {"role": "user", "content": line}
    try:
        pieces = model.chat(
            [*messages, question],
            max_tokens=max_tokens,
            stream=True,
            **sampling.parameters(),
            **thinking.parameters(),
        )
        try:
            for piece in pieces:
                answer += piece.text
                reply.write(piece)
        except KeyboardInterrupt:
            write_text("\n")
            say("Stopped.")
        else:
            write_text("\n")
            report_speed(pieces.result)
    except UsageError as error:  # the conversation is longer than the context
        say(f"{error}. /clear forgets the conversation.", "yellow")
        return
    messages += [question, {"role": "assistant", "content": answer}]
