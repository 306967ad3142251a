"""The grammar of device requests and their sources."""

from __future__ import annotations

import pytest
from bitnet_hal.discovery.request import (
    ALL,
    AUTO,
    DeviceRequest,
    parse_request,
    parse_requests,
    resolve_request,
    resolve_requests,
)
from bitnet_hal.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", AUTO),
        ("cpu", DeviceRequest("cpu")),
        ("GPU ", DeviceRequest("gpu")),
        ("cuda", DeviceRequest("cuda")),
        ("cuda:1", DeviceRequest("cuda", 1)),
        ("hip:0", DeviceRequest("rocm", 0)),
        ("oneapi", DeviceRequest("level-zero")),
        ("ze", DeviceRequest("level-zero")),
        ("l0:2", DeviceRequest("level-zero", 2)),
        ("ocl", DeviceRequest("opencl")),
        ("somebody-elses", DeviceRequest("somebody-elses")),
    ],
)
def test_grammar(text: str, expected: DeviceRequest) -> None:
    assert parse_request(text) == expected
    assert parse_request(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", ":0", "cuda:", "cuda:x", "cuda:-1", "cuda:0:1", "auto:0", "gpu:1", "a b", "cuda:٣"]
)
def test_what_the_grammar_refuses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_request(text)


def test_lists() -> None:
    assert parse_requests("hip:1, cpu") == (DeviceRequest("rocm", 1), DeviceRequest("cpu"))
    assert parse_requests("ALL ") == (ALL,)
    assert parse_requests("cuda") == (DeviceRequest("cuda"),)


@pytest.mark.parametrize("text", ["cuda:0,cuda:0", "hip,rocm", "cuda,", "all,cpu", ","])
def test_lists_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_requests(text)


@pytest.mark.parametrize("text", ["cuda:0,cpu", "all"])
def test_several_devices_where_one_is_used(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="several devices"):
        parse_request(text)
    monkeypatch.setenv("BITNET_DEVICE", text)
    with pytest.raises(UsageError, match="several devices"):
        resolve_request(None)
    assert resolve_requests(None) == parse_requests(text)
    assert resolve_requests("cpu") == (DeviceRequest("cpu"),)


@pytest.mark.parametrize(
    ("choice", "environment", "expected"),
    [
        (None, {}, "auto"),
        (None, {"BITNET_DEVICE": "cuda"}, "cuda"),
        ("numpy", {"BITNET_DEVICE": "cuda"}, "numpy"),
        ("auto", {"BITNET_DEVICE": "cuda"}, "auto"),
        ("numpy", {"BITNET_DEVICE": "cuda", "BITNET_GPU_BACKEND": "rocm"}, "numpy"),
        (None, {"BITNET_GPU_BACKEND": "opencl"}, "opencl"),
        (None, {"BITNET_GPU_BACKEND": "ocl", "BITNET_GPU_DEVICE": "1"}, "opencl:1"),
        (None, {"BITNET_DEVICE": "opencl:1", "BITNET_GPU_BACKEND": "ocl", "BITNET_GPU_DEVICE": "1"}, "opencl:1"),
        (None, {"BITNET_DEVICE": ""}, "auto"),
    ],
)
def test_precedence(choice, environment, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(resolve_request(choice)) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {"BITNET_DEVICE": "cuda", "BITNET_GPU_BACKEND": "rocm"},
        {"BITNET_DEVICE": "cuda:0", "BITNET_GPU_BACKEND": "cuda", "BITNET_GPU_DEVICE": "1"},
        {"BITNET_GPU_DEVICE": "1"},
        {"BITNET_GPU_BACKEND": "cuda", "BITNET_GPU_DEVICE": "one"},
    ],
)
def test_contradictions_are_usage_errors(environment, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError):
        resolve_request(None)
