"""Sensors of amdgpu, read from an imitation of its folder."""

from __future__ import annotations

from pathlib import Path

from bitnet_rocm.hwmon import readings


def test_readings_are_in_the_units_of_the_contract(tmp_path: Path) -> None:
    folder = tmp_path / "0000:03:00.0" / "hwmon" / "hwmon4"
    folder.mkdir(parents=True)
    files = {"temp1_input": "61000", "freq1_input": "2304000000", "power1_input": "187000000", "freq2_input": "broken"}
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    found = readings("0000:03:00.0", tmp_path)
    assert {name: round(value) for name, value in found.items()} == {"temperature": 61, "clock": 2304, "power": 187}
    assert readings("0000:04:00.0", tmp_path) == {}
    assert readings("", tmp_path) == {}
