"""`bitnet run` and `bitnet chat` with the model that ships: what they print where, and how they refuse bad input."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from bitnet_core.receipt import tokens_sha256
from bitnet_core.receipt_checks import verify_receipt

STORIES = Path(str(files("bitnet_core"))) / "data" / "stories.gguf"
PROGRAM = "from bitnet_core.cli.app import main; main()"
PROMPT = "Once upon a time"


def test_text_goes_to_stdout_and_the_rest_to_stderr(bitnet) -> None:
    result = bitnet("run", PROMPT, "-n", 8)
    assert result.code == 0
    assert len(result.out.split()) >= 3
    assert "stories on numpy:0" in result.err
    assert "tokens/s" in result.err
    assert "tokens/s" not in result.out


def test_the_prompt_may_be_an_argument_an_option_or_stdin(bitnet) -> None:
    texts = {
        bitnet("run", PROMPT, "-n", 6).out,
        bitnet("run", "-p", PROMPT, "-n", 6, "--device", "cpu").out,
        bitnet("run", "-", "-n", 6, "-m", STORIES, stdin=PROMPT.encode()).out,
    }
    assert len(texts) == 1


def test_json_and_receipt(bitnet, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    result = bitnet("run", PROMPT, "-n", 6, "--json", "--receipt", path)
    document = json.loads(result.out)
    assert document["finish_reason"] == "length"
    assert len(document["tokens"]) == 6
    receipt = verify_receipt(path)
    assert receipt["output"]["tokens_sha256"] == tokens_sha256(document["tokens"])
    assert receipt["compute_path"] == "real"
    assert receipt["kernels"]["numpy:0"]["matmul_ternary"] > 0
    assert 0 < receipt["moved_bytes_per_token"] < 100_000
    assert receipt["tokens"] == {"prompt": document["prompt_tokens"], "generated": 6}


def test_a_receipt_names_what_changes_the_tokens(bitnet, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "boolean"}')
    options = (
        "--kv-cache-type",
        "int8",
        "--context",
        128,
        "--chat",
        "--json-schema",
        schema,
        "--receipt",
        tmp_path / "a.json",
    )
    assert bitnet("run", PROMPT, "-n", 4, *options).code == 0
    receipt = verify_receipt(tmp_path / "a.json")
    engine, sampling = receipt["engine"], receipt["sampling"]
    assert (engine["kv_cache_type"], engine["activation_group_size"], engine["context"]) == ("int8", 0, 128)
    assert engine["prefill_chunk"] > 0
    assert (sampling["chat"], sampling["enable_thinking"], sampling["max_tokens"]) == (True, None, 4)
    assert sampling["schema_sha256"] == hashlib.sha256(b'{"type":"boolean"}').hexdigest()


def test_same_seed_same_text(bitnet) -> None:
    options = ("--temperature", 1.0, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01, "--repetition-penalty", 1.1)
    texts = [bitnet("run", PROMPT, "-n", 12, "--seed", seed, *options).out for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("command", [("run", PROMPT, "-m", ""), ("bench", "-m", "")])
def test_an_empty_name_is_no_model(bitnet, command: tuple[str, ...]) -> None:
    result = bitnet(*command)
    assert result.code == 2
    assert "name is empty" in result.err


def test_stop(bitnet) -> None:
    whole = bitnet("run", PROMPT, "-n", 12).out.strip()
    stop = whole.split()[2]
    stopped = bitnet("run", PROMPT, "-n", 12, "--stop", stop).out.strip()
    assert stopped == whole[: whole.index(stop)].strip()


def test_a_fake_device_is_named_mock(bitnet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda")
    path = tmp_path / "receipt.json"
    result = bitnet("run", PROMPT, "-n", 2, "--receipt", path)
    assert "fake cuda device" in result.err
    assert verify_receipt(path)["compute_path"] == "mock"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run"], 2, "there is no prompt"),
        (["run", ""], 2, "the prompt is empty"),
        (["run", "-"], 2, "the prompt is empty"),
        (["run", "a", "-p", "b"], 2, "given twice"),
        (["run", "word " * 5000], 2, "context"),
        (["run", "x", "-n", "0"], 2, "-n"),
        (["run", "x", "--temperature", "-1"], 2, "temperature"),
        (["run", "x", "--stop", ""], 2, "stop"),
        (["run", "x", "--context", "1000000"], 2, "context"),
        (["run", "x", "--kv-cache-type", "f8"], 2, "f8"),
        (["run", "x", "-m", "missing.gguf"], 3, "missing.gguf"),
        (["run", "x", "-m", "."], 3, "is a directory"),
        (["run", "x", "-m", "plain.txt"], 3, "plain.txt"),
        (["run", "x", "-m", "cut.gguf"], 3, "cut.gguf"),
        (["run", "x", "--device", "nosuch"], 11, "there is no backend 'nosuch'"),
        (["run", "x", "--device", "cuda"], 11, "pip install ./plugins/bitnet-cuda"),
        (["run", "x", "--device", "gpu"], 11, "no GPU found"),
        (["run", "x", "--device", "numpy:3"], 11, "numpy:3"),
        (["run", "x", "--device", "cuda:x"], 2, "cuda:x"),
        (["run", "x", "--receipt", "missing/receipt.json"], 14, "cannot be written"),
        (["bench", "-m", "a.gguf", "--synthetic", "tiny"], 2, "exclude each other"),
        (["bench", "--synthetic", "nosuch"], 2, "bonsai-8b, bonsai-4b"),
        (["bench", "--synthetic", "tiny", "-p", "5000"], 2, "context"),
        (["perplexity", "missing.txt"], 2, "missing.txt"),
        (["perplexity", "empty.txt"], 2, "empty"),
    ],
)
def test_bad_input(bitnet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, code: int, message: str) -> None:
    (tmp_path / "plain.txt").write_text("no model")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "cut.gguf").write_bytes(STORIES.read_bytes()[:100_000])
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    result = bitnet(*arguments)
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""
    assert sorted(tmp_path.iterdir()) == before


def test_strict_mode_makes_a_warning_an_error(bitnet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "odd.gguf"
    raw = STORIES.read_bytes()
    assert raw.count(b"tokenizer.ggml.pre") == 1
    path.write_bytes(raw.replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.prx"))
    result = bitnet("run", PROMPT, "-n", 1, "-m", path)
    assert (result.code, "[missing-pre-tokenizer]" in result.err) == (0, True)
    monkeypatch.setenv("BITNET_STRICT_MODE", "1")
    result = bitnet("run", PROMPT, "-n", 1, "-m", path)
    assert (result.code, "[missing-pre-tokenizer]" in result.err) == (8, True)
    assert bitnet("run", PROMPT, "-n", 1).code == 0


def test_stdin_that_is_not_utf8(bitnet) -> None:
    result = bitnet("run", "-", stdin=b"caf\xe9")
    assert (result.code, "stdin is not UTF-8 text: byte 3" in result.err) == (2, True)


def test_contradicting_environment(bitnet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_DEVICE", "numpy")
    monkeypatch.setenv("BITNET_GPU_BACKEND", "cuda")
    assert bitnet("run", "x").code == 2
    assert bitnet("run", PROMPT, "-n", 1, "--device", "numpy").code == 0


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_is_130() -> None:
    # buffering off: the first piece must arrive while the rest is still being made
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, "run", PROMPT, "-n", "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell job inherits "ignore"
    )
    assert child.stdout is not None
    assert child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in err


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_a_reader_that_leaves() -> None:
    script = f"'{sys.executable}' -c '{PROGRAM}' run '{PROMPT}' -n 200 | head -c 1 > /dev/null"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_a_terminal_that_is_not_utf8_still_gets_utf8() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "run", "Zoë 🐢", "-n", "2"], capture_output=True, env=environment, check=True
    )
    done.stdout.decode("utf-8")


def test_chat(bitnet) -> None:
    script = b"Tell me a story.\n\n/nosuch\n/clear\nAnother one.\n/exit\nnever read\n"
    result = bitnet("chat", "-n", 6, stdin=script)
    assert result.code == 0
    assert len(result.out.splitlines()) >= 2
    assert "There is no /nosuch" in result.err
    assert "Forgotten." in result.err
    assert result.err.count("tokens/s; decode") == 2


def test_chat_goes_on_after_a_question_that_does_not_fit(bitnet) -> None:
    result = bitnet("chat", "-n", 4, stdin=b"word " * 5000 + b"\nHello\n")
    assert result.code == 0
    assert "/clear forgets" in result.err
    assert result.err.count("tokens/s; decode") == 1


def test_perplexity_is_the_models_own(bitnet, tmp_path: Path) -> None:
    from bitnet_core.api import load

    text = "Once upon a time there was a fluffy otter. He lived by the old mill."
    path = tmp_path / "text.txt"
    path.write_text(text)
    with load() as model:
        expected = model.perplexity(text)
    assert bitnet("perplexity", path).out == f"{expected:.4f}\n"
    assert json.loads(bitnet("perplexity", "-", "--json", stdin=text.encode()).out)["perplexity"] == expected


def test_prompts_take_steps_of_the_size_that_was_asked_for(bitnet, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    prompt = "Once upon a time there was a little dog who had a big red ball. " * 5
    outputs = [bitnet("run", prompt, "-n", 4, "-d", "numpy", "-q", *more).out for more in ((), ("--prefill-chunk", 33))]
    assert outputs[0] == outputs[1]
    assert bitnet("run", "Once", "-n", 1, "-d", "numpy", "--prefill-chunk", 40, "--receipt", path).code == 0
    assert json.loads(path.read_text())["engine"]["prefill_chunk"] == 40


def test_a_json_schema_is_followed(bitnet, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    properties = '"properties": {"n": {"enum": [12, 34]}}, "required": ["n"], "additionalProperties": false'
    schema.write_text(f'{{"type": "object", {properties}}}')
    assert bitnet("run", "Once", "-n", 20, "--json-schema", schema).out in ('{"n": 12}\n', '{"n": 34}\n')
    schema.write_text("{")
    result = bitnet("run", "Once", "--json-schema", schema)
    assert (result.code, "is not JSON" in result.err) == (2, True)
    result = bitnet("run", "Once", "--json-schema", tmp_path / "none.json")
    assert (result.code, "is not JSON" in result.err, "none.json cannot be read" in result.err) == (2, False, True)
