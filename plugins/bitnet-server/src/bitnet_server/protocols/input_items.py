"""OpenAI's GET /v1/responses/ID/input_items: the items of a kept response's conversation before its answer, by page."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_server.errors import ApiError
from bitnet_server.protocols.kept_responses import Item, KeptResponse
from bitnet_server.response import Document

_LIMIT = 20
_MOST = 100
"""Items of a page: by default, and the most."""


def input_items(response: KeptResponse, query: Mapping[str, str]) -> Document:
    """Return a page of items. query: order (desc or asc), limit, and after, the id of the item before the page.

    Raises ApiError 400 for other values.
    """
    limit = _limit(query.get("limit"))
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, "order must be asc or desc", param="order")
    before_answer = response.items[: len(response.items) - len(response.document["output"])]
    items = [_complete(item, f"{response.document['id']}_{number}") for number, item in enumerate(before_answer)]
    if order == "desc":
        items.reverse()
    first = _place_after(items, query.get("after"))
    page = items[first : first + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": first + limit < len(items),
    }


def _complete(item: Item, item_id: str) -> Item:
    """Return an item with the fields that requests may leave out: its id, its type, and the parts of its content."""
    fields: Item = {name: value for name, value in item.items() if value is not None}
    fields = {"id": item_id, "type": "message", **fields}
    if isinstance(fields.get("content"), str):
        kind = "output_text" if fields.get("role") == "assistant" else "input_text"
        fields["content"] = [{"type": kind, "text": fields["content"]}]
    return fields


def _limit(text: str | None) -> int:
    if text is None:
        return _LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= _MOST):
        raise ApiError(400, f"limit must be a whole number from 1 to {_MOST}", param="limit")
    return int(text)


def _place_after(items: list[Item], after: str | None) -> int:
    """Return the index of the first item after the one with this id; 0 without an id."""
    if after is None:
        return 0
    for index, item in enumerate(items):
        if item["id"] == after:
            return index + 1
    raise ApiError(400, f"there is no item {after[:100]!r} in this response", param="after")
