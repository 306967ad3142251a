"""Receipts: complete, atomic, and any changed byte is found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.errors import ReceiptError
from bitnet_core.receipt import content_sha256, make_receipt, tokens_sha256, write_receipt
from bitnet_core.receipt_checks import verify_receipt
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.discovery.request import AUTO
from bitnet_hal.discovery.selection import BackendStartupSummary

GPU = DeviceInfo("cuda", 0, "card", DeviceType.GPU, vendor="V", driver="1.2")
CPU = DeviceInfo("numpy", 0, "host", DeviceType.CPU)


def receipt_of(summary: BackendStartupSummary | None = None, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model": {"name": "stories", "sha256": "ab" * 32, "format": "GGUF v3"},
        "summary": summary or BackendStartupSummary(AUTO, ("cuda", "numpy"), GPU),
        "layers": {(summary.selected if summary else GPU).request: 6},
        "kernels": {(summary.selected if summary else GPU).request: {"rms_norm": 3, "matmul_ternary": 21}},
        "moved_bytes_per_token": 68.25,
        "prompt_tokens": 5,
        "tokens": [1, 2, 70000],
        "finish_reason": "length",
        "prefill_seconds": 0.25,
        "decode_seconds": 0.5,
        "engine": {"kv_cache_type": "f16", "activation_group_size": 32, "context": 512, "prefill_chunk": 256},
        "sampling": {"temperature": 0.0, "seed": None, "stop": ("\n",)},
        "speculation": {"kind": "lookup", "draft_tokens": 4, "accepted_tokens": 3},
    }
    return make_receipt(**{**fields, **changes})


def test_a_receipt_says_what_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in KNOWN.values():
        for name in backend.variables:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BITNET_DEVICE", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    receipt = receipt_of()
    assert receipt["device"]["driver"] == "1.2"
    assert receipt["startup"]["line"] == "requested=auto detected=[cuda,numpy] selected=cuda"
    assert receipt["compute_path"] == "real"
    assert receipt["tokens"] == {"prompt": 5, "generated": 3}
    assert receipt["output"]["tokens_sha256"] == tokens_sha256([1, 2, 70000])
    assert receipt["environment"] == {"BITNET_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "0"}


def test_compute_paths() -> None:
    fallback = BackendStartupSummary(AUTO, ("cuda", "numpy"), GPU).moved_to(CPU, "lost")
    assert receipt_of(fallback)["compute_path"] == "fallback"
    fake = DeviceInfo("cuda", 0, "fake", DeviceType.GPU, fake=True)
    assert receipt_of(BackendStartupSummary(AUTO, ("cuda",), fake))["compute_path"] == "mock"


def test_strict_mode_refuses_what_is_not_real(tmp_path: Path, bitnet, monkeypatch: pytest.MonkeyPatch) -> None:
    fallback = BackendStartupSummary(AUTO, ("cuda", "numpy"), GPU).moved_to(CPU, "lost")
    write_receipt(receipt_of(fallback), tmp_path / "fallback.json")
    write_receipt(receipt_of(), tmp_path / "real.json")
    assert bitnet("receipt", "verify", tmp_path / "fallback.json").code == 0
    monkeypatch.setenv("BITNET_STRICT_MODE", "1")
    refused = bitnet("receipt", "verify", tmp_path / "fallback.json")
    assert (refused.code, "a device that was a fallback" in refused.err) == (8, True)
    assert bitnet("receipt", "verify", tmp_path / "real.json").code == 0


def test_a_receipt_says_whether_fallback_was_allowed(tmp_path: Path) -> None:
    assert receipt_of()["startup"]["fallback"] is True
    forbidden = BackendStartupSummary(AUTO, ("cuda", "numpy"), GPU, fallback=False)
    assert receipt_of(forbidden)["startup"]["fallback"] is False
    write_receipt(receipt_of(forbidden.moved_to(CPU, "lost")), tmp_path / "odd.json")
    with pytest.raises(ReceiptError, match="fallback is false, but a device was skipped"):
        verify_receipt(tmp_path / "odd.json")


def test_a_receipt_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_API_KEY", "secret")
    assert "secret" not in json.dumps(receipt_of())


def test_write_and_verify(tmp_path: Path, bitnet) -> None:
    path = tmp_path / "receipt.json"
    write_receipt(receipt_of(), path)
    assert verify_receipt(path)["model"]["name"] == "stories"
    assert [entry.name for entry in tmp_path.iterdir()] == ["receipt.json"]
    result = bitnet("receipt", "verify", path)
    assert result.code == 0
    assert "verifies" in result.out


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_an_older_receipt_verifies_and_its_missing_fields_are_named(tmp_path: Path, bitnet, version: int) -> None:
    receipt = receipt_of()
    receipt["engine"]["kv_dtype"] = receipt["engine"].pop("kv_cache_type")
    if version < 5:
        del receipt["speculation"], receipt["layers"]
    if version < 4:
        del receipt["startup"]["fallback"]
    if version == 2:
        del receipt["engine"]
    receipt["schema_version"] = version
    receipt["content_sha256"] = content_sha256(receipt)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write_receipt(receipt, old)
    write_receipt(receipt_of(), new)
    result = bitnet("receipt", "verify", old)
    assert (result.code, "older receipt" in result.err) == (0, version < 5)  # 5 lacks no field
    assert "older receipt" not in bitnet("receipt", "verify", new).err


def test_strict_mode_refuses_the_receipt_of_a_fake(tmp_path: Path, bitnet, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = DeviceInfo("cuda", 0, "fake", DeviceType.GPU, fake=True)
    mock, real = tmp_path / "mock.json", tmp_path / "real.json"
    write_receipt(receipt_of(BackendStartupSummary(AUTO, ("cuda",), fake)), mock)
    write_receipt(receipt_of(), real)
    assert bitnet("receipt", "verify", mock).code == 0
    monkeypatch.setenv("BITNET_STRICT_MODE", "1")
    assert (bitnet("receipt", "verify", mock).code, bitnet("receipt", "verify", real).code) == (8, 0)


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="needs pwrite")
def test_every_tampered_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    write_receipt(receipt_of(), path)
    raw = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(raw):
            os.pwrite(file.fileno(), bytes([byte ^ 1]), place)
            with pytest.raises(ReceiptError):
                verify_receipt(path)
            os.pwrite(file.fileno(), bytes([byte]), place)
    verify_receipt(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.pop("device"), "device is missing"),
        (lambda r: r.update(extra=1), "extra is unknown"),
        (lambda r: r["tokens"].update(prompt="5"), "tokens.prompt has the wrong type"),
        (lambda r: r["tokens"].update(prompt=True), "tokens.prompt has the wrong type"),
        (lambda r: r.update(model=[]), "model is not an object"),
        (lambda r: r.update(schema_version=1), "schema version 1 is not supported; this version reads 2 to 6"),
        (lambda r: r.update(schema_version=7), "schema version 7 is not supported; this version reads 2 to 6"),
        (lambda r: r.update(schema_version=[]), "schema version [] is not supported; this version reads 2 to 6"),
        (lambda r: r.update(schema_version=2), "is unknown"),
        (lambda r: r.update(schema_version=4), "is unknown"),
        (lambda r: r["speculation"].update(accepted_tokens=5), "more draft tokens were accepted"),
        (lambda r: r["speculation"].update(draft_tokens=-1), "not a natural number"),
        (lambda r: r.update(layers={"cuda:0": 0}), "layers that is not 1 or more"),
        (lambda r: r.update(layers={"cuda:1": 6}), "the selected device has no layers"),
        (lambda r: r["layers"].update({"cpu:0": 6}), "without a kernel launch on a device with layers"),
        (lambda r: r.pop("engine"), "engine is missing"),
        (lambda r: r["engine"].pop("activation_group_size"), "engine.activation_group_size is missing"),
        (lambda r: r.update(compute_path="mock"), "imply 'real'"),
        (lambda r: r["device"].update(fake=True), "imply 'mock'"),
        (lambda r: r["startup"].update(selected="rocm:0"), "is not the device"),
        (lambda r: r["startup"].update(detected=[]), "startup.line"),
        (lambda r: r["kernels"]["cuda:0"].update(rms_norm=-1), "not a natural number"),
        (lambda r: r["kernels"]["cuda:0"].update(rms_norm=1.5), "not a natural number"),
        (lambda r: r["seconds"].update(decode=-0.5), "negative"),
        (lambda r: r["kernels"].update({"cuda:0": 3}), "not an object"),
        (lambda r: r["kernels"].update({"numpy:0": {"rms_norm": 3}}), "neither selected nor skipped"),
        (lambda r: r["kernels"].clear(), "without a single kernel launch"),
        (lambda r: r["model"].update(sha256="xyz"), "not a SHA-256"),
    ],
)
def test_a_forged_receipt_that_contradicts_itself(tmp_path: Path, change, reason: str, bitnet) -> None:
    receipt = receipt_of()
    change(receipt)
    receipt["content_sha256"] = content_sha256(receipt)  # a forger can compute the hash too
    path = tmp_path / "receipt.json"
    write_receipt(receipt, path)
    result = bitnet("receipt", "verify", path)
    assert result.code == 14
    assert reason in result.err


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff", b'{"a": NaN}', b"[" * 100_000, b" " * (2 << 20)], ids=range(7)
)
def test_what_is_no_receipt(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(raw)
    with pytest.raises(ReceiptError):
        verify_receipt(path)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "receipt.json", tmp_path):
        with pytest.raises(ReceiptError, match=r"cannot be written|not replaced"):
            write_receipt(receipt_of(), path)
    assert list(tmp_path.iterdir()) == []


def test_json_is_plain() -> None:
    assert json.loads(json.dumps(receipt_of()))["sampling"]["stop"] == ["\n"]
