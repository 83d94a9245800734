"""What the judgements of all people on an item say together.

label = label_of(judgements.given[0])
label.value, label.agreed, label.reason
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from guerdon.annotate.judgements import CANNOT_TELL, DISCARD, Judgement
from guerdon.annotate.session import Session

NOT_JUDGED, NO_CONSENSUS = "not_judged", "no_consensus"


@dataclass(frozen=True)
class Label:
    """The label of an item.

    Attributes:
        value: see `Items.truth`; NaN: it has none.
        reason: why it has none: `not_judged`, `cannot_tell`, `no_consensus`, `discard`; empty: it has one.
        agreed: share of the judgements with a value that say the same; None: nobody gave a value.
        judgements: how many there are.
        row: of an episode, the first row of success; None: the last one, or no success.
    """

    value: float = np.nan
    reason: str = NOT_JUDGED
    agreed: float | None = None
    judgements: int = 0
    row: int | None = None


def label_of(given: Sequence[Judgement]) -> Label:
    """The majority of those who could tell; a tie is no label."""
    votes = Counter(DISCARD if one.word == DISCARD else one.value for one in given if one.word != CANNOT_TELL)
    if not votes:
        return Label(reason=CANNOT_TELL if given else NOT_JUDGED, judgements=len(given))
    (first, most), *others = votes.most_common()
    agreed = most / votes.total()
    if others and others[0][1] == most:
        return Label(reason=NO_CONSENSUS, agreed=agreed, judgements=len(given))
    if isinstance(first, str):
        return Label(reason=DISCARD, agreed=agreed, judgements=len(given))
    rows = sorted(one.row for one in given if one.value == first and one.row is not None)
    row = rows[(len(rows) - 1) // 2] if rows else None
    return Label(first, "", agreed, len(given), row)


def labels_of(session: Session) -> dict[int, tuple[int, Label]]:
    """Of each item that could be asked and is still there, by its place: its number in the order, and its label."""
    asks = session.judgements.asks
    return {
        ask.place: (number, label_of(session.judgements.given[number]))
        for number, ask in enumerate(asks)
        if ask.place is not None
    }
