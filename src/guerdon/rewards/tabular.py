"""The tabular reference: an implicit process reward as a table, learned from outcomes alone.

It has one weight for each claim that a line can make (`7+5=2`), and the logit of a right answer is the sum of the
weights of the lines written: the model of PRIME (2502.01456) with a table in place of a language model. Where facts
decide whether an answer is right, such a table reads nearly all that outcomes say of steps. So it bounds what a process
reward learned from outcomes can bring on a task: where it brings nothing, the task cannot show a gain.

    table = OutcomeTable(l2=0.05)
    table.add([["3+5=8", "8*2=6"]], np.array([1.0]))
    table.fit()
    table.weights["3+5=8"]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from torch import Tensor

from guerdon.collect.text import Responses, TextRollout
from guerdon.rewards.source import RewardSource, SourceTerms, response_rewards
from guerdon.rewards.text_steps import first_error_auroc, true_steps
from guerdon.settings.reward_models import TabularModelSettings
from guerdon.tasks.claims import claims
from guerdon.types import FloatArray, Metrics, Rewards


class OutcomeTable:
    """Logistic regression of outcomes on the claims of a response, without an intercept.

    Weights w minimise sum_i -log sigma(s_i sum_{c in i} w_c) + l2/2 |w|^2 with s_i = +1 for a right answer, else -1.
    The objective is strictly convex: the weights depend on the responses seen, not on their order or on the start.

    Args:
        l2: strength of the penalty, above 0.

    Attributes:
        weights: claim to its weight; a claim that was never fitted has none, which means 0.
    """

    def __init__(self, l2: float) -> None:
        self.l2 = l2
        self.weights: dict[str, float] = {}
        self._rows: list[list[int]] = []
        self._places: dict[str, int] = {}
        self._right: list[bool] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, claims_B: Sequence[Sequence[str]], outcomes_B: np.ndarray) -> None:
        """Take in responses with their outcomes (1: right, below: wrong)."""
        for claimed, right in zip(claims_B, outcomes_B, strict=True):
            self._rows.append([self._places.setdefault(claim, len(self._places)) for claim in claimed])
            self._right.append(bool(right >= 1))

    def fit(self) -> float | None:
        """Fit the weights to all responses taken in, from the present ones.

        Returns:
            The mean loss without the penalty; None where there is no response.
        """
        from scipy.optimize import minimize
        from scipy.sparse import csr_array

        if not self._rows or not self._places:
            return None
        lengths = [len(row) for row in self._rows]
        columns = np.array([place for row in self._rows for place in row], dtype=np.int64)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        shape = (len(self._rows), len(self._places))
        counts_B_C = csr_array((np.ones(len(columns)), columns, indptr), shape=shape)
        signs_B = np.where(self._right, 1.0, -1.0)

        def loss(w_C: np.ndarray) -> tuple[float, np.ndarray]:
            margins_B = signs_B * (counts_B_C @ w_C)
            value = np.logaddexp(0.0, -margins_B).sum() + 0.5 * self.l2 * (w_C @ w_C)
            return float(value), counts_B_C.T @ (-signs_B * expit(-margins_B)) + self.l2 * w_C

        start_C = np.array([self.weights.get(claim, 0.0) for claim in self._places])
        found_C = minimize(loss, start_C, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
        self.weights = dict(zip(self._places, found_C.tolist(), strict=True))
        return float(np.logaddexp(0.0, -signs_B * (counts_B_C @ found_C)).mean())

    def of(self, claimed: Sequence[str]) -> FloatArray:
        """(S,) float32 weights of the lines of a response."""
        return np.array([self.weights.get(claim, 0.0) for claim in claimed], dtype=np.float32)

    def state(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {"weights": self.weights, "claims": list(self._places), "rows": self._rows, "right": self._right}

    def restore(self, values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.weights = {str(claim): float(weight) for claim, weight in values["weights"].items()}
        self._places = {claim: place for place, claim in enumerate(values["claims"])}
        self._rows = [[int(place) for place in row] for row in values["rows"]]
        self._right = [bool(right) for right in values["right"]]


class TabularReward(RewardSource[Responses]):
    """Pays every token of a line the probability sigma(w) that the table gives it: from 0 to 1, a half where unknown.

    Before each measurement the table is fitted to all outcomes of the run up to now, those of the rollout included.

    Args:
        terms: how the source counts.
        settings: of the model.
    """

    learn_before = True

    def __init__(self, terms: SourceTerms, settings: TabularModelSettings) -> None:
        super().__init__(terms)
        self.table = OutcomeTable(settings.l2)

    def learn(self, rollout: TextRollout) -> Metrics:
        """Take in the responses whose outcome is known, and fit."""
        known = np.flatnonzero(rollout.known_B)
        every = _claims(rollout.inputs)
        self.table.add([every[row] for row in known], rollout.outcomes_B[known])
        return {"table_loss": self.table.fit(), "table_claims": float(len(self.table.weights))}

    def score(self, rollout: TextRollout) -> Rewards:
        """The table's opinion of every line."""
        mask = rollout.mask
        values = np.zeros(mask.shape, dtype=np.float32)
        rows = []
        for row, (claimed, (ends, sound)) in enumerate(
            zip(_claims(rollout.inputs), true_steps(rollout.inputs), strict=True)
        ):
            start = 0
            weights_S = self.table.of(claimed)
            for end, weight in zip(ends, weights_S, strict=False):  # a response of no token has no line that ends
                values[row, start : end + 1] = expit(weight)
                start = end + 1
            rows.append((sound, weights_S.tolist()))
        return response_rewards(values, mask, {}, metrics={"step_auroc": first_error_auroc(rows)})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The table and the responses it was fitted to."""
        return {}, self.table.state()

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.table.restore(values)


def _claims(responses: Responses) -> list[tuple[str, ...]]:
    """What the lines of each response claim."""
    return [claims(prompt, text) for prompt, text in zip(responses.prompts, responses.texts, strict=True)]
