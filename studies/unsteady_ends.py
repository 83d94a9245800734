"""Does a PPO run keep the success that it reached? The table of docs/results/robots.md, "Why the ends are unsteady".

    python studies/unsteady_ends.py runs/ends.csv runs/off_policy/jobs/door-close.P.seed*.yaml algorithm.target_kl=0.02
    python studies/unsteady_ends.py runs/ends.csv

The first line repeats runs of a comparison with other keys, and evaluates an exponential moving average of the
policy's weights, too, wherever the policy is evaluated; it adds the successes to the file. The second prints, by keys
and weights, how many runs reached 0.95, how many of these ended below 0.9, and the final success.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from guerdon.config.loading import load
from guerdon.rl.loop import Loop, PolicyAverage
from guerdon.settings.study import Study

DECAYS = (0.8, 0.95)  # per update: averages over about 5 and 20 of them


class AveragingLoop(Loop):
    """A run that evaluates averages of its policy's weights, which act nowhere else.

    Attributes:
        found: (step, weights, true success) of each evaluation.
    """

    def __init__(self, study: Study, folder: Path) -> None:
        super().__init__(study, folder)
        self.found: list[tuple[int, str, float]] = []
        self.averages = {decay: PolicyAverage(self.learner.policy, decay) for decay in DECAYS}

    def iterate(self) -> None:
        """One iteration, and the averages after it."""
        super().iterate()
        for average in self.averages.values():
            average.follow()

    def _evaluate(self) -> None:
        super()._evaluate()
        self.found.append((self.step, "last", self._true_success()["success"]))
        policy, episodes = self.learner.policy, self.study.runner.eval_episodes
        for decay, average in self.averages.items():
            with average.acting():
                result = self.collector.evaluate(policy, episodes=episodes, step=self.step)
            self.found.append((self.step, f"average {decay}", result["success"]))


def measure(table: Path, job: Path, keys: Sequence[str]) -> None:
    """Repeat a run with other keys and add its evaluations to the file."""
    with tempfile.TemporaryDirectory() as folder:
        study = load(Study, job, [*keys, f"work_dir={folder}"])
        loop = AveragingLoop(study, Path(folder) / "run")
        loop.run()
    with table.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([" ".join(keys) or "as in the file", job.stem, *row] for row in loop.found)


def report(table: Path) -> None:
    """Print a row of Markdown for each choice of keys and weights."""
    curves: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with table.open(newline="", encoding="utf-8") as file:
        for keys, job, _, weights, success in csv.reader(file):
            curves[keys, weights][job].append(float(success))
    print("| keys | weights | reached 0.95 | of these ended below 0.9 | final success, mean |")
    print("| --- | --- | ---: | ---: | ---: |")
    for (keys, weights), runs in curves.items():
        reached = [run for run in runs.values() if max(run) >= 0.95]
        lost, ends = sum(run[-1] < 0.9 for run in reached), [run[-1] for run in runs.values()]
        mean = sum(ends) / len(ends)
        print(f"| {keys} | {weights} | {len(reached)} of {len(runs)} | {lost} of {len(reached)} | {mean:.2f} |")


def main() -> None:
    """Repeat runs, or print the table of those that were repeated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, help="a file of CSV, which grows")
    parser.add_argument("given", nargs="*", help="configurations of runs, and key=value for all of them")
    options = parser.parse_args()
    keys = [one for one in options.given if "=" in one]
    for job in options.given:
        if job not in keys:
            measure(options.table, Path(job), keys)
    if not options.given:
        report(options.table)


if __name__ == "__main__":
    main()
