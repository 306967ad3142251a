"""A part of a model on one device: contiguous layers with their weights, kernels and buffers."""

from __future__ import annotations

from threading import Lock

from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.discovery.registry import kernels_hash
from bitnet_hal.errors import UnsupportedError, UsageError
from bitnet_hal.launcher import Launcher
from bitnet_hal.tuning.measured import tilings

from bitnet_core.engine.kv_cache.cache import KVCache, cache_bytes
from bitnet_core.engine.run.earlier_layers import EarlierLayers
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import AutoOnOff, EngineOptions
from bitnet_core.plan.device_weights import DeviceWeights
from bitnet_core.plan.kernels import needed_kernels
from bitnet_core.plan.kinds import plan_class
from bitnet_core.plan.lm_head_int8 import add_lm_head_int8
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.upload import upload
from bitnet_core.progress import Progress


def closed() -> UsageError:
    """Return the error for uses of a model after `close`."""
    return UsageError("the model is closed")


def head_choice(options: EngineOptions, config: ModelConfig, info: DeviceInfo) -> AutoOnOff:
    """Return the option lm_head_int8, but "off" for a model without logits, and with `deterministic` on devices without
    the feature "refined-as-dense": the options of other requests decide whether a step computes all logits."""
    other_bits = options.deterministic and "refined-as-dense" not in info.features
    return "off" if other_bits or config.pooling else options.lm_head_int8


class Part:
    """The layers of `config` on a device. lock: held by the thread that uses the device, if several do."""

    def __init__(self, source: ModelSource, device: Device, options: EngineOptions, config: ModelConfig) -> None:
        self.device = device
        self.config = config
        self.lock = Lock()
        self.launcher = Launcher(device, {} if options.deterministic else tilings(device.info, kernels_hash))
        self.pool = MemoryPool(device, options.pool)
        self._source = source
        self._options = options
        self._weights: DeviceWeights | None = None

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

    def load(self, context: int, progress: Progress | None) -> None:
        """Load the weights if needed. Raises UnsupportedError if the device lacks kernels for this architecture."""
        if self._weights is not None:
            return
        self._check_kernels()
        prediction = self.config.prediction_head
        weights = upload(self._source, self.device, context, progress, self.config, prediction=prediction)
        try:
            add_lm_head_int8(weights, self.launcher, head_choice(self._options, self.config, self.device.info))
        except BaseException:
            weights.free(self.device)
            raise
        self._weights = weights

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

    def cache(
        self,
        blocks: int,
        sequences: int,
        context: int,
        checkpoints: int = 0,
        spares: int = 0,
        others: tuple[KVCache, ...] = (),
    ) -> KVCache:
        """Allocate the KV cache of these layers. others: caches of the layers on other devices."""
        return KVCache(
            self.device,
            self.pool,
            self.config,
            kv_cache_type=self._options.kv_cache_type,
            blocks=blocks,
            sequences=sequences,
            checkpoints=checkpoints,
            spares=spares,
            context=context,
            others=others,
        )

    def earlier_layers(self, cache: KVCache, rows: int) -> EarlierLayers:
        """Return the runner of these layers, if they are not the last ones, for decode steps of up to `rows` rows."""
        kind = plan_class(self.config)
        plan = kind(self.weights, self.launcher, self._options.kv_cache_type, fused=not self._options.deterministic)
        return EarlierLayers(self.device, self.launcher, self.pool, self.weights, cache, plan, rows, self.lock)

    def cache_bytes(self, blocks: int, states: int) -> int:
        """Return the bytes of keys and values and of the states of delta nets."""
        return cache_bytes(self.config, self._options.kv_cache_type, blocks, states)

    def memory(self) -> dict[str, int]:
        """Return the bytes on the device by use, without the cache."""
        stats = self.pool.stats()
        int8 = self.weights.lm_head_int8
        return {
            "weights_bytes": self.weights.nbytes,
            "wrapped_weights_bytes": self.weights.wrapped_bytes,
            "lm_head_int8_bytes": int8.nbytes if int8 else 0,
            "workspace_bytes": self.launcher.workspace_bytes,
            "held_bytes": self.device.held_bytes(),
            "pool_in_use_bytes": stats.in_use_bytes,
            "pool_peak_bytes": stats.peak_bytes,
        }

    def abandon(self) -> None:
        """Drop the references to the weights without freeing them: the device is lost or about to be closed."""
        self._weights = None

    def free(self) -> None:
        """Free the weights and kernels on the device, which stays open."""
        if self._weights is not None:
            self.launcher.release()
            self.pool.close()
            self._weights.free(self.device)
            self._weights = None
