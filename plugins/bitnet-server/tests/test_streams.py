"""Time limits of streams, and what counts their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_server import request_state, streams
from bitnet_server.completions import CompletionFormatter
from bitnet_server.metrics import Histogram
from bitnet_server.protocol import _HeadWithBody
from bitnet_server.random_hex import random_hex
from bitnet_server.request_state import Delta
from bitnet_server.schema import CompletionRequest, parse
from bitnet_server.service import Service
from bitnet_server.streams import ClientGoneError, EventStream, Sender, StreamStart
from bitnet_server.watchdog import Watchdog


def test_an_alarm_rings_after_the_last_setting_only() -> None:
    async def main() -> list[str]:
        rung: list[str] = []
        alarm = Watchdog(lambda: rung.append("now"))
        alarm.set(0.01)
        alarm.set(60)  # the timer that is set goes on until then
        await asyncio.sleep(0.05)
        assert rung == []
        alarm.set(0.01)  # sooner than the timer
        await asyncio.sleep(0.05)
        assert rung == ["now"]
        alarm.set(0.01)
        alarm.off()
        await asyncio.sleep(0.05)
        alarm.set(0.01)
        alarm.stop()
        await asyncio.sleep(0.05)
        return rung

    assert asyncio.run(main()) == ["now"]


def test_a_reader_that_does_not_read_is_given_up() -> None:
    async def stuck(message: Any) -> None:
        await asyncio.sleep(30)

    async def main() -> None:
        with pytest.raises(ClientGoneError):
            await Sender(stuck, 0.02).write(b"text")
        await asyncio.sleep(0)  # the task itself is not cancelled

    asyncio.run(main())


def test_a_reader_that_is_too_far_behind_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_state, "MAX_BACKLOG", 5000)

    async def stuck(message: Any) -> None:
        await asyncio.sleep(30)

    async def main() -> None:
        sender, queue = Sender(stuck, 30), request_state.OutputQueue()
        queue.overflow = sender.give_up
        for _ in range(100):
            queue.put(request_state.Delta(0, "text", 1))
        assert len(queue.take()) == 100  # nobody is stuck: the reader takes it
        score = SimpleNamespace(top=((1, -1.0),) * 20)
        for _ in range(2):
            delta = request_state.Delta(0, "text", 1, scores=(score,))  # type: ignore[arg-type]
            asyncio.get_running_loop().call_later(0.01, queue.put, delta)
        with pytest.raises(ClientGoneError):
            await sender.write(b"text")

    asyncio.run(main())


def test_another_cancellation_of_a_writer_goes_on() -> None:
    async def stuck(message: Any) -> None:
        await asyncio.sleep(30)

    async def write() -> None:
        await Sender(stuck, 30).write(b"text")

    async def main() -> None:
        task = asyncio.create_task(write())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_text_that_flows_for_too_long_ends_with_an_error(
    serve: Callable[..., Any], events: Callable[..., Any]
) -> None:
    with serve(request_timeout=0.3, keep_alive=5) as served, served.client() as client:
        body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True}
        documents, done = events(client, "/v1/completions", body)
        assert not done
        assert documents[-1]["error"]["message"] == "the request took too long"
        served.idle()


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram("bitnet:seconds", "Of something.", (0.1, 1, 10))
    for value in (0.05, 0.1, 0.5, 100):
        histogram.observe(value)
    samples = {(s.name, s.labels.get("le")): s.value for s in histogram.family("it").samples}
    counts = {le: value for (name, le), value in samples.items() if name == "bitnet:seconds_bucket"}
    assert counts == {"0.1": 2, "1.0": 3, "10.0": 3, "+Inf": 4}
    assert samples["bitnet:seconds_count", None] == 4
    assert samples["bitnet:seconds_sum", None] == pytest.approx(100.65)


def running(queue: request_state.OutputQueue, service: Any, written: list[Any]) -> asyncio.Task[None]:
    """Begin a stream of one text whose messages go to `written`."""
    request = parse(b'{"prompt": "a", "stream": true}', CompletionRequest)
    call: Any = SimpleNamespace(service=service, request=request, states=[None], texts=1, echo=lambda index: "")
    state: Any = SimpleNamespace(over=False, created=request_state.now(), request=SimpleNamespace(admitted=1.0))
    call.model, call.prompt_logprobs = SimpleNamespace(tokenizer=None), lambda index: []

    async def send(message: Any) -> None:
        written.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    formatter = CompletionFormatter(call)
    stream = EventStream(service, queue, [state], formatter, StreamStart(send, formatter.media_type, 30))
    return asyncio.create_task(stream.answer({"type": "http"}, receive, {}))


def a_service(active: int) -> Any:
    settings = SimpleNamespace(keep_alive=15.0, queue_timeout=60.0, request_timeout=60.0)
    return SimpleNamespace(settings=settings, active=active, names=("m",), fingerprint="f", cancel=lambda states: None)


def test_the_last_words_do_not_wait_and_end_the_response_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MIN_EVENT_INTERVAL", 30.0)
    monkeypatch.setattr(streams, "_MAX_EVENT_INTERVAL", 30.0)

    async def main() -> list[Any]:
        queue, written = request_state.OutputQueue(), list[Any]()
        task = running(queue, a_service(1), written)
        queue.put(Delta(0, "one", 1))
        await asyncio.sleep(0.01)
        queue.put(Delta(0, " two", 1))
        await asyncio.sleep(0.01)
        assert len(written) == 2  # the head, and the first words
        queue.put(Delta(0, " three", 1, finish="length"))
        await asyncio.wait_for(task, 5)
        return written

    last = asyncio.run(main())[2:]
    assert len(last) == 1
    assert not last[0]["more_body"]
    assert b" two three" in last[0]["body"]
    assert last[0]["body"].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(("active", "seconds"), [(1, 0.02), (50, 0.03), (500, 0.04)])
def test_many_streams_have_fewer_events(active: int, seconds: float) -> None:
    stream = EventStream(a_service(active), *[None] * 4)  # type: ignore[arg-type]  # the others are not used
    assert stream._interval() == pytest.approx(seconds)


def test_random_digits_are_never_the_same() -> None:
    assert len({random_hex(16) for _ in range(1000)}) == 1000
    assert len(random_hex(12)) == 24


class Transport:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True


def test_the_head_of_a_response_is_written_with_its_body() -> None:
    def begun(method: str) -> tuple[Transport, Any, Any]:
        transport = Transport()
        cycle: Any = SimpleNamespace(transport=transport, scope={"method": method}, response_started=False)
        return transport, cycle, _HeadWithBody(cycle)

    transport, cycle, joined = begun("POST")
    joined.write(b"100 Continue")
    cycle.response_started = True
    joined.write(b"head,")
    assert transport.written == [b"100 Continue"]
    for part in (b"body", b"more"):
        joined.write(part)
    assert transport.written[1:] == [b"head,body", b"more"]

    transport, cycle, joined = begun("GET")
    cycle.response_started = True
    joined.write(b"head")
    joined.close()
    assert (transport.written, transport.closed) == ([b"head"], True)

    transport, cycle, joined = begun("HEAD")  # without a body
    cycle.response_started = True
    joined.write(b"head")
    assert transport.written == [b"head"]


def test_a_request_that_was_cancelled_while_it_was_gathered_is_not_queued() -> None:
    given: list[Any] = []
    service: Any = Service.__new__(Service)
    service.replicas = SimpleNamespace(submit=given.extend)
    service._unsent = [SimpleNamespace(over=over, request=over) for over in (True, False)]
    service._send()
    service._send()
    assert given == [False]
