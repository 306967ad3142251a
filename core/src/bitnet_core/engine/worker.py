"""A model on its devices: weights, KV cache and model runner, each created when first used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from bitnet_hal.device import Device
from bitnet_hal.errors import GpuError
from bitnet_hal.launcher import Launcher
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.capacity import Concurrency, cache_blocks, free_share
from bitnet_core.engine.kv_cache.block_pool import BlockPool
from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.part import Part, closed
from bitnet_core.engine.run.earlier_layers import EarlierLayers
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.run.request_groups import RequestGroups
from bitnet_core.engine.schedule.scheduler import Scheduler
from bitnet_core.engine.speculation.choice import verify_rows
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.device_weights import DeviceWeights
from bitnet_core.plan.lm_head_int8 import int8_bytes
from bitnet_core.plan.memory import DeviceMemoryPlan, plan_memory
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.progress import Progress

__all__ = ["Worker", "closed"]


class Worker:
    """Everything that an engine keeps on its devices; attaches each new runner to the scheduler.

    parts: the layers of each device in order; the engine's device has the last ones. blocks: number of cache blocks; a
    change takes effect with the next runner. sequences: maximum number of concurrent requests; checkpoints, spares:
    numbers of states as in Concurrency; verify_rows: maximum rows of a step of the next runner that verifies draft
    tokens. ready: True while a runner exists.
    """

    def __init__(
        self,
        source: ModelSource,
        placed: Sequence[tuple[Device, int]],
        options: EngineOptions,
        scheduler: Scheduler,
        room: Concurrency,
    ) -> None:
        """Divide the layers among devices. placed: the devices in order, with their numbers of layers."""
        self.source = source
        self.options = options
        self.sequences = room.requests
        self.checkpoints = room.checkpoints
        self.spares = room.spares
        self.config = options.config_of(source.config)
        self._scheduler = scheduler
        self.parts: list[Part] = []
        first = 0
        for device, layers in placed:
            self.parts.append(Part(source, device, options, self.config.part(first, layers)))
            first += layers
        self.verify_rows = self._most_verified()
        self.blocks = min(self._blocks(part) for part in self.parts)
        self.verify_rows = 0
        self.block_pool = BlockPool(0)
        self._runner: Runner | RequestGroups | None = None
        self.ready = False

    @property
    def device(self) -> Device:
        """The device with the last layers and the head."""
        return self.parts[-1].device

    def _most_verified(self) -> int:
        """Return the rows of steps that verify draft tokens, which one device with the whole model may run."""
        if len(self.parts) > 1:
            return 0
        chunk = self._scheduler.chunk
        return verify_rows(self.options, self.config, self.device.info, self.sequences, chunk)

    @property
    def launcher(self) -> Launcher:
        """The launcher of `device`."""
        return self.parts[-1].launcher

    @property
    def pool(self) -> MemoryPool:
        """The buffer pool of `device`."""
        return self.parts[-1].pool

    @property
    def loaded(self) -> bool:
        """True if the weights are on the devices."""
        return all(part.loaded for part in self.parts)

    @property
    def weights(self) -> DeviceWeights:
        """The weights on `device`. Raises UsageError if they are not loaded or were freed."""
        return self.parts[-1].weights

    @property
    def states(self) -> int:
        """Number of states of each delta net."""
        return self.sequences + self.checkpoints + self.spares

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values and of the states of delta nets, on all devices."""
        return sum(part.cache_bytes(self.blocks, self.states) for part in self.parts)

    @property
    def moved_bytes(self) -> int:
        """Bytes that steps have copied between the host and the devices."""
        return sum(part.pool.moved_bytes for part in self.parts)

    @property
    def launches(self) -> dict[str, Counter[str]]:
        """Number of launches by device request and kernel name."""
        return {part.device.info.request: part.launcher.counts for part in self.parts}

    def plan(self, part: Part, *, cache: bool = True) -> DeviceMemoryPlan:
        """Return the memory that a part needs with the current sizes. cache: include keys, values and states."""
        int8 = part.loaded and part.weights.lm_head_int8 is not None
        return plan_memory(
            self.source,
            part.config,
            part.device.info,
            context=self._scheduler.context,
            sequences=self.sequences,
            chunk=self._scheduler.chunk,
            verify_rows=self.verify_rows,
            groups=self.groups,
            kv_cache=part.cache_bytes(self.blocks, self.states) if cache else 0,
            lm_head_int8=int8_bytes(self.config.vocab, self.config.hidden) if int8 else 0,
        )

    def _blocks(self, part: Part) -> int:
        """Return the cache blocks for which the device of a part has memory."""
        # kv_cache_size is that of the whole cache
        config = part.config if self.options.kv_cache_size is None else self.config
        share = free_share(part.device, self.plan(part, cache=False).total)
        more = self.checkpoints + self.spares
        return cache_blocks(self.options, config, part.device.info, self.sequences, share, more)

    def load(self, progress: Progress | None) -> None:
        """Load the weights if needed. Raises UnsupportedError if a device lacks kernels for this architecture."""
        for part in self.parts:
            part.load(self._scheduler.context, progress)

    def runner(self) -> Runner | RequestGroups:
        """Return the runner; creates it with an empty cache if there is none."""
        if self._runner is None:
            caches: list[KVCache] = []
            try:
                self._runner = self._new_runner(caches)
            except BaseException:
                for cache in caches:
                    cache.free()
                raise
            self.block_pool = BlockPool(self.blocks, self.options.eviction)
            self._scheduler.attach(self._runner, self.block_pool)
            self.ready = True
        return self._runner

    @property
    def groups(self) -> int:
        """Number of groups of requests: one per device, so that all devices have work."""
        return min(len(self.parts), self.sequences)

    def _new_runner(self, caches: list[KVCache]) -> Runner | RequestGroups:
        """Create a runner with a cache on every device, and append the caches to `caches`."""
        sizes = self.blocks, self.sequences, self._scheduler.context, self.checkpoints, self.spares
        *before, last = self.parts
        for part in before:
            caches.append(part.cache(*sizes))
        caches.append(last.cache(*sizes, tuple(caches)))
        if self.groups == 1:
            return self._group_runner(caches)
        runners: list[Runner] = []
        try:
            for _ in range(self.groups):
                runners.append(self._group_runner(caches))
        except BaseException:
            for runner in runners:
                runner.free()
            raise
        return RequestGroups(runners)

    def _group_runner(self, caches: Sequence[KVCache]) -> Runner:
        """Create the runner of a group of requests."""
        *before, last = self.parts
        rows = ceil_div(self.sequences, self.groups)
        earlier: list[EarlierLayers] = []
        try:
            for part, cache in zip(before, caches[:-1], strict=True):
                earlier.append(part.earlier_layers(cache, rows))
            runner = Runner(
                last.device,
                last.launcher,
                last.pool,
                last.weights,
                caches[-1],
                self.options.kv_cache_type,
                fused=not self.options.deterministic,
                earlier=earlier,
                verify_rows=self.verify_rows,
                chunk=self._scheduler.chunk,
                rows=rows,
                lock=last.lock if self.groups > 1 else None,
            )
            runner.compile_ahead([1])
            return runner
        except BaseException:
            for layers in earlier:
                layers.free()
            raise

    def memory(self) -> dict[str, int | float]:
        """Return the bytes on all devices by use, and the statistics of the buffer pools."""
        sums: Counter[str] = Counter()
        for part in self.parts:
            sums.update(part.memory())
        stats = [part.pool.stats() for part in self.parts]
        hits = sum(pool.hits for pool in stats)
        return {
            **sums,
            "kv_cache_bytes": self.cache_bytes,
            "pool_hit_rate": hits / max(1, hits + sum(pool.misses for pool in stats)),
            "cache_blocks": self.blocks,
        }

    def drop_scratch(self) -> bool:
        """Free prompt scratch and the pools' idle buffers; False if there were none."""
        dropped = self._runner is not None and self._runner.drop_scratch()
        return sum(part.pool.trim() for part in self.parts) > 0 or dropped

    def drop_runner(self) -> None:
        """Free the cache and all scratch; running requests are recomputed."""
        if self._runner is not None:
            self.ready = False
            self._scheduler.detach()
            self._runner.free()
            self._runner = None
        for part in self.parts:
            part.pool.trim()

    def abandon(self) -> None:
        """Drop weights and runner without freeing them: a device is lost, and the others are about to be closed."""
        self.ready = False
        self._runner = None
        self.block_pool = BlockPool(0)
        for part in self.parts:
            part.abandon()

    def free(self) -> None:
        """Free everything on the devices, which stay open; may be called twice."""
        if not any(part.loaded for part in self.parts):  # never loaded, or abandoned with a lost device
            return
        self.drop_runner()
        for part in self.parts:
            part.free()

    def close_devices(self) -> None:
        """Close the devices, the engine's last. Raises the GpuError of that one only."""
        for part in self.parts[:-1]:
            with suppress(GpuError):
                part.device.close()
        self.device.close()
