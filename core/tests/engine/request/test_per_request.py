"""Values by request."""

from __future__ import annotations

from typing import Any

from bitnet_core.engine.request.per_request import _MOST, PerRequest


def test_values_of_ended_requests_are_dropped(make_engine: Any) -> None:
    """Each value is made once while its request runs."""
    engine = make_engine()
    made: list[Any] = []
    values: Any = PerRequest(lambda request: made.append(request) or [len(made)])
    requests = [engine.new_request([1], max_tokens=4) for _ in range(3 * _MOST)]
    running = requests[0]
    for request in requests:
        values[request].append(0)
        assert values[running][0] == 1
        if request is not running:
            request.finish_reason = "stop"
    assert made == requests
    assert len(values) <= _MOST
    assert values[running] == [1, 0]
