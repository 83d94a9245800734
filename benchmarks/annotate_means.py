"""Bias and coverage of the mean label of a log whose rows people label in part, as `guerdon annotate` draws them.

Of each of 2,000 simulated logs of 400 rows, 20 or 60 are drawn at random or where the judge is uncertain. The mean of
all labels is estimated by the labels alone and by the judge's scores that the labels correct, each with and without the
weights of the draws (R_LURE, 2101.11665). The judge is a probability that is too sure of itself.

    python benchmarks/annotate_means.py
"""

import sys

import numpy as np

from guerdon.annotate.draws import LEAST, draw_order
from guerdon.evaluation.benchmarks.labelled import Draws, chosen_mean
from guerdon.statistics.intervals import Interval

LOGS, ROWS, SHARE = 2000, 400, 0.3


def simulated(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a judge and the labels that people would give."""
    z = rng.normal(0.8, 1.5, ROWS)
    return 1 / (1 + np.exp(-1.5 * z)), (rng.random(ROWS) < 1 / (1 + np.exp(-z))).astype(float)


def drawn(scores: np.ndarray, choose: str, rng: np.random.Generator) -> Draws:
    """All rows in the order in which they are drawn."""
    useful = np.ones(ROWS) if choose == "random" else np.maximum(1 - np.abs(2 * scores - 1), LEAST)
    found = draw_order(useful, share=1.0 if choose == "random" else SHARE, rng=rng)
    draw, probability = np.empty(ROWS), np.empty(ROWS)
    draw[found.places] = np.arange(1, ROWS + 1)
    probability[found.places] = found.probabilities
    return Draws(draw, probability, ROWS)


def estimates(scores: np.ndarray, labels: np.ndarray, draws: Draws) -> dict[str, Interval]:
    """The mean label by each estimator."""
    uniform = Draws(draws.draw_N, 1 / (draws.pool - draws.draw_N + 1), draws.pool)
    found = {}
    for name, those in (("without weights", uniform), ("weighted", draws)):
        mean = chosen_mean(scores, labels, those)
        found[f"labels alone, {name}"], found[f"corrected, {name}"] = mean.labelled, mean.corrected
    return found


def main() -> None:
    """Print a line for each way to choose, number of labels and estimator."""
    say = sys.stdout.write
    say("| chosen | labels | estimate | bias | coverage | width |\n|---|---|---|---|---|---|\n")
    for choose in ("random", "uncertain"):
        for made in (20, 60):
            rng = np.random.default_rng(0)
            rows: dict[str, list[tuple[float, bool, float]]] = {}
            for _ in range(LOGS):
                scores, labels = simulated(rng)
                draws = drawn(scores, choose, rng)
                known = np.where(draws.draw_N <= made, labels, np.nan)
                truth = labels.mean()
                for name, one in estimates(scores, known, draws).items():
                    if one.low is not None and one.high is not None and one.estimate is not None:
                        inside = one.low <= truth <= one.high
                        rows.setdefault(name, []).append((one.estimate - truth, inside, one.high - one.low))
            for name in sorted(rows):
                bias, covered, width = np.mean(rows[name], axis=0)
                say(f"| {choose} | {made} | {name} | {bias:+.3f} | {covered:.3f} | {width:.2f} |\n")


if __name__ == "__main__":
    main()
