"""Rules about memory: allocation, transfers, copies, wrapping, and exhaustion."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt
import pytest

from bitnet_hal.device import DeviceType, MemoryKind, View, whole
from bitnet_hal.errors import OutOfMemoryError, UnsupportedError
from bitnet_hal.testing.resident import resident
from bitnet_hal.testing.workbench import Bench

SIZES = (1, 2, 3, 4, 5, 31, 63, 64, 65, 255, 256, 257, 4095, 4097, 65537, (1 << 20) + 1, (16 << 20) + 3)
"""Sizes in bytes: one, around powers of two, and a few odd sizes."""
LARGE = 512 << 20
CYCLES = 10_000
CYCLE_BYTES = 16 << 10
GROWTH = 48 << 20
"""Bytes by which a process may grow over CYCLES buffers of CYCLE_BYTES (160 MB if all of them leaked)."""


def _noise(count: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)


class MemoryRules:
    """Rules about memory; every transfer is compared byte by byte."""

    @pytest.mark.parametrize("size", SIZES)
    def test_round_trip(self, bench: Bench, size: int) -> None:
        """A download must return the uploaded bytes, at every size."""
        view = whole(bench.alloc(size))
        sent = _noise(size)
        bench.write(view, sent)
        assert (bench.read(view) == sent).all(), f"{size} bytes differ after a round trip"

    def test_round_trip_of_512_mb(self, bench: Bench) -> None:
        """One buffer of 512 MB must work, on devices with enough memory of their own."""
        if bench.info.type in (DeviceType.CPU, DeviceType.SOFTWARE):
            pytest.skip("the device uses host memory")
        room = bench.device.free_memory()
        limit = bench.info.max_allocation or LARGE
        if room < 3 * LARGE or limit < LARGE:
            pytest.skip(f"{LARGE:,} bytes do not fit: {room:,} are free, an allocation may have {limit:,}")
        view = whole(bench.alloc(LARGE))
        sent = np.zeros(LARGE, dtype=np.uint8)
        for start in (0, (1 << 28) - 500, 3 << 27, LARGE - 1000):
            sent[start : start + 1000] = _noise(1000)
        bench.write(view, sent)
        assert np.array_equal(bench.read(view), sent), "512 MB differ after a round trip"

    def test_a_new_buffer_is_zero(self, bench: Bench) -> None:
        """A new buffer must be zero, even if its memory was used before."""
        for size in (1, 1000, 1 << 20):
            first = bench.device.alloc(size)
            bench.write(whole(first), np.full(size, 0xFF, dtype=np.uint8))
            bench.device.free(first)
            assert not bench.read(whole(bench.alloc(size))).any(), f"a new buffer of {size} bytes is not zero-filled"

    def test_a_buffer_knows_its_size_and_kind(self, bench: Bench) -> None:
        """nbytes must be the requested size; a kind must be granted or raise UnsupportedError."""
        for kind in MemoryKind:
            try:
                buffer = bench.device.alloc(77, kind)
            except UnsupportedError:
                assert kind is not MemoryKind.DEVICE, "every device must have DEVICE memory"
                continue
            assert buffer.nbytes == 77, f"a buffer of 77 bytes has nbytes {buffer.nbytes}"
            assert buffer.kind is kind, f"a {kind.value} buffer has kind {buffer.kind.value}"
            bench.write(whole(buffer), _noise(77))
            assert (bench.read(whole(buffer)) == _noise(77)).all(), f"{kind.value} memory: a round trip changed bytes"
            bench.device.free(buffer)

    @pytest.mark.parametrize(("offset", "size"), [(0, 1), (4, 1), (12, 5), (20, 3), (64, 64), (252, 259), (996, 1)])
    def test_transfers_reach_their_range_only(self, bench: Bench, offset: int, size: int) -> None:
        """Transfers of any size at any multiple of 4 must touch exactly the bytes of the view."""
        buffer = bench.alloc(1000)
        contents = _noise(1000)
        bench.write(whole(buffer), contents)
        contents[offset : offset + size] ^= 0xFF
        bench.write(View(buffer, offset, size), contents[offset : offset + size])
        assert (bench.read(whole(buffer)) == contents).all(), f"upload of {size} bytes at {offset} left its view"
        part = bench.read(View(buffer, offset, size))
        assert (part == contents[offset : offset + size]).all(), f"download of {size} bytes at {offset} is wrong"

    def test_upload_is_done_with_its_source_on_return(self, bench: Bench) -> None:
        """`upload` must not read its source after it returns."""
        view = whole(bench.alloc(1 << 20))
        source = _noise(1 << 20)
        sent = source.copy()
        bench.device.upload(view, source.data)
        source[:] = 0
        assert (bench.read(view) == sent).all(), "the device read the source after upload had returned"

    def test_transfers_of_the_wrong_size_are_refused(self, bench: Bench) -> None:
        """Transfers must raise ValueError if sizes differ, and write nothing."""
        view = whole(bench.alloc(64))
        with pytest.raises(ValueError):
            bench.device.upload(view, memoryview(bytes(63)))
        with pytest.raises(ValueError):
            bench.device.download(view, memoryview(bytearray(65)))
        with pytest.raises(ValueError):
            bench.device.copy(view, whole(bench.alloc(32)))
        assert not bench.read(view).any()

    @pytest.mark.parametrize(("size", "source", "target"), [(1, 0, 0), (7, 12, 20), (256, 0, 64), (70_001, 12, 4)])
    def test_copy(self, bench: Bench, size: int, source: int, target: int) -> None:
        """`copy` between two buffers must work for any size at any multiple of 4."""
        a = bench.alloc(80_000)
        b = bench.alloc(80_000)
        contents = _noise(80_000)
        want = _noise(80_001)[1:].copy()
        bench.write(whole(a), contents)
        bench.write(whole(b), want)
        bench.device.copy(View(a, source, size), View(b, target, size))
        want[target : target + size] = contents[source : source + size]
        assert (bench.read(whole(b)) == want).all(), "the copied range, or the bytes around it, are wrong"
        assert (bench.read(whole(a)) == contents).all(), "the source of a copy was changed"

    @pytest.mark.parametrize("offset", [1, 2, 7])
    def test_transfers_at_odd_offsets_are_refused(self, bench: Bench, offset: int) -> None:
        """Transfers must raise ValueError for an offset that is not a multiple of 4, and write nothing."""
        odd = View(bench.alloc(64), offset, 8)
        even = View(bench.alloc(64), 0, 8)
        for refused in (
            lambda: bench.write(odd, _noise(8)),
            lambda: bench.read(odd),
            lambda: bench.device.copy(even, odd),
            lambda: bench.device.copy(odd, even),
        ):
            with pytest.raises(ValueError):
                refused()
        assert not bench.read(whole(odd.buffer)).any()

    def test_copies_that_overlap_are_refused(self, bench: Bench) -> None:
        """`copy` must raise ValueError for overlapping ranges of one buffer, and write nothing."""
        buffer = bench.alloc(64)
        contents = _noise(64)
        bench.write(whole(buffer), contents)
        for source, target in ((0, 4), (4, 0), (8, 8)):
            with pytest.raises(ValueError):
                bench.device.copy(View(buffer, source, 32), View(buffer, target, 32))
        assert (bench.read(whole(buffer)) == contents).all()

    def test_copy_within_a_buffer(self, bench: Bench) -> None:
        """`copy` must work between two separate ranges of one buffer."""
        buffer = bench.alloc(4096)
        contents = _noise(4096)
        bench.write(whole(buffer), contents)
        bench.device.copy(View(buffer, 100, 1000), View(buffer, 2048, 1000))
        contents[2048:3048] = contents[100:1100]
        assert (bench.read(whole(buffer)) == contents).all()

    @pytest.mark.parametrize("nbytes", [0, -1])
    def test_a_buffer_has_at_least_one_byte(self, bench: Bench, nbytes: int) -> None:
        """`alloc` must raise ValueError for less than one byte."""
        with pytest.raises(ValueError):
            bench.device.alloc(nbytes)

    def test_double_free_is_refused(self, bench: Bench) -> None:
        """A second `free` must raise ValueError, and the device must still work."""
        buffer = bench.device.alloc(64)
        bench.device.free(buffer)
        with pytest.raises(ValueError):
            bench.device.free(buffer)
        bench.write(whole(bench.alloc(64)), _noise(64))

    def test_a_foreign_buffer_is_refused(self, bench: Bench) -> None:
        """`free` must raise ValueError for an object that is not a device's buffer."""

        class Foreign:
            nbytes = 64
            kind = MemoryKind.DEVICE

        with pytest.raises(ValueError):
            bench.device.free(Foreign())

    def test_running_out_of_memory_tells_the_sizes(self, bench: Bench) -> None:
        """OutOfMemoryError must hold the requested and the free bytes, and the device must still work."""
        asked = 1 << 60
        with pytest.raises(OutOfMemoryError) as caught:
            bench.device.alloc(asked)
        assert caught.value.requested == asked, f"requested is {caught.value.requested}, not {asked}"
        assert -1 <= caught.value.free < asked, f"free is {caught.value.free}"
        assert caught.value.backend == bench.backend.name, "the error does not name the backend"
        view = whole(bench.alloc(64))
        bench.write(view, _noise(64))
        assert (bench.read(view) == _noise(64)).all(), "the device no longer works after running out of memory"

    def test_free_memory_is_a_number_of_bytes(self, bench: Bench) -> None:
        """`free_memory` must return bytes, or -1 if the driver does not report them."""
        assert bench.device.free_memory() >= -1

    def test_ten_thousand_buffers_leave_nothing_behind(self, bench: Bench) -> None:
        """Neither the process nor the device's used memory may grow."""
        device = bench.device
        contents = memoryview(bytes(CYCLE_BYTES))
        for cycle in range(CYCLES + 100):
            if cycle == 100:  # the first cycles fill the driver's caches
                before = resident()
                free = device.free_memory()
            buffer = device.alloc(CYCLE_BYTES)
            device.upload(whole(buffer), contents)
            device.free(buffer)
        device.synchronize()
        grown = resident() - before
        assert grown < GROWTH, f"{CYCLES:,} buffers of {CYCLE_BYTES:,} bytes left {grown:,} bytes in the process"
        if free >= 0 and bench.info.type is DeviceType.GPU:  # CPUs share memory with other programs
            lost = free - device.free_memory()
            assert lost < GROWTH, f"{CYCLES:,} buffers of {CYCLE_BYTES:,} bytes left {lost:,} bytes on the device"

    @pytest.mark.parametrize("offset", [0, 4096, 1])
    def test_wrapped_memory_is_the_memory_itself(self, bench: Bench, offset: int) -> None:
        """A wrapped buffer must show later writes of the host, and freeing it must not touch the host's memory."""
        host = mmap.mmap(-1, 64 << 10)
        host[:] = _noise(64 << 10).tobytes()
        part = memoryview(host)[offset : offset + (32 << 10)]
        buffer = bench.device.wrap(part)
        if buffer is None:
            return  # allowed by the contract: the caller copies instead
        assert buffer.nbytes == part.nbytes
        same = bench.read(whole(buffer)).tobytes() == bytes(
            part
        )  # outside the assert: pytest takes half a minute to show them
        assert same, "a wrapped buffer does not hold the host's bytes"
        part[7] ^= 0xFF
        same = bench.read(whole(buffer)).tobytes() == bytes(part)
        assert same, "a wrapped buffer is a copy of the host's bytes"
        bench.device.free(buffer)
        assert part[7] == host[offset + 7]
