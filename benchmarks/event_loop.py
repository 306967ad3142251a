"""Measure the processor time that the server's event loop takes for a streamed token, without a model and sockets.

    python benchmarks/event_loop.py --clients 64

Steps that cost nothing give every stream a token; the time is that of handing it over, formatting the chunk and
writing it to a sink. The HTTP server and the system's sockets come on top.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from types import SimpleNamespace
from typing import Any

from bitnet_server import streams
from bitnet_server.chat import ChatFormatter
from bitnet_server.metrics import Metrics
from bitnet_server.protocols.kept_responses import KeptResponses
from bitnet_server.request_state import Delta, OutputQueue, RequestState, now
from bitnet_server.schema import ChatRequest, parse
from bitnet_server.service import Service
from bitnet_server.settings import Settings
from bitnet_server.streams import EventStream, StreamStart
from bitnet_server.tool_calls import Parser
from bitnet_server.tools import Choice

BODY = b'{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'


class WithoutModel(Service):
    """A service whose requests are never run."""

    fingerprint = "bitnet"

    def cancel(self, states: Any) -> None:
        """Leave the requests alone."""


def stream(service: Service) -> tuple[RequestState, asyncio.Task[None]]:
    """Begin a streamed chat that is written to a sink."""
    request, queue = parse(BODY, ChatRequest), OutputQueue()
    call: Any = SimpleNamespace(service=service, request=request, states=[], model=None)
    formatter = ChatFormatter(call, [Parser(Choice.of(request))])
    output: Any = SimpleNamespace(request=SimpleNamespace(admitted=now()))
    state = RequestState(0, output, queue, now())

    async def send(message: Any) -> None:
        pass

    async def receive() -> Any:
        await asyncio.Event().wait()

    response = EventStream(service, queue, [state], formatter, StreamStart(send, formatter.media_type, 30))
    return state, asyncio.create_task(response.answer({"type": "http"}, receive, {}))


async def measure(clients: int, steps: int) -> float:
    """Return the processor time of a token in seconds."""
    service = WithoutModel(lambda: None, Settings(), ("model",), Metrics().of_model(), KeptResponses())  # type: ignore[arg-type,return-value]
    states, tasks = zip(*(stream(service) for _ in range(clients)), strict=True)
    await asyncio.sleep(0.05)
    delta = Delta(0, " word", 1)
    began = time.process_time()
    for _ in range(steps):
        service._dispatch([(state, delta) for state in states])
        while any(state.queue.deltas for state in states):
            await asyncio.sleep(0)
    spent = time.process_time() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return spent / clients / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    streams._MIN_EVENT_INTERVAL = 0.0  # every step is written, however short it is
    times = sorted(asyncio.run(measure(args.clients, args.steps)) for _ in range(args.repeat))
    print(f"{args.clients} clients: {1e6 * times[len(times) // 2]:.1f} us a token")


if __name__ == "__main__":
    main()
