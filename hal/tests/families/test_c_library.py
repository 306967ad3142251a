"""CffiLibrary with a library whose functions are written in Python."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_hal.driver.status import StatusCodes
from bitnet_hal.errors import LaunchError, OutOfMemoryError
from bitnet_hal.families.c_library import CffiLibrary

cffi = pytest.importorskip("cffi")
DECLARED = """
typedef enum { ACME_STRUCTURE_TYPE_LAYER_INFO = 5, ACME_STRUCTURE_TYPE_CARD_ID_ALL = 9 } acme_structure_type_t;
typedef struct { const char *text; uint32_t flags; } acme_part_t;
typedef struct { uint32_t stype; void *pNext; uint32_t count; acme_part_t *parts; acme_part_t first;
    const acme_part_t *only; } acme_layer_info_t;
typedef struct { uint32_t sType; void *pNext; uint8_t uuid[4]; char name[8]; acme_part_t part; } AcmeCardIDAll;
typedef void *acme_card_t;
"""


@pytest.fixture
def acme(tmp_path: Path) -> CffiLibrary:
    ffi = cffi.FFI()
    ffi.cdef(DECLARED)

    @ffi.callback("int32_t(uint32_t, uint32_t *)")
    def square(number: int, out: Any) -> int:
        out[0] = number * number
        return 0 if number < 100 else 7

    @ffi.callback("int32_t(uint32_t, AcmeCardIDAll *)")
    def about(card: int, out: Any) -> int:
        assert out.sType == 9
        out.uuid, out.name = bytes([card] * 4), b"card"
        return 0

    @ffi.callback("int32_t(const acme_layer_info_t *, uint32_t *)")
    def make_layer(info: Any, out: Any) -> int:
        out[0] = 100 * info.stype + 10 * info.count + info.only.flags
        assert ffi.string(info.only.text) == b"only"
        return 0

    @ffi.callback("int32_t(uint32_t *, acme_card_t *)")
    def cards(count: Any, out: Any) -> int:
        count[0] = 2
        for i in range(2 if out else 0):
            out[i] = ffi.cast("void *", 16 + i)
        return 0

    @ffi.callback("int32_t(size_t *, uint8_t *)")
    def content(size: Any, out: Any) -> int:
        size[0] = 3
        if out:
            ffi.memmove(out, b"abc", 3)
        return 0

    table = tmp_path / "errors.toml"
    table.write_text('7 = ["OutOfMemoryError", "", "NO_MEMORY"]\n')
    statuses = StatusCodes(str(tmp_path / "errors.py"), "acme", lambda status, name: f"{name or 'ACME'} ({status})")
    functions = {"square": square, "about": about, "make_layer": make_layer, "cards": cards, "content": content}
    lib = SimpleNamespace(**functions, fail=ffi.callback("int(void)", lambda: 8))
    return CffiLibrary(ffi, lib, statuses, ["acme_structure_type_t"], {"acme_part_t": {"flags": 3}})


def test_structs_keep_what_they_point_to(acme: CffiLibrary) -> None:
    """Pointers stay valid in a struct copied into another one, and in lists without other references."""
    made = acme.make("acme_layer_info_t", parts=[{"text": "m" * 200}, {"flags": 1}], first={"text": "n" * 200})
    gc.collect()
    trash = [acme.make("acme_layer_info_t", parts=[{"text": "x" * 200}]) for _ in range(200)]
    assert (made.stype, made.count, made.parts[0].flags, made.parts[1].flags, made.first.flags) == (5, 2, 3, 1, 3)
    assert acme.ffi.string(made.parts[0].text) == b"m" * 200
    assert acme.ffi.string(made.first.text) == b"n" * 200
    assert len(trash) == 200


def test_what_functions_give(acme: CffiLibrary) -> None:
    """Results are numbers, structs with their type filled in, lists or bytes."""
    assert acme.given("square", "test", 12) == 144
    assert acme.given(acme.lib.square, "test", 3) == 9
    expected = {"sType": 9, "uuid": [7, 7, 7, 7], "name": "card", "part": {"flags": 0}}
    assert acme.given("about", "test", 7) == expected
    assert [int(acme.ffi.cast("uintptr_t", card)) for card in acme.listed("cards", "test")] == [16, 17]
    assert acme.bytes_of("content", "test") == b"abc"
    data = bytearray(8)
    assert acme.address(memoryview(data)[3:]) - acme.address(memoryview(data)) == 3


def test_dicts_are_structs_of_the_type_that_a_function_wants(acme: CffiLibrary) -> None:
    """Structs within a struct may be passed by pointer."""
    assert acme.given("make_layer", "test", {"parts": [{}, {}], "only": {"text": "only"}}) == 523


def test_statuses_are_exceptions(acme: CffiLibrary) -> None:
    with pytest.raises(OutOfMemoryError, match="NO_MEMORY") as caught:
        acme.given("square", "alloc", 100, requested=5)
    assert caught.value.requested == 5
    with pytest.raises(LaunchError, match=r"ACME \(8\)"):
        acme.call("fail", "launch")
