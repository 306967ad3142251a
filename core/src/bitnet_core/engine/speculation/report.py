"""Log messages about draft tokens that do not pay."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from bitnet_core.engine.request.request import Request

log = logging.getLogger(__name__)

_LIKELY = {
    "lookup": "most likely the texts do not repeat their prompts or themselves",
    "draft": "most likely the draft model was trained on other data than the model, or one of the files is damaged",
    "mtp": "most likely the MTP head belongs to other weights than the model's",
}
"""The most likely reason if no draft token is right, by kind."""


def report_pause(kind: str, request: Request, counts: Mapping[str, int]) -> None:
    """Log the first pause of a request's drafts, at level INFO if no other request was paused before."""
    log.log(
        logging.INFO if counts["draft_stops"] == 1 else logging.DEBUG,
        "speculation (%s) does not pay for a text, so it is off, apart from rare trials: %d of its %d draft tokens "
        "were right, %d of %d in all texts",
        kind,
        request.accepted_tokens,
        request.draft_tokens,
        counts["accepted_tokens"],
        counts["draft_tokens"],
    )


def report_nothing_right(kind: str, tried: int) -> None:
    """Warn that none of `tried` draft tokens was right, with the most likely reason."""
    log.warning("speculation (%s): 0 of %d draft tokens were right; %s", kind, tried, _LIKELY[kind])
