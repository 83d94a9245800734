"""The terms of the report, each explained in one sentence; a page explains those that it contains.

terms_of("<td>IQM</td>")      # [("IQM", "Interquartile mean: ...")]
"""

from __future__ import annotations

import re

TERMS: dict[str, tuple[str, str]] = {
    "true success": (
        r"true success",
        "Whether the task was really done; it is measured without any reward model.",
    ),
    "arm": (r"\barms?\b", "One of the settings under comparison; all arms share tasks, seeds and training budget."),
    "95% interval": (
        r"95% (?:\w+ )*interval",
        "A range from a procedure that contains the true value in 95 of 100 repetitions of the whole study.",
    ),
    "paired difference": (
        r"paired difference",
        "The difference between two arms on the same task and seed, averaged; variation between seeds cancels.",
    ),
    "stratified bootstrap": (
        r"stratified bootstrap",
        "An interval from drawing runs again with replacement, separately within each task.",
    ),
    "Holm's method": (
        r"\bHolm",
        "A correction for several comparisons: the chance of any false verdict stays below 5%.",
    ),
    "sign-flip test": (
        r"sign-flip test",
        "How often the observed difference would be reached if the sign of each pair's difference were random.",
    ),
    "IQM": (r"\bIQM\b", "Interquartile mean: the mean of the middle half of the runs, robust to single outliers."),
    "area under curve": (
        r"[Aa]rea under curve",
        "The mean height of the learning curve: high for an arm that learns early and stays successful.",
    ),
    "failed score": (
        r"[Ff]ailed (?:scores|measurements)",
        "A measurement that the reward model could not make; it is left out of training instead of counted as 0.",
    ),
    "reward hacking": (
        r"reward hacking",
        "The policy raises the learned reward without doing the task, by exploiting errors of the reward model.",
    ),
    "correlation": (
        r"[Cc]orrelation",
        "From -1 to 1: how well two quantities rise together; 0 means no linear relation.",
    ),
    "AUROC": (
        r"\bAUROC\b",
        "The chance that a random success scores higher than a random failure; 0.5 is chance, 1 is perfect.",
    ),
    "AUPRC": (
        r"\bAUPRC\b",
        "Mean precision over all thresholds; the share of successes is what a random score reaches.",
    ),
    "Brier score": (r"\b[Bb]rier\b", "Mean squared error of predicted probabilities."),
    "ECE": (
        r"\bECE\b|\bece\b",
        "Expected calibration error: the mean gap between predicted probability and observed frequency.",
    ),
    "false positive rate": (r"false positive rate", "The share of failures that the model calls a success."),
    "majority baseline": (
        r"[Mm]ajority baseline",
        "The value of a trivial model that ignores its input; a metric that does not beat it shows nothing.",
    ),
    "MAE": (r"\bMAE\b", "Mean absolute error, in the unit of the score."),
    "value order": (
        r"value order",
        "Whether scores rise over the frames of a successful episode: the rank correlation of score and time.",
    ),
    "Spearman, Kendall": (
        r"\b[Ss]pearman\b|\bKendall\b|\btau [ab]\b",
        "Rank correlations from -1 to 1: they compare orders, not sizes. Kendall's tau counts pairs in the same order.",
    ),
    "preference accuracy": (
        r"preference accuracy",
        "Of pairs of a successful and a failed episode, the share in which the successful one has the higher score.",
    ),
    "probe": (
        r"\b[Pp]robes?\b",
        "An episode changed in a known way, such as black or reversed frames, for which the right result is known.",
    ),
    "EPIC": (
        r"\bEPIC\b",
        "A distance of two rewards from 0 to 1; 0: they are equal up to their scale and potential-based shaping.",
    ),
    "STARC": (
        r"\bSTARC\b",
        "A distance of two rewards, 0 if equal up to scale and shaping; it bounds the cost of optimizing the other.",
    ),
    "oracle": (r"\boracle\b", "A choice made with the true answers known: the best that any choice could reach."),
    "best-of-n": (r"[Bb]est[- ]of[- ](?:n\b|\d)", "Of n samples, the one with the highest reward is taken."),
    "first error": (r"first error", "The first wrong step of a solution; later steps are not judged."),
    "F1": (
        r"\bF1\b",
        "Harmonic mean of two accuracies (ProcessBench: on solutions with an error and on correct ones).",
    ),
}
"""Name of a term to the pattern that finds it in a page and its explanation."""


def terms_of(page: str) -> list[tuple[str, str]]:
    """The terms that a page contains, with their explanations, in the order of `TERMS`.

    Args:
        page: HTML; scripts, styles, code and attributes do not count.
    """
    text = re.sub(r"<(script|style|pre|code|svg)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text)
    return [(term, sentence) for term, (pattern, sentence) in TERMS.items() if re.search(pattern, text)]
