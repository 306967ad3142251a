"""The engine: serves generation requests with a model on devices, and recovers from lack of memory and lost devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Unpack

import numpy as np
import numpy.typing as npt
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.launcher import RecordedLaunches

from bitnet_core.engine.embedding import groups, pooled
from bitnet_core.engine.executor import Executor
from bitnet_core.engine.kv_cache.block_pool import BlockPool, block_hashes
from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.kv_cache.checkpoints import StateCheckpoints
from bitnet_core.engine.request.new_request import RequestOptions, check_tokens, integers, new_request
from bitnet_core.engine.request.request import FinishReason, Request
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.schedule.results import RequestOutput
from bitnet_core.model.config import PoolingMode
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.plan.memory import DeviceMemoryPlan


class Engine(Executor):
    """The requests of a model on its devices; the arguments are those of Executor.

    Threads may share an engine: every method that computes takes `lock`. A caller that inspects a request and then runs
    a step must hold it for both.
    """

    @property
    def block_pool(self) -> BlockPool:
        """The block pool of the KV cache."""
        return self.worker.block_pool

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens of one request, prompt included."""
        return self.scheduler.admission.max_model_len

    def add_request(
        self, tokens: Iterable[int], sampling: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Request:
        """Queue a prompt; arguments and errors as in new_request.new_request."""
        request = self.new_request(tokens, sampling, **options)
        self.queue_request(request)
        return request

    def new_request(
        self, tokens: Iterable[int], sampling: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Request:
        """Make a request for `queue_request`; arguments and errors as in new_request.new_request."""
        return new_request(self.config, self.max_model_len, tokens, sampling, **options)

    def queue_request(self, request: Request) -> None:
        """Queue a request of `new_request`, or continue one that another engine of this model gave up.

        Raises UsageError if it is too long for the cache of this device.
        """
        with self.lock:
            self.scheduler.add_request(request)

    def cached_prefix(self, request: Request) -> int:
        """Return how many tokens of a request are in the prefix cache now; any thread may call it without `lock`."""
        if request.scored is not None:
            return 0
        return KV_BLOCK * self.block_pool.count_cached(block_hashes(request, len(request.tokens) - 1))

    def finish_request(self, request: Request, reason: FinishReason = "cancelled") -> None:
        """End a request now."""
        with self.lock:
            self.scheduler.finish_request(request, reason)

    def fail_request(self, request: Request, error: Exception) -> RequestOutput:
        """End a request with an error; it need not be queued here."""
        with self.lock:
            return self.scheduler.fail_request(request, error)

    def set_pace(self, seconds: float) -> None:
        """Set the longest interval in seconds between two reads of greedy tokens (see StepCountPolicy)."""
        self.scheduler.multi_step.step_count.seconds = seconds

    def abort_request(self, request: Request) -> None:
        """End a request before the next step; for finalizers, which may run in any thread at any time."""
        self.scheduler.abort_request(request)

    def fail_all(self, error: Exception) -> list[RequestOutput]:
        """End every request with an error."""
        with self.lock:
            return self.scheduler.fail_all(error)

    def score(self, tokens: Sequence[int], use: Callable[[int, npt.NDArray[np.float32]], None], chunk: int = 0) -> None:
        """Compute the logits after every token and call `use(first position, f32[n, V])` for each part of n <= chunk
        tokens (0: the prefill chunk). The calls restart at position 0 after lack of memory or a lost device."""
        self._check_length(tokens)
        ids = integers("tokens", tokens)
        check_tokens(ids, self.config.vocab)
        with self.lock:
            self._guarded(lambda: self._score(ids, use, chunk))

    def logits(self, tokens: Sequence[int], chunk: int = 0) -> npt.NDArray[np.float32]:
        """Return the f32[T, V] logits after every token, computed in chunks of `chunk` rows."""
        self._check_length(tokens)
        out = np.empty((len(tokens), self.config.vocab), np.float32)

        def keep(first: int, part: npt.NDArray[np.float32]) -> None:
            out[first : first + len(part)] = part

        self.score(tokens, keep, chunk)
        return out

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return f32[texts, H], the pooled last hidden states of texts, not normalized.

        Raises UsageError for a model that generates text, and for a text that is empty, longer than the context, or has
        tokens that the model does not have.
        """
        pooling = self.config.pooling
        if pooling is None:
            raise UsageError("the model generates text and states no pooling: it does not embed texts")
        lists = [integers("tokens", tokens) for tokens in texts]
        for ids in lists:
            self._check_length(ids)
            check_tokens(ids, self.config.vocab)
        out = np.empty((len(lists), self.config.hidden), np.float32)
        for group in groups(lists, self.scheduler.chunk):
            with self.lock:
                out[group] = self._guarded(partial(self._embed, lists[group], pooling.mode))
        return out

    def averages(self) -> dict[str, float]:
        """Return the seconds of all steps with and without prompts, the seconds per decoded token, and the bytes copied
        per token."""
        counts = self.scheduler.counts
        seconds = self.scheduler.seconds
        tokens = counts["prompt_tokens"] + counts["generated_tokens"]
        return {
            "prefill_seconds": seconds["prefill"],
            "decode_seconds": seconds["decode"],
            "seconds_per_token": seconds["decode"] / max(1, counts["decoded_tokens"]),
            "moved_bytes_per_token": self.moved_bytes / max(1, tokens),
        }

    def figures(self) -> dict[str, int | float]:
        """Return the values of GAUGES and COUNTERS by name."""
        pool = self.block_pool
        counts = self.scheduler.counts
        return {
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "cache_use": pool.owned / max(1, pool.total),  # the pool has no blocks while a device is being opened
            "cached_tokens": pool.shared * KV_BLOCK,
            **counts,
            "evictions": counts["evictions"] + pool.evictions,
        }

    @property
    def layers_by_device(self) -> dict[str, int]:
        """Number of layers on each device in use, by device request, in the order of the layers."""
        return {part.device.info.request: part.config.n_layers for part in self.worker.parts}

    def memory(self) -> dict[str, int | float]:
        """Return the memory figures of Worker.memory. Raises as check_usable."""
        self.check_usable()
        return self.worker.memory()

    def memory_plan(self) -> DeviceMemoryPlan:
        """Return the memory that the engine needs on its device with its current settings."""
        return self.memory_plans()[self.device.info.request]

    def memory_plans(self) -> dict[str, DeviceMemoryPlan]:
        """Return the memory that the engine needs on each of its devices, by device request."""
        return {part.device.info.request: self.worker.plan(part) for part in self.worker.parts}

    def cache(self) -> KVCache:
        """Return the KV cache on the device in use; the caller must hold `lock`."""
        return self._ready().cache

    def cached_blocks(self) -> list[tuple[bytes, int]]:
        """Return hash and number of every full block of the cache; the caller must hold `lock`."""
        self._ready()
        return self.block_pool.cached

    @property
    def state_checkpoints(self) -> StateCheckpoints:
        """The state checkpoints of delta nets; the caller must hold `lock`."""
        self._ready()
        return self.scheduler.admission.checkpoints

    def recordings(self) -> dict[str, RecordedLaunches]:
        """Return the recorded steps by name, for profiling an engine without requests."""
        return self._ready().recordings()

    def _embed(self, texts: Sequence[Sequence[int]], mode: PoolingMode) -> npt.NDArray[np.float32]:
        return pooled(self._ready(), self.scheduler, texts, mode)

    def _score(self, ids: list[int], use: Callable[[int, npt.NDArray[np.float32]], None], chunk: int) -> None:
        """Compute logits in a borrowed request slot, so that running requests keep theirs."""
        runner = self._ready()
        chunk = min(chunk or self.scheduler.chunk, self.scheduler.chunk)
        with self.scheduler.admission.borrow_index(len(ids)) as req_index:
            for start in range(0, len(ids), chunk):
                part = tuple(ids[start : start + chunk])
                use(start, runner.forward([ScheduledTokens(req_index, start, part)], range(len(part)), len(part)))

    def _check_length(self, tokens: Sequence[int]) -> None:
        if not 0 < len(tokens) <= self.max_model_len:
            raise UsageError(f"a text must have 1 to {self.max_model_len} tokens, not {len(tokens)}")
