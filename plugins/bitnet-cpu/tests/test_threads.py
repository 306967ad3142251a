"""The number of threads of the pool."""

from pathlib import Path

import pytest
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
