"""A model on one device: weights, KV cache and model runner, each created when first used."""

from __future__ import annotations

from bitnet_hal.device import Device
from bitnet_hal.discovery.registry import kernels_hash
from bitnet_hal.errors import UnsupportedError, UsageError
from bitnet_hal.launcher import Launcher
from bitnet_hal.tuning.measured import tilings

from bitnet_core.engine.capacity import Concurrency, cache_blocks, free_share
from bitnet_core.engine.kv_cache.block_pool import BlockPool
from bitnet_core.engine.kv_cache.cache import KVCache, cache_bytes
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.schedule.scheduler import Scheduler
from bitnet_core.engine.speculation.choice import verify_rows
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import AutoOnOff, EngineOptions
from bitnet_core.plan.device_weights import DeviceWeights
from bitnet_core.plan.kernels import needed_kernels
from bitnet_core.plan.lm_head_int8 import add_lm_head_int8
from bitnet_core.plan.memory import plan_memory
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.upload import upload
from bitnet_core.progress import Progress


def closed() -> UsageError:
    """Return the error for uses of a model after `close`."""
    return UsageError("the model is closed")


class Worker:
    """Everything an engine keeps on a device; attaches each new runner to the scheduler.

    blocks: number of cache blocks, by the options; a smaller number takes effect with the next runner. sequences:
    largest number of concurrent requests; checkpoints, spares: numbers of states as in Concurrency; verify_rows:
    largest number of rows of a step that verifies draft tokens, of the next runner. ready: True while a runner exists.
    """

    def __init__(
        self,
        source: ModelSource,
        device: Device,
        options: EngineOptions,
        scheduler: Scheduler,
        room: Concurrency,
    ) -> None:
        self.source = source
        self.device = device
        self.options = options
        self.sequences = room.requests
        self.checkpoints = room.checkpoints
        self.spares = room.spares
        self.config = options.config_of(source.config)
        measured = {} if options.deterministic else tilings(device.info, kernels_hash)
        self.launcher = Launcher(device, measured)
        self.pool = MemoryPool(device, options.pool)
        rows = verify_rows(options, self.config, device.info, room.requests, scheduler.chunk)
        plan = plan_memory(
            source,
            kv_cache=0,
            sequences=room.requests,
            chunk=scheduler.chunk,
            verify_rows=rows,
            prediction=self.config.prediction_head,
        )
        share = free_share(device, plan.total)
        self.blocks = cache_blocks(options, self.config, device.info, room.requests, share, room.more_states)
        self.block_pool = BlockPool(0)
        self.verify_rows = 0
        self._scheduler = scheduler
        self._weights: DeviceWeights | None = None
        self._runner: Runner | None = None
        self.ready = False

    @property
    def loaded(self) -> bool:
        """True if the weights are on the device."""
        return self._weights is not None

    @property
    def weights(self) -> DeviceWeights:
        """The weights. Raises UsageError if they are not loaded or were freed."""
        if self._weights is None:
            raise closed()
        return self._weights

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values and of the states of delta nets."""
        states = self.sequences + self.checkpoints + self.spares
        return cache_bytes(self.config, self.options.kv_dtype, self.blocks, states)

    def load(self, progress: Progress | None) -> None:
        """Load the weights if needed. Raises UnsupportedError if the device lacks kernels for this architecture."""
        if self._weights is None:
            self._check_kernels()
            prediction = self.config.prediction_head
            weights = upload(self.source, self.device, self._scheduler.context, progress, prediction=prediction)
            weights.config = self.config
            try:
                add_lm_head_int8(weights, self.launcher, self._lm_head_int8())
            except BaseException:
                weights.free(self.device)
                raise
            self._weights = weights

    def _lm_head_int8(self) -> AutoOnOff:
        """Return the option; "off" if texts must not depend on others, whose options may need all logits, and for a
        model without logits."""
        return "off" if self.options.deterministic or self.config.pooling else self.options.lm_head_int8

    def _check_kernels(self) -> None:
        info = self.device.info
        if lacking := sorted(needed_kernels(self.config) - info.kernels):
            raise UnsupportedError(
                f"cannot run models of architecture {self.config.arch}: it lacks the kernels {', '.join(lacking)}",
                backend=info.backend,
                device=info.name,
                operation="load",
                hint="The cpu backend (bitnet-cpu) has them: --device cpu",
            )

    def runner(self) -> Runner:
        """Return the runner; creates it with an empty cache if there is none."""
        if self._runner is None:
            cache = KVCache(
                self.device,
                self.pool,
                self.config,
                kv_dtype=self.options.kv_dtype,
                blocks=self.blocks,
                sequences=self.sequences,
                checkpoints=self.checkpoints,
                spares=self.spares,
                context=self._scheduler.context,
            )
            try:
                self._runner = Runner(
                    self.device,
                    self.launcher,
                    self.pool,
                    self.weights,
                    cache,
                    self.options.kv_dtype,
                    fused=not self.options.deterministic,
                    verify_rows=self.verify_rows,
                    chunk=self._scheduler.chunk,
                )
            except BaseException:
                cache.free()
                raise
            self.block_pool = BlockPool(self.blocks, self.options.eviction)
            self._scheduler.attach(self._runner, self.block_pool)
            self.ready = True
        return self._runner

    def memory(self) -> dict[str, int | float]:
        """Return the bytes on the device by use, and the statistics of the buffer pool."""
        stats = self.pool.stats()
        return {
            "weights_bytes": self.weights.nbytes,
            "wrapped_weights_bytes": self.weights.wrapped_bytes,
            "kv_cache_bytes": self.cache_bytes,
            "lm_head_int8_bytes": self.weights.lm_head_int8.nbytes if self.weights.lm_head_int8 else 0,
            "workspace_bytes": self.launcher.workspace_bytes,
            "held_bytes": self.device.held_bytes(),
            "pool_in_use_bytes": stats.in_use_bytes,
            "pool_peak_bytes": stats.peak_bytes,
            "pool_hit_rate": stats.hit_rate,
            "cache_blocks": self.blocks,
        }

    def drop_scratch(self) -> bool:
        """Free prompt scratch and the pool's idle buffers; False if there were none."""
        dropped = self._runner is not None and self._runner.drop_scratch()
        return self.pool.trim() > 0 or dropped

    def drop_runner(self) -> None:
        """Free the cache and all scratch; running requests are recomputed."""
        if self._runner is not None:
            self.ready = False
            self._scheduler.detach()
            self._runner.free()
            self._runner = None
        self.pool.trim()

    def abandon(self) -> None:
        """Forget weights and runner without freeing them: the device is lost or about to be closed."""
        self.ready = False
        self._weights = None
        self._runner = None
        self.block_pool = BlockPool(0)

    def free(self) -> None:
        """Free everything on the device, which stays open; may be called twice."""
        if self._weights is None:  # never loaded, or lost with the device
            return
        self.drop_runner()
        self.launcher.release()
        self.pool.close()
        self._weights.free(self.device)
        self._weights = None
