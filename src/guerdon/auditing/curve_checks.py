"""A check of logged scalars, for logs that have no rows: a curve of the reward rises while one of the truth falls."""

from __future__ import annotations

import re
from itertools import product

import numpy as np

from guerdon.auditing.association import associate
from guerdon.auditing.log_view import Checked, MissingColumn, View, found
from guerdon.auditing.rows import Rows

_TRUTH = re.compile(
    r"(?i)success(?:_at_end|_rate)?$|accuracy|correct|(?:return|reward)/(?:env|verifier|truth|gold)$|gold"
)
_REWARD = re.compile(r"(?i)(?:^|[/_])(?:return|reward|score)s?(?:/[^/]+|/mean|_mean)?$")
_OTHER = re.compile(r"(?i)std|min|max|weight|correlation|undefined|known|count|(?:return|reward)/combined$")
STRONG = 0.5  # rank correlation with the steps
FEWEST = 8  # points


def curves_disagree(rows: Rows) -> Checked:
    """A reward rises over the run, or from the best moment of the truth on, while the truth falls."""
    names = [name for name in rows.curves if not _OTHER.search(name)]
    truths = [name for name in names if _TRUTH.search(name)]
    rewards = [name for name in names if _REWARD.search(name) and name not in truths]
    if not truths or not rewards:
        raise MissingColumn("step and truth, or curves of a reward and of the success")
    clean = f"curves: {', '.join(rewards[:3])} against {', '.join(truths[:3])}"
    nothing = np.zeros(int(np.isfinite(rows.reward_N).sum()), bool)
    for reward, truth in product(rewards, truths):
        steps = np.intersect1d(rows.curves[reward][0], rows.curves[truth][0])
        x, y = (values[np.searchsorted(at, steps)] for at, values in (rows.curves[reward], rows.curves[truth]))
        known = np.isfinite(x) & np.isfinite(y)
        x, y = x[known], y[known]
        best = int(np.argmax(np.convolve(y, np.ones(3) / 3, "same"))) if len(y) > 2 else 0
        for start in (0, best):
            a, b, n = x[start:], y[start:], len(x) - start
            if n < FEWEST:
                continue
            order, alone = np.arange(n, dtype=np.float64), np.zeros(n, np.int64)
            rise, fall = (associate(order, _ranks(one), alone, seed=0) for one in (a, b))
            if rise.r < STRONG or fall.r > -STRONG or rise.low <= 0 or fall.high >= 0 or fall.p is None:
                continue
            title = f"{reward} rises from {a[0]:.3g} to {a[-1]:.3g} while {truth} falls from {b[0]:.3g} to {b[-1]:.3g}"
            return found(
                View.whole(rows), "truth", nothing, title, clean, effect=(fall.r, fall.low, fall.high), of=n,
                unit="rank correlation of the truth with the step",
                p=min(1.0, fall.p * 2 * len(rewards) * len(truths)),
            )  # fmt: skip
    return Checked(None, clean)


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
