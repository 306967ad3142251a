"""A model that is open on a device: its engine, statistics, logits and embeddings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack, cast

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device
from bitnet_hal.discovery.selection import BackendStartupSummary, open_device, open_next
from bitnet_hal.errors import GpuError, UsageError

from bitnet_core.api.arguments import (
    TEXT_OR_TOKENS,
    TEXTS,
    check,
    check_options,
)
from bitnet_core.api.embedding import embed
from bitnet_core.api.figures import stats_of
from bitnet_core.api.options import EmbedSettings
from bitnet_core.engine.cache_file import load_state, save_state
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.memory_limit import limit_memory
from bitnet_core.engine.perplexity import perplexity
from bitnet_core.engine.replicas.arrivals import OtherDevices
from bitnet_core.engine.replicas.remote_engine import RemoteEngine
from bitnet_core.engine.sampling.defaults import sampling_defaults
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.worker import closed
from bitnet_core.measure.profiling import StepProfile, profile
from bitnet_core.model.source import ModelSource
from bitnet_core.options.embedding import EmbedOptions
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.kinds import checked
from bitnet_core.progress import Progress
from bitnet_core.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class OpenModel:
    """A model on a device, and a context manager that closes it; afterwards every use of the device raises UsageError.
    Threads may share it: their requests are computed together."""

    def __init__(
        self,
        source: ModelSource,
        tokenizer: Tokenizer | Future[Tokenizer],
        device: Device | RemoteEngine,
        summary: BackendStartupSummary,
        options: EngineOptions,
        progress: Progress | None = None,
        draft_model: Callable[[], Drafter] | None = None,
        before: Sequence[tuple[Device, int]] = (),
    ) -> None:
        """Create the engine on a device. device: a device, or the engine of another process, which can only serve
        requests. before: the devices of the earlier layers, with their numbers of layers."""
        self.source = source
        self._summary = summary
        self.config = options.config_of(source.config)
        self.defaults = sampling_defaults(source)
        self._remote = device if isinstance(device, RemoteEngine) else None
        if isinstance(device, RemoteEngine):
            self._engine = cast(Engine, device)
        else:
            self._engine = Engine(
                source,
                device,
                options,
                before=before,
                reopen=None if before else partial(self._reopen, options.device_memory),
                helper=partial(_open_cpu, device),
                progress=progress,
                draft_model=draft_model,
            )
        self.tokenizer = tokenizer.result() if isinstance(tokenizer, Future) else tokenizer
        self.others: OtherDevices | None = None  # further devices that serve this model, for a ReplicaSet
        self._closed = False

    @property
    def engine(self) -> Engine:
        """The engine. Raises UsageError after `close`."""
        if self._closed:
            raise closed()
        return self._engine

    @property
    def summary(self) -> BackendStartupSummary:
        """The device that was chosen, and those that failed before it; it changes if a device is lost."""
        return self._summary if self._remote is None else self._remote.summary

    @property
    def name(self) -> str:
        """The model's name, else that of its file."""
        return self.config.name or self.source.path.name

    @property
    def device(self) -> Device:
        """The device in use, which changes if one is lost."""
        return self._engine.device

    def warmup(self) -> float:
        """Compile kernels and record steps, so that the first request does not wait; returns the seconds it took."""
        began = time.perf_counter()
        self.tokenizer.prepare()
        if self.config.pooling:
            self.engine.embed([[0, 1]])
            return time.perf_counter() - began
        prompt = [token % self.config.tokens for token in range(1, min(33, self.engine.max_model_len // 2 + 1))]
        for temperature in (0.0, 1.0):
            params = self.defaults.params(temperature=temperature, seed=0)
            request = self.engine.add_request(prompt, params, max_tokens=4)
            while request.finish_reason is None:
                self.engine.step()
        return time.perf_counter() - began

    def save_state(self, path: str | PathLike[str], *, force: bool = False) -> int:
        """Write the prefix cache of this model to a file; returns the number of blocks of 64 tokens. Raises UsageError
        if the file exists, unless `force` is set, or cannot be written."""
        return save_state(self.engine, check("path", path, Path), force=force)

    def load_state(self, path: str | PathLike[str]) -> int:
        """Load a file of `save_state`, of this or another device, into free blocks of the cache; returns the number of
        blocks. Prompts with these prefixes are not computed again. Raises ModelError if the file is damaged or belongs
        to another model or kv_cache_type."""
        return load_state(self.engine, check("path", path, Path))

    def profile(self) -> list[StepProfile]:
        """Return the time of every kernel of the steps recorded so far, by the device's clock. Raises UsageError if the
        device cannot time kernels."""
        return profile(self.engine)

    def embed(
        self, texts: Sequence[str] | Sequence[Sequence[int]], **options: Unpack[EmbedSettings]
    ) -> npt.NDArray[np.float32] | npt.NDArray[np.int8]:
        """Return the vectors of texts, [texts, dimensions], pooled and normalized as the model's files say.

        Texts may be token ids, with those that begin and end a text. dimensions: number of elements to keep, from the
        first on. dtype: "float32", or "int8": each vector is scaled so that its largest magnitude is 127. truncate: cut
        long texts. Raises UsageError for a model that generates text, an empty text, and one longer than the context.
        """
        given = EmbedOptions(**check_options(options, EmbedSettings))
        return embed(self.engine, self.tokenizer, checked("texts", texts, TEXTS), given)

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return f32[T, V], the logits after every token."""
        # convert at most one token more than allowed: longer input is rejected anyway
        looked_at = tokens[: self.engine.max_model_len + 1] if isinstance(tokens, Sequence) else tokens
        check("tokens", looked_at, Sequence[int])
        return self.engine.logits(tokens)

    def perplexity(
        self,
        text: str | Sequence[int],
        *,
        stride: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> float:
        """Return the perplexity of a text: exp of the mean negative log likelihood of every token but the first, in
        windows of the context that start `stride` tokens apart (default: half the context).

        progress: called with ("scoring", tokens done, tokens in total).
        """
        stride = check("stride", stride, int | None)
        check("progress", progress, Progress | None)
        checked("text", text, TEXT_OR_TOKENS)
        ids = self.tokenizer.encode(text, add_bos=self.tokenizer.add_bos) if isinstance(text, str) else list(text)
        return perplexity(self.engine, ids, stride, progress)

    def stats(self) -> dict[str, Any]:
        """Return statistics: kernel launches (also by device), layers by device, memory of device and host, cache use,
        averages, fallbacks, the share of launches on GPUs, error counts by class and the last 100 errors."""
        return stats_of(self.engine, self.summary)

    def close(self) -> None:
        """Free the device and the file; may be called twice."""
        self._closed = True
        self._engine.close()
        self.source.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Model cannot be pickled or copied, because it owns a device and an open file: "
            "call load() in each process, and let threads share one Model"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reopen(self, limit: int | None, error: GpuError) -> Device | None:
        moved = open_next(self._summary, error)
        if moved is None:
            return None
        device, self._summary = moved
        limit_memory(device, limit)
        return device


def _open_cpu(beside: Device) -> Device:
    """Open a CPU for the layers that do not fit in the memory of a GPU."""
    device, _ = open_device("cpu", fallback=False)
    log.info("%s computes layers for %s", device.info.request, beside.info.request)
    return device
