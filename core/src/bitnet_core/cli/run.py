"""`bitnet run`: text after a prompt."""

from __future__ import annotations

import hashlib
import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitnet_core.cli import options
from bitnet_core.cli.console import ReplyWriter, echo_prompt, print_json, progress_bar, say, write_text
from bitnet_core.cli.options import ModelChoice, Sampling, Thinking
from bitnet_core.errors import ReceiptError, UsageError
from bitnet_core.output import check_output

if TYPE_CHECKING:
    from bitnet_core.api import Generation, GenerationStream, Model


SchemaOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write JSON that follows this schema, and nothing else.")
]
ChatOption = Annotated[
    bool, typer.Option("--chat", help="Take the prompt as a message, and print the answer by the chat template.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The text to go on from; - is stdin.")] = None,
    prompt_option: Annotated[str | None, typer.Option("--prompt", "-p", help="The same, as an option.")] = None,
    model: options.ModelOption = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", min=1, help="Tokens to generate at most.")] = 512,
    device: options.DeviceOption = None,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    min_p: options.MinPOption = None,
    repetition_penalty: options.PenaltyOption = None,
    seed: options.SeedOption = None,
    stop: options.StopOption = None,
    as_json: options.JsonOption = False,
    receipt: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a receipt of the run.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing receipt.")] = False,
    kv: options.KvOption = options.KvType.f16,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
    mmap: options.MmapOption = True,
    fallback: options.FallbackOption = True,
    kv_budget: options.BudgetOption = None,
    max_sequences: options.SequencesOption = 32,
    eviction: options.EvictionOption = options.Evicted.lru,
    activation_block: options.ActivationOption = None,
    json_schema: SchemaOption = None,
    chat: ChatOption = False,
    think: options.ThinkOption = None,
    max_thinking: options.MaxThinkingOption = None,
) -> None:
    """Stream the text that follows a prompt, or with --chat the answer to it.

    The text goes to stdout; the model, the device and the speed to stderr. What a model reasons before it answers is
    shown dim on a terminal; only --json holds it.
    """
    text = _prompt(prompt, prompt_option)
    if receipt is not None:  # found out now, not after the run
        check_output(receipt, [Path(model)] if model else [], force=force, error=ReceiptError)
    thinking = _thinking(chat, think, max_thinking)
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed, tuple(stop or ()))
    response_format = _schema_format(json_schema) if json_schema else None
    place = (model, device, kv, context, layout, mmap, None, fallback, kv_budget, max_sequences, eviction)
    with options.opened(ModelChoice(*place, activation_block)) as loaded:
        sampling = sampling.of(loaded)
        result = _generate(loaded, text, max_tokens, sampling, response_format, thinking, quiet=as_json)
        report_speed(result)
        if as_json:
            print_json(_document(loaded, result))
        if receipt is not None:
            _write_receipt(receipt, force, loaded, result, _asked(max_tokens, sampling, thinking, response_format))


def _thinking(chat: bool, think: bool | None, max_thinking: int | None) -> Thinking | None:
    """None where the prompt is not a message."""
    if not chat and (think is not None or max_thinking is not None):
        raise UsageError("--think, --no-think and --max-thinking are for --chat")
    return Thinking(think, max_thinking) if chat else None


def _prompt(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None:
        raise UsageError("the prompt is given twice; use the argument or --prompt")
    text = argument if argument is not None else option
    if text is None:
        raise UsageError('there is no prompt; for example: bitnet run "Once upon a time", or - to read stdin')
    if text == "-":
        text = options.read_text("-")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise UsageError("the prompt is not UTF-8 text") from exc
    if not text:
        raise UsageError("the prompt is empty")
    return text


def _schema_format(path: Path) -> dict[str, Any]:
    """A response_format for the schema in a file."""
    try:
        schema = json.loads(options.read_text(str(path)))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{path} is not JSON: {exc}") from exc
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _generate(
    model: Model,
    text: str,
    max_tokens: int,
    sampling: Sampling,
    response_format: dict[str, Any] | None,
    thinking: Thinking | None,
    *,
    quiet: bool,
) -> Generation:
    with progress_bar() as progress:
        common: dict[str, Any] = {"max_tokens": max_tokens, "response_format": response_format, "progress": progress}
        common |= sampling.parameters()
        pieces: GenerationStream
        if thinking is None:
            pieces = model.generate(text, stream=True, **common)
        else:
            message = {"role": "user", "content": text}
            pieces = model.chat([message], stream=True, **common, **thinking.parameters())
        first = next(pieces, None)  # the prefill
    reply = ReplyWriter()
    if not quiet and thinking is None:
        echo_prompt(text)
    try:
        for piece in chain([first] if first else [], pieces):
            if not quiet:
                reply.write(piece)
    finally:
        # also after an interrupt, so that the shell's prompt starts on a line of its own
        if not quiet:
            write_text("\n")
    return pieces.result


def report_speed(result: Generation) -> None:
    """Tokens per second of prefill (its last step makes the first token) and decode, on stderr."""
    count = max(len(result.tokens) - 1, 0)
    say(
        f"prefill {result.prompt_tokens} tokens, {speed(result.prompt_tokens, result.prefill_seconds)}; "
        f"decode {len(result.tokens)} tokens, {speed(count, result.decode_seconds)}"
    )


def speed(tokens: int, seconds: float) -> str:
    """Tokens per second for people."""
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


def _asked(
    max_tokens: int, sampling: Sampling, thinking: Thinking | None, response_format: dict[str, Any] | None
) -> dict[str, Any]:
    """All that the command was asked for that changes tokens; the schema by the hash of its JSON without spaces."""
    asked = {"max_tokens": max_tokens, **sampling.parameters(), "chat": thinking is not None}
    if thinking is not None:
        asked |= thinking.parameters()
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
        kernels=stats["kernel_launches_by_device"],
        moved_bytes_per_token=stats["moved_bytes_per_token"],
        prompt_tokens=result.prompt_tokens,
        tokens=result.tokens,
        finish_reason=result.finish_reason,
        prefill_seconds=result.prefill_seconds,
        decode_seconds=result.decode_seconds,
        engine=engine_options(model.engine),
        sampling={**asked, "seed": result.seed},
    )
    write_receipt(receipt, path, [model.source.path], force=force)
    say(f"receipt: {path}")
