"""Memory sizes agree with psutil, which the package itself does not need."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from bitnet_hal import host_memory


@pytest.mark.parametrize("meminfo", [host_memory.MEMINFO, Path("/nowhere")], ids=["proc", "sysconf"])
def test_it_is_what_psutil_says(meminfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "MEMINFO", meminfo)
    told = psutil.virtual_memory()
    assert host_memory.total_memory() == pytest.approx(told.total, rel=0.01)
    if meminfo.exists():
        assert host_memory.available_memory() == pytest.approx(told.available, abs=told.total / 10)
    assert 0 < host_memory.available_memory() <= told.total


def test_a_damaged_meminfo_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "meminfo"
    damaged.write_text("MemTotal:\nMemAvailable: many kB\n")
    monkeypatch.setattr(host_memory, "MEMINFO", damaged)
    assert host_memory.total_memory() == pytest.approx(psutil.virtual_memory().total, rel=0.01)
