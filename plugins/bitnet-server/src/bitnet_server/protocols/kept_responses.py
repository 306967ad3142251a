"""The responses that previous_response_id may name, in bounded memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

Item = dict[str, Any]

MAX_BYTES = 32 << 20
"""Most bytes of JSON that are kept; the oldest responses are dropped first."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response, and the items of its conversation: those of earlier responses, its input and its output."""

    document: dict[str, Any]
    items: list[Item]
    size: int


class KeptResponses:
    """The last responses by id; threads may share it."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def keep(self, document: dict[str, Any], items: list[Item]) -> None:
        """Keep a response; drop the oldest ones if there is no room."""
        size = len(msgspec.json.encode(document)) + len(msgspec.json.encode(items))
        with self._lock:
            self._kept[document["id"]] = KeptResponse(document, items, size)
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.size

    def find(self, response_id: str) -> KeptResponse | None:
        """Return a response, which becomes the last to be dropped; None if it is not kept."""
        with self._lock:
            found = self._kept.get(response_id)
            if found is not None:
                self._kept.move_to_end(response_id)
            return found

    def find_item(self, item_id: str) -> Item | None:
        """Return an item of the output of a response; None if it is not kept."""
        with self._lock:
            for kept in reversed(self._kept.values()):
                for item in kept.document["output"]:
                    if item["id"] == item_id:
                        return dict(item)
        return None

    def drop(self, response_id: str) -> bool:
        """Drop a response; False if it is not kept."""
        with self._lock:
            dropped = self._kept.pop(response_id, None)
            if dropped is not None:
                self._bytes -= dropped.size
            return dropped is not None
