"""`bitnet run`: the answer to a prompt, or its continuation."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from bitnet_hal.errors import UsageError
from bitnet_hal.output import check_output

from bitnet_core.cli import options
from bitnet_core.cli.console import ReplyWriter, echo_prompt, note, print_json, progress_bar, say
from bitnet_core.cli.ending import check_whole_json, limit_reached
from bitnet_core.cli.opening import opened
from bitnet_core.cli.options import ModelOptions, SamplingArguments, TextOptions, ThinkingOptions
from bitnet_core.cli.parameters import expanded
from bitnet_core.cli.text_files import read_text
from bitnet_core.cli.texts import own_sampling, refuse_for_raw
from bitnet_core.errors import ReceiptError, TokenizerError
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import arguments_of
from bitnet_core.options.loading import LoadOptions

if TYPE_CHECKING:
    from bitnet_core.api import Generation, GenerationStream, Model


SchemaOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=options.OUTPUT,
        help="Write JSON that follows this schema, and nothing else. Exit code 15 if a limit cut it off.",
    ),
]
ChatOption = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        " /--no-chat",
        rich_help_panel=options.PROMPT,
        help="Answer the prompt by the model's chat template, or continue it. Default: answer if the model has a "
        "template; the small model that comes with bitnet continues it.",
    ),
]
ReceiptOption = Annotated[
    Path | None, typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write a receipt of the run.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", rich_help_panel=options.OUTPUT, help="Replace an existing receipt.")
]
PromptOption = Annotated[
    str | None,
    typer.Option("--prompt", "-p", metavar="TEXT", rich_help_panel=options.PROMPT, help="The prompt, as an option."),
]


def register(app: typer.Typer) -> None:
    app.command("run")(run)


@expanded
def run(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The message, or the text to continue; - is stdin.")
    ] = None,
    prompt_option: PromptOption = None,
    system: options.SystemOption = None,
    chat: ChatOption = None,
    *,
    model: ModelOptions,
    loading: LoadOptions,
    text: TextOptions,
    sampling: SamplingArguments,
    thinking: ThinkingOptions,
    engine: EngineOptions,
    as_json: options.JsonOption = False,
    json_schema: SchemaOption = None,
    receipt: ReceiptOption = None,
    force: ForceOption = False,
    speed: options.SpeedOption = True,
    quiet: options.QuietOption = False,
) -> None:
    """Answer a prompt, or with --raw continue it.

    The text goes to stdout; the model, the device and the speed to stderr. A terminal shows the
    model's reasoning before an answer in dim text; of other outputs only --json has it.
    """
    said = _prompt(prompt, prompt_option)
    if receipt is not None:  # raises an error now rather than after the run
        check_output(receipt, [Path(model.model)] if model.model else [], force=force, error=ReceiptError)
    chat = _asked_to_chat(chat, system, thinking)
    response_format = _schema_format(json_schema) if json_schema else None
    with opened(model, loading, engine) as loaded:
        ask = Prompt(said, system, thinking if (_answers(loaded) if chat is None else chat) else None)
        arguments = arguments_of(text) | own_sampling(loaded, sampling) | {"response_format": response_format}
        result = _generate(loaded, ask, arguments, show=not as_json)
        if speed:
            report_speed(result)
        if as_json:
            print_json(_document(loaded, result))
        if receipt is not None:
            _write_receipt(receipt, force, loaded, result, _asked(arguments, ask))
        limit = limit_reached(result, loaded, text.max_tokens)
        if response_format is not None:
            check_whole_json(result, limit)
        if limit:
            say(limit)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A message, with a system message before it; if thinking is None, a text to continue."""

    text: str
    system: str | None
    thinking: ThinkingOptions | None

    def messages(self) -> list[dict[str, str]]:
        """Return the messages for `Model.chat`."""
        before = [{"role": "system", "content": self.system}] if self.system else []
        return [*before, {"role": "user", "content": self.text}]


def _asked_to_chat(chat: bool | None, system: str | None, thinking: ThinkingOptions) -> bool | None:
    """Return True if the prompt is a message, None if the model decides."""
    if chat is False:
        refuse_for_raw(system, thinking)
    given = (system, thinking.enable_thinking, thinking.reasoning_budget)
    return chat if given == (None, None, None) else True


def _answers(model: Model) -> bool:
    """Return True if a prompt for this model is a message: its file has a chat template.

    The model that ships was made to tell stories and continues a beginning, though it has a template too.
    """
    from bitnet_core.api.loading import SHIPPED

    if model.name == SHIPPED:
        return False
    try:
        return model.chat_template.origin != "missing"
    except TokenizerError as error:
        raise type(error)(f"{error}. --raw continues the prompt without it") from error


