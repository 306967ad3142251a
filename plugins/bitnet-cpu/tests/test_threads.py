"""The number of threads of the pool."""

from pathlib import Path

import pytest
from bitnet_cpu import threads
from bitnet_cpu.threads import cgroup_cores, thread_count
from bitnet_hal.errors import UsageError


def test_variable_sets_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_NUM_THREADS", "3")
    assert thread_count() == 3


@pytest.mark.parametrize("text", ["0", "-1", "many", "2000", "1.5"])
def test_senseless_variable_is_a_usage_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_NUM_THREADS", text)
    with pytest.raises(UsageError, match="BITNET_NUM_THREADS"):
        thread_count()


def test_default_is_at_least_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BITNET_NUM_THREADS", raising=False)
    assert thread_count() >= 1


def test_quota_of_cgroup_v2(tmp_path: Path) -> None:
    group = tmp_path / "cg" / "a" / "b"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("150000 100000\n")
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    assert cgroup_cores(tmp_path / "cg", own) == 1.5


def test_quota_of_cgroup_v1(tmp_path: Path) -> None:
    group = tmp_path / "cpu" / "job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("400000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    own = tmp_path / "own"
    own.write_text("5:memory:/job\n3:cpu:/job\n")
    assert cgroup_cores(tmp_path, own) == 4


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_cores(tmp_path, tmp_path / "absent") == float("inf")


@pytest.mark.parametrize("text", ["9" * 5000, "²", "1_0", "0x4", "nan"])
def test_odd_values_are_usage_errors_too(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_NUM_THREADS", text)
    with pytest.raises(UsageError, match="BITNET_NUM_THREADS"):
        thread_count()


@pytest.mark.parametrize("mounted", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
@pytest.mark.parametrize("listed", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_cgroup_v1_in_all_spellings(tmp_path: Path, mounted: str, listed: str) -> None:
    group = tmp_path / mounted
    group.mkdir()
    (group / "cpu.cfs_quota_us").write_text("200000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpuset").mkdir()
    own = tmp_path / "own"
    own.write_text(f"9:cpuset:/docker/abc\n4:{listed}:/docker/abc\n1:name=systemd:/\nno colons\n0::/\n")
    assert cgroup_cores(tmp_path, own) == 2


def test_quota_in_the_unified_hierarchy_of_a_hybrid_system(tmp_path: Path) -> None:
    group = tmp_path / "unified" / "job"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("300000 100000\n")
    own = tmp_path / "own"
    own.write_text("0::/job\n")
    assert cgroup_cores(tmp_path, own) == 3


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_cpuset_of_sibling_threads_counts_cores(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(64):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / name).write_text(f"{number % 32},{number % 32 + 32}\n")
    monkeypatch.setattr(threads.psutil, "cpu_count", lambda logical=True: 64 if logical else 32)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 32, 33, 34, 35}, raising=False)
    assert threads.physical_cores(tmp_path) == 4
    assert threads.physical_cores(tmp_path / "absent") == 8
