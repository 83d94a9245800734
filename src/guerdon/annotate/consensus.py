"""What the judgements of all people on an item say together.

label = label_of(judgements.given[0])
label.value, label.agreed, label.reason
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

import numpy as np

from guerdon.annotate.criteria import LEAST_JUDGED, shares_of
from guerdon.annotate.judgements import CANNOT_TELL, DISCARD, Judgement
from guerdon.annotate.session import Session
from guerdon.models.judges.rubric import Rubric

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
        criteria: of a rubric, the label of each criterion, 0 to 1; `agreed` of the whole is their mean.
    """

    value: float = np.nan
    reason: str = NOT_JUDGED
    agreed: float | None = None
    judgements: int = 0
    row: int | None = None
    criteria: Mapping[str, Label] = field(default_factory=dict)


def label_of(given: Sequence[Judgement], rubric: Rubric | None = None) -> Label:
    """The majority of those who could tell; a tie is no label. With a rubric this holds for each criterion."""
    if rubric is not None:
        return _by_rubric([shares_of(rubric, one.scores) for one in given], rubric)
    votes = [DISCARD if one.word == DISCARD else one.value for one in given if one.word != CANNOT_TELL]
    found = _majority(votes, len(given))
    rows = sorted(one.row for one in given if one.value == found.value and one.row is not None)
    return replace(found, row=rows[(len(rows) - 1) // 2]) if rows else found


def _majority(votes: Sequence[float | str], judgements: int) -> Label:
    if not votes:
        return Label(reason=CANNOT_TELL if judgements else NOT_JUDGED, judgements=judgements)
    (first, most), *others = Counter(votes).most_common()
    agreed = most / len(votes)
    if others and others[0][1] == most:
        return Label(reason=NO_CONSENSUS, agreed=agreed, judgements=judgements)
    if isinstance(first, str):
        return Label(reason=DISCARD, agreed=agreed, judgements=judgements)
    return Label(first, "", agreed, judgements)


def _by_rubric(given: Sequence[Mapping[str, float]], rubric: Rubric) -> Label:
    """The label of each criterion, and the value of the rubric where enough of them have one."""
    names = [one.name for one in rubric.criteria]
    criteria = {name: _majority([shares[name] for shares in given if name in shares], len(given)) for name in names}
    agreed = [one.agreed for one in criteria.values() if one.agreed is not None]
    found = Label(agreed=mean(agreed) if agreed else None, judgements=len(given), criteria=criteria)
    known = {name: one.value for name, one in criteria.items() if not one.reason}
    value = rubric.total(known, LEAST_JUDGED)
    if value is not None:
        return replace(found, value=value, reason="")
    reasons = [one.reason for one in criteria.values() if one.reason]
    return replace(found, reason=NO_CONSENSUS if NO_CONSENSUS in reasons else reasons[0])


def labels_of(session: Session) -> dict[int, tuple[int, Label]]:
    """Of each item that could be asked and is still there, by its place: its number in the order, and its label."""
    asks = session.judgements.asks
    return {
        ask.place: (number, label_of(session.judgements.given[number], session.rubric))
        for number, ask in enumerate(asks)
        if ask.place is not None
    }
