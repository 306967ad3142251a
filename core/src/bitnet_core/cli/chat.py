"""`bitnet chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from bitnet_core.cli import options
from bitnet_core.cli.console import say, write_text
from bitnet_core.cli.options import ModelChoice, Sampling
from bitnet_core.cli.run import report_speed
from bitnet_core.errors import UsageError

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
    temperature: options.TemperatureOption = 0.0,
    top_k: options.TopKOption = 0,
    top_p: options.TopPOption = 1.0,
    min_p: options.MinPOption = 0.0,
    repetition_penalty: options.PenaltyOption = 1.0,
    seed: options.SeedOption = None,
    stop: options.StopOption = None,
    kv: options.KvOption = options.KvType.f16,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
) -> None:
    """Talk with a model, with its own chat template.

    /clear forgets the conversation, /exit ends it. Ctrl-C stops an answer, and the program where there is none.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed, tuple(stop or ()))
    beginning: Messages = [{"role": "system", "content": system}] if system else []
    with options.opened(ModelChoice(model, device, kv, context, layout)) as loaded:
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
                _turn(loaded, messages, line, max_tokens, sampling)


def _read_line() -> str | None:
    """What the user says, stripped; None at the end of the input."""
    if sys.stdin.isatty():
        with suppress(ImportError):  # Windows has its own
            import readline  # noqa: F401 - gives input() history and editing
    try:
        return input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "").strip()
    except EOFError:
        return None
    except UnicodeDecodeError as exc:
        raise UsageError("the input is not UTF-8 text") from exc


def _turn(model: Model, messages: Messages, line: str, max_tokens: int, sampling: Sampling) -> None:
    """One question and its answer, both added to `messages`; neither if the question does not fit."""
    answer = ""
    question = {"role": "user", "content": line}
    try:
        pieces = model.chat([*messages, question], max_tokens=max_tokens, stream=True, **sampling.parameters())
        try:
            for piece in pieces:
                answer += piece.text
                write_text(piece.text)
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