def _prompt(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None:
        raise UsageError("the prompt is given twice; use the argument or --prompt")
    text = argument if argument is not None else option
    if text is None:
        raise UsageError('there is no prompt; for example: bitnet run "Once upon a time", or - to read stdin')
    if text == "-":
        text = read_text("-")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise UsageError("the prompt is not UTF-8 text") from exc
    if not text:
        raise UsageError("the prompt is empty")
    return text


def _schema_format(path: Path) -> dict[str, Any]:
    """Return a response_format for the schema in a file."""
    text = read_text(str(path))
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{path} is not JSON: {exc}") from exc
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _generate(
    model: Model,
    prompt: Prompt,
    arguments: dict[str, Any],
    *,
    show: bool,
) -> Generation:
    with progress_bar() as progress:
        common = {**arguments, "progress": progress}
        chunks: GenerationStream
        if prompt.thinking is None:
            chunks = model.generate(prompt.text, stream=True, **common)
        else:
            chunks = model.chat(prompt.messages(), stream=True, **common, **arguments_of(prompt.thinking))
        first = next(chunks, None)  # runs the prefill
    reply = ReplyWriter(wrap=prompt.thinking is not None)
    if show and prompt.thinking is None:
        echo_prompt(prompt.text)
    try:
        for chunk in chain([first] if first else [], chunks):
            if show:
                reply.write(chunk)
    finally:
        # also after an interrupt, so that the shell's prompt starts on a line of its own
        if show:
            reply.end()
    return chunks.result


def report_speed(result: Generation) -> None:
    """Print the tokens per second of prefill (its last step makes the first token) and decode, on stderr."""
    count = max(len(result.tokens) - 1, 0)
    note(
        f"prefill {result.prompt_tokens} tokens, {speed(result.prompt_tokens, result.prefill_seconds)}; "
        f"decode {len(result.tokens)} tokens, {speed(count, result.decode_seconds)}"
    )


def speed(tokens: int, seconds: float) -> str:
    """Format a speed in tokens per second."""
    return f"{tokens / seconds:.1f} tokens/s" if tokens and seconds > 0 else "too few to time"


def _document(model: Model, result: Generation) -> dict[str, Any]:
    return {
        "text": result.text,
        **({"reasoning": result.reasoning} if result.reasoning else {}),
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "prefill_seconds": result.prefill_seconds,
        "decode_seconds": result.decode_seconds,
        "seed": result.seed,
        "model": model.name,
        "device": model.device.info.request,
        "compute_path": model.summary.compute_path,
    }


def _asked(arguments: dict[str, Any], prompt: Prompt) -> dict[str, Any]:
    """Return the arguments that change tokens, for the receipt.

    The schema is there by the hash of its JSON without spaces, the system message by that of its text.
    """
    asked = {**arguments, "chat": prompt.thinking is not None}
    response_format = asked.pop("response_format")
    if prompt.thinking is not None:
        asked |= arguments_of(prompt.thinking)
    if prompt.system is not None:
        asked["system_sha256"] = hashlib.sha256(prompt.system.encode("utf-8", "surrogatepass")).hexdigest()
    if response_format is not None:
        schema = json.dumps(response_format["json_schema"]["schema"], sort_keys=True, separators=(",", ":"))
        asked["schema_sha256"] = hashlib.sha256(schema.encode()).hexdigest()
    return asked


def _write_receipt(path: Path, force: bool, model: Model, result: Generation, asked: dict[str, Any]) -> None:
    from bitnet_core.receipt import engine_options, make_receipt, write_receipt

    stats = model.stats()
    receipt = make_receipt(
        model={"name": model.name, "sha256": model.source.sha256(), "format": model.source.format},
        summary=model.summary,
        layers=stats["layers_by_device"],
        kernels=stats["kernel_launches_by_device"],
        moved_bytes_per_token=stats["moved_bytes_per_token"],
        prompt_tokens=result.prompt_tokens,
        tokens=result.tokens,
        finish_reason=result.finish_reason,
        prefill_seconds=result.prefill_seconds,
        decode_seconds=result.decode_seconds,
        engine=engine_options(model.engine),
        sampling={**asked, "seed": result.seed},
        speculation={
            "kind": model.engine.speculation.kind,
            "draft_tokens": result.draft_tokens,
            "accepted_tokens": result.accepted_tokens,
        },
    )
    write_receipt(receipt, path, [model.source.path], force=force)
    note(f"receipt: {path}")
