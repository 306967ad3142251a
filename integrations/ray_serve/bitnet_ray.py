"""bitnet on Ray Serve: the same HTTP server in replicas, one model each, from one machine to a cluster.

    serve run bitnet_ray:build model=model.gguf device=cuda gpus=1 replicas=4

Every replica is `bitnet serve` without its sockets: Ray's proxy hands requests on, streams answers back, and tells the
replica when a client leaves. Replicas are added and removed by the number of texts that they are busy with.
"""

from __future__ import annotations

import asyncio
from typing import Any

import bitnet_core
from bitnet_hal.errors import BitnetError
from bitnet_server.app import make_app
from bitnet_server.models import Models
from bitnet_server.served_model import ServedModel
from bitnet_server.settings import Settings
from ray import serve
from starlette.types import ASGIApp

_replica: list[ASGIApp] = []  # the application of this process's replica


def application() -> ASGIApp:
    """Ray asks for it once the replica has started."""
    return _replica[-1]


def keep(app: ASGIApp) -> None:
    """Remember the replica's application. Ray pickles the class below by value, with copies of what it refers to, but
    functions of this module by name: so this one sees the same list as `application`."""
    _replica.append(app)


@serve.deployment
@serve.ingress(application)
class Bitnet:
    """One model on one device."""

    async def __init__(self, model: str | None, device: str, sequences: int) -> None:
        settings = Settings(allowed_hosts=("*",), max_queue=sequences)  # Ray keeps the queue and guards the door

        def load() -> bitnet_core.Model:
            return bitnet_core.load(model, device, max_sequences=sequences, stream_interval=0.02)

        self._models = Models([ServedModel(lambda make_room: load())], settings, lambda text: None)
        self._models.start()
        while self._models.loading:
            if self._models.error is not None:
                raise self._models.error
            await asyncio.sleep(0.05)
        keep(make_app(self._models))

    def check_health(self) -> None:
        """Ray replaces a replica whose engine hangs or whose device is lost."""
        if not self._models.ready:
            raise BitnetError(f"the engine does not work any more: {self._models.error or 'it hangs'}")

    def __del__(self) -> None:
        for service in self._models.services:
            service.close()


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application for `serve run`. Arguments, all optional: model, device, sequences (texts at a time in a
    replica), gpus and cpus of a replica, replicas (at most)."""
    sequences = int(arguments.get("sequences", 32))
    scaling = {
        "min_replicas": 1,
        "max_replicas": int(arguments.get("replicas", 1)),
        "target_ongoing_requests": max(1, sequences * 3 // 4),
    }
    resources = {"num_cpus": float(arguments.get("cpus", 1)), "num_gpus": float(arguments.get("gpus", 0))}
    deployment = Bitnet.options(
        max_ongoing_requests=2 * sequences,
        max_queued_requests=8 * sequences,
        autoscaling_config=scaling,
        ray_actor_options=resources,
        health_check_period_s=10,
    )
    return deployment.bind(arguments.get("model"), arguments.get("device", "auto"), sequences)
