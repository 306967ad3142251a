"""The rows of sampled requests in a step with draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.request.sample_rows import SampleRow
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.sampling.constraint import Constraint, Mask, allows


def draft_rows(request: Request, draft: Sequence[int]) -> list[SampleRow]:
    """Return the row of the request's last token and one per draft token, up to a token that the request's constraint
    forbids or that ends the request."""
    rows = [SampleRow(request)]
    if request.constraint is None:
        return rows + [SampleRow(request, drafted=number) for number in range(1, len(draft) + 1)]
    mask = rows[0].mask()
    if rows[0].error is not None:
        return rows
    for number, following in enumerate(_masks_after(request.constraint, mask, draft), 1):
        rows.append(SampleRow(request, drafted=number, given_mask=following))
    return rows


def _masks_after(constraint: Constraint, mask: Mask, draft: Sequence[int]) -> list[Mask]:
    """Return the constraint's mask after each draft token. mask: the current one. The list ends before a token that is
    forbidden, or after which the constraint allows no further token or fails."""
    masks: list[Mask] = []
    try:
        ahead = constraint.copy()
        for token in draft:
            if not allows(mask, token) or not ahead.accept(token):
                break
            mask = ahead.mask()
            masks.append(mask)
    except Exception:  # noqa: BLE001 - if the tokens are sampled, it fails again and ends the request
        pass
    return masks


def draft_spans(rows: Sequence[SampleRow], drafts: dict[Request, list[int]]) -> list[ScheduledTokens]:
    """Return the tokens to compute. rows: in the order of the step, those of a request together."""
    spans: list[ScheduledTokens] = []
    for request, group in groupby(rows, key=lambda row: row.request):
        count = sum(1 for _ in group) - 1
        tokens = (request.tokens[-1], *drafts.get(request, [])[:count])
        spans.append(ScheduledTokens(request.req_index, request.computed, tokens))
    return spans
