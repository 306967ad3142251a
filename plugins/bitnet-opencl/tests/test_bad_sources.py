"""Four bad kernel sources, each of which a rule of the kit rejects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bitnet_hal.errors import GpuError, KernelCompileError
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.workbench import Bench
from bitnet_opencl import device
from bitnet_opencl.plugin import bitnet_backend

KERNEL = "rms_norm"
HEAD = f"KERNEL {KERNEL}(ARGUMENTS)"

Change = Callable[[str], str]


@pytest.fixture
def bench() -> Iterator[Bench]:
    backend: Any = bitnet_backend()
    try:
        info = backend.devices()[0]
    except GpuError as error:
        pytest.skip(f"{error} (Debian: pocl-opencl-icd)")
    made = Bench(backend, info.index, info)
    yield made
    made.close()


def no_kernel(source: str) -> str:
    return source[: source.index(HEAD)]


def no_arguments(source: str) -> str:
    return source.replace(HEAD, f"KERNEL {KERNEL}()")


def too_few_arguments(source: str) -> str:
    return re.sub(r"(#define ARGUMENTS .*), [^,\n]+\n", r"\1\n", source, count=1)


def a_name_twice(source: str) -> str:
    return source + source[source.index(HEAD) :]


def judge(bench: Bench) -> None:
    """Apply the rules that compile and run the kernel."""
    BackendConformance().test_kernel_is_offered(bench, KERNEL)
    BackendConformance().test_kernel(bench, cases_of(KERNEL)[0])


@pytest.mark.parametrize("change", [no_kernel, no_arguments, too_few_arguments, a_name_twice])
def test_a_bad_source_is_rejected(bench: Bench, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    program_source = device.program_source

    def changed(folders: Any, spec: Any, constants: Any, tuning: Any, **options: Any) -> str:
        source = program_source(folders, spec, constants, tuning, **options)
        return change(source) if spec.name == KERNEL else source

    monkeypatch.setattr(device, "program_source", changed)
    with pytest.raises((AssertionError, GpuError)) as caught:
        judge(bench)
    assert KERNEL in str(caught.value)


def test_the_good_source_passes(bench: Bench) -> None:
    judge(bench)


def test_the_compiler_s_text_is_in_the_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "program_source", lambda *_, **__: "kernel void rms_norm(")
    with pytest.raises(AssertionError, match="does not compile") as caught:
        BackendConformance().test_kernel_is_offered(bench, KERNEL)
    assert isinstance(caught.value.__cause__, KernelCompileError)
    assert caught.value.__cause__.log
