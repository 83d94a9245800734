"""What an implicit process reward model learns from outcomes alone: where solutions go wrong, and whom to believe.

A policy answers training prompts; a verifier says right or wrong, nothing else. From that an implicit reward model is
trained (2412.01981: beta x the sum of log-ratios is the logit of a right answer). Then it scores other
questions: does it find the first wrong step (F1 as in ProcessBench, the threshold chosen on one half of the questions,
the F1 measured on the other), and does voting weighted by it beat majority voting? The truth about steps is used for
nothing but this judgement.

    python studies/offline_prm.py configs/prime_math.yaml --task chain --seeds 0 1 2

The study's supervised start is trained first where it is missing. One row per seed of rollouts and training; the line
below gives the mean over seeds with a t interval. Intervals in a row are over questions.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from guerdon.collect.text import TextRollout
from guerdon.comparison.study import plan_study
from guerdon.episodes.solutions import Solution
from guerdon.evaluation.benchmarks.best_of_n import best_of_n
from guerdon.evaluation.benchmarks.step_benchmarks import process_bench
from guerdon.files import atomic
from guerdon.rewards.prime import PrimeReward
from guerdon.rewards.text_steps import steps_of
from guerdon.rl.build_text import text_parts
from guerdon.statistics.intervals import Interval
from guerdon.tasks.reasoning import step_spans, step_truth
from guerdon.train.sft import train_sft_study
from guerdon.types import Score

COLUMNS = ("train_accuracy", "first_error_f1", "majority", "weighted", "weighted_minus_majority", "best_of_n", "pass")


def main() -> None:
    """Train and judge, once per seed."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("study", type=Path, help="a language study with an sft section and generated tasks")
    ask.add_argument("--task", default="chain", help="one of compare.tasks")
    ask.add_argument("--arm", default="prime", help="an arm whose reward model is rm_type prime")
    ask.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    ask.add_argument("--rollouts", type=int, default=4096, help="responses to learn from")
    ask.add_argument("--epochs", type=int, default=3)
    ask.add_argument("--beta", type=float, default=0.5)
    ask.add_argument("--lr", type=float, default=3e-4)
    ask.add_argument("--questions", type=int, default=128, help="validation questions to judge it on")
    ask.add_argument("--samples", type=int, default=16, help="responses per question")
    ask.add_argument("--out", type=Path, default=None, help="write the numbers here as JSON")
    given = ask.parse_args()
    torch.set_num_threads(1)
    write = sys.stdout.write
    write("  ".join(f"{name:>24}" for name in ("seed", *COLUMNS)) + "\n")
    rows = []
    for seed in given.seeds:
        rows.append(one_seed(given, seed))
        write("  ".join(f"{cell:>24}" for cell in (seed, *(shown(rows[-1][name]) for name in COLUMNS))) + "\n")
        sys.stdout.flush()
    if len(rows) > 1:
        means = (over_seeds([row[name][0] for row in rows]) for name in COLUMNS)
        write("  ".join(f"{cell:>24}" for cell in ("mean", *means)) + "\n")
    if given.out is not None:
        atomic.write_json(given.out, {"arguments": json.loads(json.dumps(vars(given), default=str)), "rows": rows})


def one_seed(given: argparse.Namespace, seed: int) -> dict[str, list[float | None]]:
    """Each number with its interval over questions, where it has one."""
    model = f"compare.arms.{given.arm}.config.reward_model.prime_model"
    changes = [
        f"compare.seeds=[{seed}]",
        "data.n_samples=4",
        f"data.train_batch_size={given.rollouts // 4}",
        f"{model}.beta_train={given.beta}",
        f"{model}.optim.lr={given.lr}",
    ]
    plan = plan_study(given.study, changes)
    sft = plan.configs.get(f"{given.task}.sft")
    if sft is not None:
        train_sft_study(sft, resume=True)
    study = plan.configs[f"{given.task}.{given.arm}.seed{seed}"]
    parts = text_parts(study, fresh=True)
    collector = parts.collector
    learned_from = collector.sampler.draw()
    judged_on = collector.sampler.answer(collector.prompts.validation[: given.questions], given.samples)
    reward = parts.sources["prime"]
    assert isinstance(reward, PrimeReward)
    batch = reward.labelled(learned_from)
    rng = np.random.default_rng([seed, 9])
    for _ in range(given.epochs):
        reward.fit(batch.take(rng.permutation(len(learned_from.inputs))))
    q_B_T = reward.log_ratios(reward.labelled(judged_on)).numpy().astype(np.float64)
    collector.close()
    return {"train_accuracy": [float(learned_from.outcomes_B.mean())], **judge(judged_on, q_B_T, given, seed)}


def judge(
    answered: TextRollout, q_B_T: np.ndarray, given: argparse.Namespace, seed: int
) -> dict[str, list[float | None]]:
    """First errors and voting on questions that the model has not seen."""
    solutions, per_step, whole = [], [], []
    for row, ends in enumerate(steps_of(answered.inputs)):
        prompt, text = answered.inputs.prompts[row], answered.inputs.texts[row]
        truth = step_truth(prompt, text)
        sums = np.diff(np.concatenate([[0.0], np.cumsum(q_B_T[row])[ends]]))
        solutions.append(
            Solution(
                id=f"{prompt.id}-{row}",
                question=prompt.question,
                steps=tuple(text[a:b] for a, b in step_spans(text)),
                is_correct=bool(answered.outcomes_B[row]),
                answer=truth.answer,
                meta={"first_error": truth.first_error, "subset": ("tune", "test")[(row // given.samples) % 2]},
            )
        )
        per_step.append(Score.from_values(logistic(given.beta * sums)))
        whole.append(Score(total=float(logistic(given.beta * q_B_T[row].sum()))))
    bench = process_bench(solutions, per_step, tune_on="tune", seed=seed)
    votes = best_of_n(solutions, whole, lambda a, b: a == b, aggregations=("last",), ns=(given.samples,), seed=seed)
    curves = votes.failures_wrong
    weighted = curves["weighted_last"]
    found = {
        "first_error_f1": bench.subsets["test"].measured["f1"],
        "majority": curves["majority"].accuracy[0],
        "weighted": weighted.accuracy[0],
        "weighted_minus_majority": weighted.minus_majority[0],
        "best_of_n": curves["bon_last"].accuracy[0],
        "pass": curves["pass"].accuracy[0],
    }
    return {name: numbers(interval) for name, interval in found.items()}


def logistic(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(x)))


def numbers(interval: Interval) -> list[float | None]:
    """Estimate, low, high; None where there is none."""
    return [None if v is None else float(v) for v in (interval.estimate, interval.low, interval.high)]


def shown(value: list[float | None]) -> str:
    """An estimate, with its interval where it has one."""
    cells = ["-" if v is None else f"{v:.3f}" for v in value]
    return cells[0] + (f" [{cells[1]}, {cells[2]}]" if len(cells) == 3 else "")


def over_seeds(values: list[float | None]) -> str:
    """The mean with a 95 % t interval over seeds; `-` where a seed has no value."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return "-"
    mean, n = float(np.mean(known)), len(known)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(known, ddof=1) / n**0.5)
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


if __name__ == "__main__":
    main()
