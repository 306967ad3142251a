"""Codes of Q2_0 that the device converts: the same bytes in its memory as if the host did, and the same errors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.fit import predict
from bitnet_core.errors import ModelError
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary import q2_0
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan import weight_memory
from bitnet_core.plan.upload import upload
from bitnet_hal.device import DeviceType, TransferMode, whole
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.reference.describe import numpy_info

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = (
    *(f"qwen3/qwen3-untied/{name}.gguf" for name in ("Q2_0-g64", "Q2_0-g128", "PQ2_0")),
    "bonsai2/rotated-PQ2_0-MTP-Q8_0.gguf",
)
OFFERED = frozenset({*numpy_info().kernels, "repack_q2_0"})
Edit = Callable[[np.ndarray], None]


def memory(path: Path, device: Any) -> list[bytes]:
    """Return the contents of all buffers of a model's weights."""
    with closing(open_model(path)) as source:
        weights = upload(source, device, 16)
    found = []
    for buffer in weights._buffers:
        data = bytearray(buffer.nbytes)
        device.download(whole(buffer), memoryview(data))
        found.append(bytes(data))
    weights.free(device)
    assert not device.inner._buffers
    return found


def copying(faulty: Any, **info: Any) -> Any:
    return faulty(transfer=TransferMode.EXPLICIT_COPY, **info)


def edited(tmp_path: Path, edit: Edit) -> Path:
    """Return a file of 64 columns a scale with a changed block u8[18]: the last one of a matrix."""
    data = np.fromfile(GOLDEN / FILES[0], np.uint8)
    with closing(open_model(GOLDEN / FILES[0])) as source:
        tensor = source._tensors["blk.1.ffn_down"]
        at = data.tobytes().index(source._file.data(tensor).tobytes())
    edit(data[at + tensor.nbytes - 18 : at + tensor.nbytes])
    data.tofile(tmp_path / "edited.gguf")
    return tmp_path / "edited.gguf"


@pytest.mark.parametrize("chunk", [1 << 20, 700])
@pytest.mark.parametrize("file", FILES)
def test_the_device_has_the_same_bytes(faulty: Any, file: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = memory(GOLDEN / file, copying(faulty))
    monkeypatch.setattr(weight_memory, "UPLOAD_CHUNK", chunk)
    monkeypatch.setattr(q2_0, "_in_planes", lambda *_: pytest.fail("the host converts codes"))
    monkeypatch.setattr("bitnet_core.formats.gguf.ternary.sample", lambda *_: (np.ones(1, np.float32), 128, 0.5))
    device = copying(faulty, kernels=OFFERED)
    assert memory(GOLDEN / file, device) == expected
    assert device.calls["launch"]


def test_a_device_that_shares_memory_converts_nothing(faulty: Any) -> None:
    device = faulty(kernels=OFFERED)
    memory(GOLDEN / FILES[0], device)
    assert "launch" not in device.calls


def test_the_host_converts_if_a_block_of_zeros_has_a_scale(faulty: Any, tmp_path: Path) -> None:
    def zeros(block: np.ndarray) -> None:
        block[:2] = np.array([7], "<f2").view(np.uint8)
        block[2:] = 0x55

    path = edited(tmp_path, zeros)
    assert memory(path, copying(faulty, kernels=OFFERED)) == memory(path, copying(faulty))


@pytest.mark.parametrize("scale", [np.nan, -1, np.inf])
def test_the_invalid_scale_of_a_block_of_zeros_is_ignored(faulty: Any, tmp_path: Path, scale: float) -> None:
    def invalid(block: np.ndarray) -> None:
        block[:2] = np.array([scale], "<f2").view(np.uint8)
        block[2:] = 0x55

    path = edited(tmp_path, invalid)
    assert memory(path, copying(faulty, kernels=OFFERED)) == memory(path, copying(faulty))


def test_illegal_codes_are_counted(faulty: Any, tmp_path: Path) -> None:
    def illegal(block: np.ndarray) -> None:
        block[9] = 0xF1

    path = edited(tmp_path, illegal)
    device = copying(faulty, kernels=OFFERED)
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_down.*illegal ternary code 3 \(twice the scale\) in 2 of"):
        memory(path, device)
    assert not device.inner._buffers


def test_the_memory_of_blocks_does_not_decide_whether_a_model_loads(capped: Any) -> None:
    """The least memory leaves no room for the blocks of the embedding: the host converts."""
    options = EngineOptions(max_sequences=1, prefill_chunk=1, context=16, kv_cache_type="int8")
    info = {"type": DeviceType.GPU, "transfer": TransferMode.EXPLICIT_COPY, "kernels": OFFERED}
    with closing(open_model(GOLDEN / "qwen3/qwen3-tied/Q2_0-g128.gguf")) as source:
        least = predict(source, capped(1 << 30, **info), options).least.loaded
        Engine(source, capped(least, **info), options).free()
        with pytest.raises(OutOfMemoryError):
            Engine(source, capped(least - 1, **info), options)
