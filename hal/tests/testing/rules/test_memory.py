"""Faulty memory: the rule meant for each fault rejects it, and a plain round trip accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bitnet_hal.device import MemoryKind, View
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice
from bitnet_hal.rounding import round_up


class Fresh(NumpyDevice):
    """A correct device that is faster because it does not query the operating system before each allocation."""

    def free_memory(self) -> int:
        return 1 << 40


class UsedMemoryNotCleared(Fresh):
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NumpyBuffer:
        buffer = super().alloc(nbytes, kind)
        buffer.data[nbytes // 2 :] = 0xCD
        return buffer


class UploadsWholeWordsOnly(Fresh):
    def upload(self, dst: View, src: memoryview) -> None:
        count = dst.nbytes // 4 * 4
        super().upload(dst.part(0, count), src[:count])


class UploadStartsOn16Bytes(Fresh):
    def upload(self, dst: View, src: memoryview) -> None:
        super().upload(View(dst.buffer, dst.offset // 16 * 16, dst.nbytes), src)


class DownloadStartsOn16Bytes(Fresh):
    def download(self, src: View, dst: memoryview) -> None:
        super().download(View(src.buffer, src.offset // 16 * 16, src.nbytes), dst)


class UploadWritesWholeWords(Fresh):
    def upload(self, dst: View, src: memoryview) -> None:
        super().upload(dst, src)
        self._own(dst.buffer).data[dst.offset + dst.nbytes :][: -dst.nbytes % 4] = 0


class UploadReadsItsSourceLater(Fresh):
    def __init__(self) -> None:
        super().__init__()
        self.pending: list[tuple[View, memoryview]] = []

    def upload(self, dst: View, src: memoryview) -> None:
        self.pending.append((dst, src))

    def download(self, src: View, dst: memoryview) -> None:
        for target, source in self.pending:
            super().upload(target, source)
        self.pending.clear()
        super().download(src, dst)


class TransfersOfAnySize(Fresh):
    def upload(self, dst: View, src: memoryview) -> None:
        count = min(dst.nbytes, src.nbytes)
        super().upload(dst.part(0, count), src[:count])


class CopyFromTheStart(Fresh):
    def copy(self, src: View, dst: View) -> None:
        super().copy(View(src.buffer, 0, src.nbytes), dst)


class CopyOfWholeWords(Fresh):
    def copy(self, src: View, dst: View) -> None:
        grow = -src.nbytes % 4
        super().copy(View(src.buffer, src.offset, src.nbytes + grow), View(dst.buffer, dst.offset, dst.nbytes + grow))


class OddOffsetsAccepted(Fresh):
    """Offsets are rounded down to words, as WebGPU's own transfers do."""

    def upload(self, dst: View, src: memoryview) -> None:
        super().upload(View(dst.buffer, dst.offset // 4 * 4, dst.nbytes), src)

    def copy(self, src: View, dst: View) -> None:
        super().copy(src, View(dst.buffer, dst.offset // 4 * 4, dst.nbytes))


class OverlappingCopiesAccepted(Fresh):
    def copy(self, src: View, dst: View) -> None:
        self.upload(dst, memoryview(self._own(src.buffer).data[src.offset : src.offset + src.nbytes].tobytes()))


class NoCopyWithinABuffer(Fresh):
    def copy(self, src: View, dst: View) -> None:
        if src.buffer is not dst.buffer:
            super().copy(src, dst)


class DoubleFreeAccepted(Fresh):
    def free(self, buffer: Any) -> None:
        if id(buffer) in self._buffers or not isinstance(buffer, NumpyBuffer):
            super().free(buffer)


class ForeignBufferAccepted(Fresh):
    def free(self, buffer: Any) -> None:
        if isinstance(buffer, NumpyBuffer):
            super().free(buffer)


class EmptyBufferAccepted(Fresh):
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NumpyBuffer:
        return super().alloc(max(nbytes, 1), kind)


class SizeRoundedUp(Fresh):
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NumpyBuffer:
        return super().alloc(round_up(nbytes, 4), kind)


class KindIgnored(Fresh):
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NumpyBuffer:
        return super().alloc(nbytes)


class OutOfMemoryIsPythons(Fresh):
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NumpyBuffer:
        if nbytes > 1 << 40:
            raise MemoryError(nbytes)
        return super().alloc(nbytes, kind)


class OutOfMemoryWithoutSizes(Fresh):
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NumpyBuffer:
        if nbytes > 1 << 40:
            raise OutOfMemoryError("no room", requested=0, backend="numpy")
        return super().alloc(nbytes, kind)


class UselessAfterOutOfMemory(Fresh):
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NumpyBuffer:
        if nbytes > 1 << 40:
            self.upload = lambda dst, src: None  # type: ignore[method-assign]  # the fault
        return super().alloc(nbytes, kind)


class FreeKeepsTheMemory(Fresh):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[object] = []

    def free(self, buffer: Any) -> None:
        self.kept.append(buffer.data if isinstance(buffer, NumpyBuffer) else None)
        super().free(buffer)


class WrapCopies(Fresh):
    def wrap(self, host: memoryview) -> NumpyBuffer | None:
        return super().wrap(memoryview(bytes(host)))


class WrapAlignsDown(Fresh):
    def wrap(self, host: memoryview) -> NumpyBuffer | None:
        data = np.frombuffer(host, dtype=np.uint8)
        return super().wrap(np.roll(data, data.ctypes.data % 2).data)


MUTANTS: list[tuple[type, str, dict[str, int]]] = [
    (UsedMemoryNotCleared, "test_a_new_buffer_is_zero", {}),
    (UploadsWholeWordsOnly, "test_round_trip", {"size": 5}),
    (UploadStartsOn16Bytes, "test_transfers_reach_their_range_only", {"offset": 12, "size": 5}),
    (DownloadStartsOn16Bytes, "test_transfers_reach_their_range_only", {"offset": 4, "size": 1}),
    (UploadWritesWholeWords, "test_transfers_reach_their_range_only", {"offset": 20, "size": 3}),
    (UploadReadsItsSourceLater, "test_upload_is_done_with_its_source_on_return", {}),
    (TransfersOfAnySize, "test_transfers_of_the_wrong_size_are_refused", {}),
    (CopyFromTheStart, "test_copy", {"size": 7, "source": 12, "target": 20}),
    (CopyOfWholeWords, "test_copy", {"size": 7, "source": 12, "target": 20}),
    (OddOffsetsAccepted, "test_transfers_at_odd_offsets_are_refused", {"offset": 2}),
    (OverlappingCopiesAccepted, "test_copies_that_overlap_are_refused", {}),
    (NoCopyWithinABuffer, "test_copy_within_a_buffer", {}),
    (DoubleFreeAccepted, "test_double_free_is_refused", {}),
    (ForeignBufferAccepted, "test_a_foreign_buffer_is_refused", {}),
    (EmptyBufferAccepted, "test_a_buffer_has_at_least_one_byte", {"nbytes": 0}),
    (SizeRoundedUp, "test_a_buffer_knows_its_size_and_kind", {}),
    (KindIgnored, "test_a_buffer_knows_its_size_and_kind", {}),
    (OutOfMemoryIsPythons, "test_running_out_of_memory_tells_the_sizes", {}),
    (OutOfMemoryWithoutSizes, "test_running_out_of_memory_tells_the_sizes", {}),
    (UselessAfterOutOfMemory, "test_running_out_of_memory_tells_the_sizes", {}),
    (FreeKeepsTheMemory, "test_ten_thousand_buffers_leave_nothing_behind", {}),
    (WrapCopies, "test_wrapped_memory_is_the_memory_itself", {"offset": 0}),
    (WrapAlignsDown, "test_wrapped_memory_is_the_memory_itself", {"offset": 1}),
]


@pytest.mark.parametrize(("device", "rule", "case"), MUTANTS, ids=[device.__name__ for device, _, _ in MUTANTS])
def test_a_faulty_memory_is_rejected(device: type, rule: str, case: dict[str, int], judge: Callable[..., str]) -> None:
    assert judge(Fresh, rule, **case) == ""
    assert judge(device, "test_round_trip", size=64) == ""
    assert judge(device, rule, **case)
