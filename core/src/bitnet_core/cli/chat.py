"""`bitnet chat`: a conversation in the terminal."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from bitnet_hal.errors import UsageError
from bitnet_hal.text_files import UTF16, is_utf16

from bitnet_core.cli import options
from bitnet_core.cli.console import ReplyWriter, note, say
from bitnet_core.cli.dialogue import command_list, read_entry
from bitnet_core.cli.ending import limit_reached
from bitnet_core.cli.options import ModelChoice, Sampling, Thinking
from bitnet_core.cli.run import report_speed
from bitnet_core.cli.streams import read_line
from bitnet_core.errors import TokenizerError

if TYPE_CHECKING:
    from bitnet_core.api import GenerationStream, Model

NoChatOption = Annotated[
    bool,
    typer.Option(
        "--no-chat",
        "--raw",
        rich_help_panel=options.PROMPT,
        help="Go on from the text so far with each line, without the chat template.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat")(chat)


def chat(
    system: options.SystemOption = None,
    no_chat: NoChatOption = False,
    model: options.ModelOption = None,
    layout: options.LayoutOption = None,
    activation_group_size: options.ActivationOption = None,
    mmap: options.MmapOption = True,
    max_tokens: options.MaxTokensOption = 512,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    min_p: options.MinPOption = None,
    repetition_penalty: options.PenaltyOption = None,
    seed: options.SeedOption = None,
    stop: options.StopOption = None,
    think: options.ThinkOption = None,
    reasoning_budget: options.ReasoningBudgetOption = None,
    device: options.DeviceOption = None,
    fallback: options.FallbackOption = True,
    threads: options.ThreadsOption = None,
    kv: options.KvOption = options.KvType.f16,
    context: options.ContextOption = None,
    kv_cache_bytes: options.BudgetOption = None,
    max_sequences: options.SequencesOption = 32,
    eviction: options.EvictionOption = options.Evicted.lru,
    speed: options.SpeedOption = True,
    quiet: options.QuietOption = False,
) -> None:
    """Talk with a model, with its own chat template.

    /help lists the commands. A message of several lines stands between lines of \"\"\". Ctrl-C stops an answer, and the
    program where there is none. What a model reasons before it answers is shown dim on a terminal, and is no part of
    the conversation.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed, tuple(stop or ()))
    thinking = Thinking(think, reasoning_budget)
    if no_chat:
        options.refuse_for_raw(system, thinking)
    place = (model, device, kv, context, layout, mmap, None, fallback, kv_cache_bytes, max_sequences, eviction)
    with options.opened(ModelChoice(*place, activation_group_size)) as loaded:
        Thread(target=_prepare, args=(loaded,)).start()
        conversation = Conversation(
            loaded, max_tokens, sampling.of(loaded), thinking, raw=no_chat, speed=speed, system=system or ""
        )
        note("/help lists the commands, /exit ends the program.")
        while (entry := read_entry(_read_line)) is not None and entry.command != "/exit":
            if entry.complaint:
                say(entry.complaint, "yellow")
            elif entry.command:
                conversation.command(entry.command, entry.text)
            else:
                conversation.turn(entry.text)


def _prepare(model: Model) -> None:
    """What the second turn needs, while the first line is being typed."""
    with suppress(TokenizerError):  # the turn tells
        model.tokenizer.prepare()


def _read_line(more: bool) -> str | None:
    """A line as it was typed; None at the end of the input. more: it goes on with a message."""
    try:
        return read_line("... " if more else "> ")
    except EOFError:
        return None
    except UnicodeDecodeError as exc:
        raise UsageError(f"the input {UTF16 if is_utf16(exc.object) else 'is not UTF-8 text'}") from exc


@dataclass
class Conversation:
    """What was said so far: messages, or with raw one text that goes on and on."""

    model: Model
    max_tokens: int
    sampling: Sampling
    thinking: Thinking
    raw: bool
    speed: bool
    system: str
    messages: list[dict[str, str]] = field(default_factory=list)
    text: str = ""

    def command(self, name: str, text: str) -> None:
        """Do what a command asks for."""
        if name == "/help":
            say(command_list())
            return
        if name == "/system" and self.raw:
            say("--no-chat has no system message.", "yellow")
            return
        self.messages, self.text = [], ""
        if name == "/system":
            self.system = text
            say(
                "The conversation begins again with this system message." if text else "There is no system message now."
            )
        else:
            say("Forgotten.")

    def turn(self, said: str) -> None:
        """One message and its answer, both kept; neither if the message does not fit."""
        answer, reply = "", ReplyWriter(wrap=True)
        try:
            chunks = self._begun(said)
            try:
                for chunk in chunks:
                    answer += chunk.text
                    reply.write(chunk)
            except KeyboardInterrupt:
                reply.end()
                say("Stopped.")
            else:
                reply.end()
                self._report(chunks)
        except UsageError as error:  # the conversation is longer than the context
            say(f"{error}. /clear forgets the conversation.", "yellow")
            return
        self.messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        self.text = self._text_with(said) + answer

    def _begun(self, said: str) -> GenerationStream:
        common: dict[str, Any] = {"max_tokens": self.max_tokens, **self.sampling.parameters()}
        chunks: GenerationStream
        if self.raw:
            chunks = self.model.generate(self._text_with(said), stream=True, **common)
        else:
            before = [{"role": "system", "content": self.system}] if self.system else []
            asked = [*before, *self.messages, {"role": "user", "content": said}]
            chunks = self.model.chat(asked, stream=True, **common, **self.thinking.parameters())
        return chunks

    def _text_with(self, said: str) -> str:
        """The text so far and a line behind it."""
        return self.text + (" " if self.text and not self.text[-1].isspace() else "") + said

    def _report(self, chunks: GenerationStream) -> None:
        if self.speed:
            report_speed(chunks.result)
        if limit := limit_reached(chunks.result, self.model, self.max_tokens):
            full = len(chunks.result.tokens) < self.max_tokens
            say(f"{limit}; /clear forgets the conversation" if full else limit, "yellow" if full else "dim")
