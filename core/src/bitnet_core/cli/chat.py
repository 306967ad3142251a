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
from bitnet_core.cli.opening import opened
from bitnet_core.cli.options import ModelOptions, SamplingArguments, TextOptions, ThinkingOptions
from bitnet_core.cli.parameters import expanded
from bitnet_core.cli.run import report_speed
from bitnet_core.cli.standard_streams import read_line
from bitnet_core.cli.texts import own_sampling, refuse_for_raw
from bitnet_core.errors import TokenizerError
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import arguments_of
from bitnet_core.options.loading import LoadOptions

if TYPE_CHECKING:
    from bitnet_core.api import GenerationStream, Model

NoChatOption = Annotated[
    bool,
    typer.Option(
        "--no-chat",
        "--raw",
        rich_help_panel=options.PROMPT,
        help="Continue the text so far with each line, without the chat template.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("chat")(chat)


@expanded
def chat(
    *,
    system: options.SystemOption = None,
    no_chat: NoChatOption = False,
    model: ModelOptions,
    loading: LoadOptions,
    text: TextOptions,
    sampling: SamplingArguments,
    thinking: ThinkingOptions,
    engine: EngineOptions,
    speed: options.SpeedOption = True,
    quiet: options.QuietOption = False,
) -> None:
    """Talk with a model, with its own chat template.

    /help lists the commands. A message of several lines begins and ends with a line of \"\"\". Ctrl-C stops an answer,
    or the program if there is none. A terminal shows the model's reasoning before an answer in dim text; it is not
    part of the conversation.
    """
    if no_chat:
        refuse_for_raw(system, thinking)
    with opened(model, loading, engine) as loaded:
        Thread(target=_prepare, args=(loaded,)).start()
        arguments = arguments_of(text) | own_sampling(loaded, sampling)
        conversation = Conversation(loaded, arguments, thinking, raw=no_chat, speed=speed, system=system or "")
        note("/help lists the commands, /exit ends the program.")
        while (entry := read_entry(_read_line)) is not None and entry.command != "/exit":
            if entry.complaint:
                say(entry.complaint, "yellow")
            elif entry.command:
                conversation.command(entry.command, entry.text)
            else:
                conversation.turn(entry.text)


def _prepare(model: Model) -> None:
    """Prepare the tokenizer for the second turn, while the first line is being typed."""
    with suppress(TokenizerError):  # the turn reports it
        model.tokenizer.prepare()


def _read_line(more: bool) -> str | None:
    """Read a line; returns None at the end of the input. more: True if the line continues a message."""
    try:
        return read_line("... " if more else "> ")
    except EOFError:
        return None
    except UnicodeDecodeError as exc:
        raise UsageError(f"the input {UTF16 if is_utf16(exc.object) else 'is not UTF-8 text'}") from exc


@dataclass
class Conversation:
    """A conversation: messages, or with raw one text that grows with each line."""

    model: Model
    arguments: dict[str, Any]
    thinking: ThinkingOptions
    raw: bool
    speed: bool
    system: str
    messages: list[dict[str, str]] = field(default_factory=list)
    text: str = ""

    def command(self, name: str, text: str) -> None:
        """Run a command such as /clear."""
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
                "The conversation starts again with this system message." if text else "There is no system message now."
            )
        else:
            say("Forgotten.")

    def turn(self, said: str) -> None:
        """Answer a message and store both; store neither if the message does not fit in the context."""
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
        common = self.arguments
        chunks: GenerationStream
        if self.raw:
            chunks = self.model.generate(self._text_with(said), stream=True, **common)
        else:
            before = [{"role": "system", "content": self.system}] if self.system else []
            asked = [*before, *self.messages, {"role": "user", "content": said}]
            chunks = self.model.chat(asked, stream=True, **common, **arguments_of(self.thinking))
        return chunks

    def _text_with(self, said: str) -> str:
        """Return the text so far with a line appended."""
        return self.text + (" " if self.text and not self.text[-1].isspace() else "") + said

    def _report(self, chunks: GenerationStream) -> None:
        if self.speed:
            report_speed(chunks.result)
        max_tokens = self.arguments["max_tokens"]
        if limit := limit_reached(chunks.result, self.model, max_tokens):
            full = len(chunks.result.tokens) < max_tokens
            say(f"{limit}; /clear forgets the conversation" if full else limit, "yellow" if full else "dim")
