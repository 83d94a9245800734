"""How much outcomes say of steps: a table of claims, fitted to demonstrations with false beliefs. No model is trained.

    python studies/prime_table.py studies/prime.yaml
    python studies/prime_table.py configs/prime_math.yaml

One row for each of compare.tasks: the share of right answers, and after so many outcomes the AUROC with which the table
separates sound steps from first errors on other demonstrations, for each seed of beliefs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from guerdon.comparison.study import plan_study
from guerdon.rewards.tabular import OutcomeTable
from guerdon.settings.data import GeneratedDataSettings
from guerdon.settings.study import Study
from guerdon.statistics.classification import auroc, point
from guerdon.tasks.claims import claims
from guerdon.tasks.reasoning import StepTruth, step_truth, task_family
from guerdon.train.sft import demonstrate

L2 = 0.05


def main() -> None:
    """Fit and judge for every task, seed and number of outcomes."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("study", type=Path, help="a language study with generated tasks, sft.mistakes and compare.tasks")
    ask.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the beliefs")
    ask.add_argument("--outcomes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    ask.add_argument("--fresh", type=int, default=300, help="demonstrations to judge the table on")
    given = ask.parse_args()
    sys.stdout.write("  ".join(f"{name:>22}" for name in ("task", "right", *given.outcomes)) + "\n")
    configs = plan_study(given.study, []).configs
    for task in dict.fromkeys(name.partition(".")[0] for name in configs):
        study = next(config for name, config in configs.items() if name.startswith(f"{task}."))
        found = [one_seed(study, seed, given.outcomes, given.fresh) for seed in given.seeds]
        cells = (f"{np.mean(column):.3f} [{min(column):.3f}, {max(column):.3f}]" for column in zip(*found, strict=True))
        sys.stdout.write("  ".join(f"{cell:>22}" for cell in (task, *cells)) + "\n")
        sys.stdout.flush()


def one_seed(study: Study, seed: int, sizes: list[int], fresh: int) -> list[float]:
    """Share of right answers, and the AUROC after each number of outcomes."""
    if not isinstance(study.data, GeneratedDataSettings) or study.sft is None or study.sft.mistakes is None:
        raise SystemExit("the study needs data.type generated and sft.mistakes")
    family, rng = task_family(study.data.task), np.random.default_rng([seed, 50])
    beliefs = study.sft.mistakes.model_copy(update={"seed": seed})

    def draw(count: int) -> tuple[list[tuple[str, ...]], list[StepTruth]]:
        prompts = [family.sample(rng) for _ in range(count)]
        texts = [demonstrate(prompt, beliefs, rng) for prompt in prompts]
        pairs = list(zip(prompts, texts, strict=True))
        return [claims(*pair) for pair in pairs], [step_truth(*pair) for pair in pairs]

    judged = draw(fresh)
    found = [float(np.mean([truth.outcome for truth in judged[1]]))]
    for size in sizes:
        claimed, truths = draw(size)
        table = OutcomeTable(L2)
        table.add(claimed, np.array([float(truth.outcome) for truth in truths]))
        table.fit()
        labels: list[bool] = []
        scores: list[float] = []
        for lines, truth in zip(*judged, strict=True):
            until = truth.follows.index(False) + 1 if False in truth.follows else len(truth.follows)
            labels += truth.follows[:until]
            scores += table.of(lines)[:until].tolist()
        found.append(point(auroc, labels, scores) or float("nan"))
    return found


if __name__ == "__main__":
    main()
