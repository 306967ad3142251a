"""The queue of a ReplicaSet for requests of this process and of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet_core.engine.replicas.dispatch import Deliver

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_core.engine.replicas.queue_user import QueueUser
    from bitnet_core.engine.schedule.results import RequestOutput
    from bitnet_core.engine.serving import ServingEngine


class SharedQueue:
    """The requests of other processes in the queue. deliver: called with the outputs of this process's requests."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self.users: dict[int, QueueUser] = {}  # by the request's number here

    def deliver(self, engine: ServingEngine, outputs: list[RequestOutput]) -> None:
        """Send the outputs of a step to the processes of their requests, in the thread of their engine."""
        if not self.users:
            self._deliver(engine, outputs)
            return
        own: list[RequestOutput] = []
        others: dict[QueueUser, list[RequestOutput]] = {}
        for output in outputs:
            user = self.users.get(output.request.id)
            if user is None:
                own.append(output)
            else:
                others.setdefault(user, []).append(output)
        if own:
            self._deliver(engine, own)
        for user, made in others.items():
            user.deliver(engine, made)
