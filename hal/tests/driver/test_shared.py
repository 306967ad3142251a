"""Status codes, enumeration and tuning tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType, Tuning
from bitnet_hal.driver.enumerate import EnumeratedDevice, by_index, filter_devices, pci_address
from bitnet_hal.driver.status import StatusCodes, failure, known
from bitnet_hal.driver.toml_tables import table as read
from bitnet_hal.errors import (
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.tuning.query import TuningMixin, TuningQuery
from bitnet_hal.tuning.table import TuningTable
from bitnet_hal.waiting import TIMEOUT_VARIABLE, wait_limit


def test_a_status_becomes_one_line_with_what_is_known() -> None:
    full = failure(OutOfMemoryError, "alloc", backend="toy", code="TOY_FULL (4)", device="A", requested=2000, free=10)
    assert isinstance(full, OutOfMemoryError)
    assert (full.requested, full.free) == (2000, 10)
    assert str(full).startswith(
        "toy A: cannot allocate 2,000 bytes, 10 are free (during alloc) [TOY_FULL (4)]. Use a smaller"
    )
    broken = failure(KernelCompileError, "compile", backend="toy", code="5", kernel="top_k", log="error: x")
    assert str(broken).startswith("toy: top_k does not compile (during compile) [5]. Update the driver")
    assert str(broken).endswith("The compiler says: error: x")
    assert "launch took too long" in str(failure(GpuTimeoutError, "launch", backend="toy", code="1"))
    assert failure(LaunchError, "submit", backend="toy", said="no such group").message == "no such group"
    assert str(failure(LaunchError, "copy", backend="toy", code="1", hint="Wait")).endswith(
        "copy failed (during copy) [1]. Wait"
    )


def test_a_table_of_failures_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "errors.toml"
    file.write_text('4 = ["LaunchError", "Wait", "Four"]\n"is gone" = ["", "Open it again"]')
    found = known(str(tmp_path / "errors.py"))
    assert found["4"] == (LaunchError, "Wait", "Four")
    assert found["is gone"] == (None, "Open it again", "")


def test_a_status_finds_its_row(tmp_path: Path) -> None:
    file = tmp_path / "errors.toml"
    file.write_text('-4 = ["DeviceLostError", "", "GONE"]\n0x10 = ["", "Wait", "BUSY"]')
    statuses = StatusCodes(
        str(tmp_path / "errors.py"),
        "toy",
        lambda status, name: f"TOY_{name or 'unnamed'} ({status})",
        {"alloc": OutOfMemoryError},
    )
    statuses.check(0, "alloc")
    with pytest.raises(DeviceLostError, match=r"toy: submit failed \(during submit\) \[TOY_GONE \(-4\)\]"):
        statuses.check(-4, "submit")
    full = statuses.error(16, "alloc", requested=7)
    assert (type(full), full.requested, full.hint, full.code) == (OutOfMemoryError, 7, "Wait", "TOY_BUSY (16)")
    assert isinstance(statuses.error(16, "submit"), LaunchError)
    assert statuses.error(5, "submit").code == "TOY_unnamed (5)"
    assert statuses.error(5, "compile").log == "TOY_unnamed (5)"
    assert statuses.error(5, "compile", log="line 3").log == "line 3"


def test_what_a_binding_raises_becomes_an_error_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class BindingError(Exception):
        pass

    class Toy(NumpyDevice):
        def _converted(self, error: Exception, operation: str) -> GpuError | None:
            found = isinstance(error, BindingError)
            return failure(DeviceLostError, operation, backend="toy", said=str(error)) if found else None

    device, raised = Toy(), iter((KeyError("ours"), BindingError("gone")))

    def fail(*_: object) -> None:
        raise next(raised)

    monkeypatch.setattr(device, "_wait", fail)
    with pytest.raises(KeyError):
        device.synchronize()
    with pytest.raises(DeviceLostError, match=f"toy {re.escape(device.info.name)}: gone") as caught:
        device.synchronize()
    assert isinstance(caught.value.__cause__, BindingError)
    with pytest.raises(DeviceLostError, match="the device was lost"):
        device.synchronize()


def test_errors_of_an_open_device_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = NumpyDevice()

    def fail(*_: object) -> None:
        raise LaunchError("no", backend="numpy")

    monkeypatch.setattr(device, "_wait", fail)
    with pytest.raises(LaunchError) as caught:
        device.synchronize()
    assert str(caught.value).startswith(f"numpy {device.info.name}: no")


def test_tunings_beside_the_chosen_one() -> None:
    first = Tuning({"TILE_N": 4, "SPLITS": 1}, "few", {"GROUP": 64}, 8)
    assert first.and_with([({"TILE_N": 8}, {"LANES": 2}), ({"TILE_N": 4}, {})]) == [
        first,
        Tuning({"TILE_N": 8, "SPLITS": 1}, "few", {"GROUP": 64, "LANES": 2}, 8),
    ]
    assert [first.source("top_k"), Tuning().source("top_k")] == ["top_k_few", "top_k"]


def test_what_is_known_of_a_launch_to_be_tuned() -> None:
    info = DeviceInfo(
        "toy", 2, "card", DeviceType.GPU, kernels=frozenset({"top_k"}), extra={"units": "7", "fast": True}
    )
    params = {"rows": 5, "n_heads": 12, "n_kv_heads": 2}
    query = TuningQuery(CATALOGUE["attention"], {"KV": 1}, params, info)
    assert (query["KV"], query["n_heads"]) == (1, 12)
    assert "rows" in query
    assert "k" not in query
    assert (query.padded_rows, query.shared_heads(4), query.shared_heads(8)) == (8, 3, 6)
    assert (query.of_device("units"), query.of_device("fast")) == (7, 1)
    assert str(query.unsupported("too wide")).startswith("toy card: attention: too wide (during tuning)")
    TuningQuery(CATALOGUE["top_k"], {}, {}, info)
    with pytest.raises(UnsupportedError, match="norm_matmul: the device does not offer this kernel"):
        TuningQuery(CATALOGUE["norm_matmul"], {}, {}, info)


def test_a_device_tuned_by_functions() -> None:
    class Toy(TuningMixin, NumpyDevice):
        select_tuning = staticmethod(lambda query: Tuning({"SPLITS": query["rows"]}))
        candidate_tunings = staticmethod(lambda query: [Tuning({"SPLITS": query["rows"] + more}) for more in (0, 1)])

    device, launch = Toy(), (CATALOGUE["argmax_advance"], {}, {"rows": 3, "vocab": 5})
    assert device.tuning(*launch) == Tuning({"SPLITS": 3})
    assert device.tunings(*launch) == [Tuning({"SPLITS": 3}), Tuning({"SPLITS": 4})]


def test_the_device_with_an_index() -> None:
    """Devices are found by index even if indexes have gaps."""
    found = [EnumeratedDevice(index, DeviceInfo("toy", index, f"card {index}", DeviceType.GPU)) for index in (0, 3)]
    assert by_index(found, 3, "toy") is found[1]
    with pytest.raises(DeviceNotFoundError, match="there is no device toy:1") as caught:
        by_index(found, 1, "toy")
    assert caught.value.hint == "Present: toy:0 card 0, toy:3 card 3"


TABLE = """
matmul_ternary = [
    { max = { rows = 4 }, multiple_of = { width = 8 }, tile = { TILE_T = "padded_rows" }, private = { GROUP = 128 } },
    { max = { lanes = 0 }, variant = "tiled", private = { GROUP = 256, WIDTH = "width" } },
    { max = { rows = 9 }, private = { GROUP = 64, LANES = "lanes" } },
    { max = { rows = 10 }, private = { GROUP = [2, "lanes"] } },
    { unsupported = "rows are too many" },
]
rms_norm = [{ max = { width = 10 } }]
"""


def test_a_launch_takes_the_first_row_that_suits_it(tmp_path: Path) -> None:
    (tmp_path / "tunings.toml").write_text(TABLE)
    table = TuningTable(read(str(tmp_path / "tuning.py"), "tunings.toml"))

    def query(kernel: str, lanes: int = 0, **params: int) -> TuningQuery:
        info = DeviceInfo("toy", 0, "Toy", DeviceType.GPU, kernels=frozenset({"top_k"}), extra={"lanes": lanes})
        return TuningQuery(CATALOGUE[kernel], {}, params, info)

    few = Tuning({"TILE_T": 4}, private={"GROUP": 128})
    assert table.tune(query("matmul_ternary", rows=3, width=16)) == few
    many = Tuning(variant="tiled", private={"GROUP": 256, "WIDTH": 16})
    assert table.tune(query("matmul_ternary", rows=5, width=16)) == many
    assert table.tune(query("matmul_ternary", rows=4, width=12)).variant == "tiled"
    small = Tuning(private={"GROUP": 64, "LANES": 0})
    assert table.all(query("matmul_ternary", rows=5, width=16))[:2] == [many, small]
    assert table.all(query("matmul_ternary", lanes=8, rows=11, width=16)) == []
    assert table.tune(query("matmul_ternary", rows=5, width=16), max_group=128) == small
    assert table.tune(query("matmul_ternary", lanes=8, rows=5, width=16)).private == {"GROUP": 64, "LANES": 8}
    assert table.tune(query("matmul_ternary", lanes=8, rows=10, width=16)).private == {"GROUP": 16}
    with pytest.raises(UnsupportedError, match="matmul_ternary: rows are too many"):
        table.tune(query("matmul_ternary", lanes=8, rows=11, width=16))
    assert table.tune(query("rms_norm", width=10)) == Tuning()
    for kernel in ("rms_norm", "top_k"):
        with pytest.raises(UnsupportedError, match=f"there is no {kernel} for width 11"):
            table.tune(query(kernel, width=11))


def test_devices_that_are_left_out_keep_their_index_and_say_why() -> None:
    def described(device: str, index: int) -> tuple[int, str] | str | None:
        if device == "broken":
            raise LaunchError("no answer", backend="toy")
        return {"none": None, "old": f"{device} has no queue"}.get(device, (index, device))

    found, reasons = filter_devices(["old", "one", "none", "broken", "two"], "toy", described)
    assert found == [(1, "one"), (4, "two")]
    assert reasons[0] == "old has no queue"
    assert "no answer" in reasons[1]
    assert len(reasons) == 2


def test_a_card_has_one_address() -> None:
    assert pci_address(0, 0x3B, 0, 1) == "0000:3b:00.1"
    assert pci_address(1, 2, 3) == "0001:02:03.0"


def test_software_devices_have_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TIMEOUT_VARIABLE, raising=False)
    assert (wait_limit(DeviceType.GPU), wait_limit(DeviceType.SOFTWARE)) == (5, 60)
    monkeypatch.setenv(TIMEOUT_VARIABLE, "7")
    assert (wait_limit(DeviceType.GPU), wait_limit(DeviceType.SOFTWARE)) == (7, 7)
