"""The interface that serves requests, which engines of this process and of others implement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, Unpack

from bitnet_core.engine.error_log import ErrorLog

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_hal.device import DeviceInfo

    from bitnet_core.engine.request.new_request import RequestOptions
    from bitnet_core.engine.request.request import FinishReason, Request
    from bitnet_core.engine.schedule.results import RequestOutput
    from bitnet_core.model.config import ModelConfig
    from bitnet_core.options.engine import EngineOptions
    from bitnet_core.options.sampling import SamplingParams


class DescribedDevice(Protocol):
    """A Device or a DeviceProcess."""

    @property
    def info(self) -> DeviceInfo: ...

    def free_memory(self) -> int: ...


class Totals(Protocol):
    """The counters, seconds and errors of a Scheduler."""

    @property
    def counts(self) -> dict[str, int]: ...

    @property
    def seconds(self) -> dict[str, float]: ...

    @property
    def errors(self) -> ErrorLog: ...


class ServingEngine(Protocol):
    """An Engine, or a RemoteEngine; the members are described there."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def options(self) -> EngineOptions: ...

    @property
    def device(self) -> DescribedDevice: ...

    @property
    def sequences(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def scheduler(self) -> Totals: ...

    @property
    def layers_by_device(self) -> dict[str, int]: ...

    @property
    def kernel_launches_by_device(self) -> dict[str, Counter[str]]: ...

    def new_request(
        self, tokens: Iterable[int], sampling: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Request: ...

    def add_request(
        self, tokens: Iterable[int], sampling: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Request: ...

    def queue_request(self, request: Request) -> None: ...

    def cached_prefix(self, request: Request) -> int: ...

    def step(self) -> list[RequestOutput]: ...

    def finish_request(self, request: Request, reason: FinishReason = "cancelled") -> None: ...

    def fail_request(self, request: Request, error: Exception) -> RequestOutput: ...

    def fail_all(self, error: Exception) -> list[RequestOutput]: ...

    def set_pace(self, seconds: float) -> None: ...

    def close(self) -> None: ...

    def figures(self) -> dict[str, int | float]: ...

    def memory(self) -> dict[str, int | float]: ...
