"""Where the time of SAC goes: this checkout against another one, in pairs, by parts.

Each measurement runs in a process of its own: guerdon's SAC in Pendulum-v1 as `off_policy_vs_sb3.py` has it, from its
first gradient step on, with the time of computing of each part; the matrix products of as many gradient steps alone;
and Stable-Baselines3. What is neither products, Adam, drawing, acting nor the environment is `element-wise`:
activations, their gradients, the distribution of actions, targets, losses, and the calls of all operations.

    git worktree add ../before v1.2
    python benchmarks/sac_parts.py --before=../before --core=1 --pairs=5 --width=256
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine_line, measure, pin, report_measurement, spread, table, time_guerdon
from off_policy_vs_sb3 import BATCH, STARTS, TASK, run_products, run_sb3

HERE = Path(__file__).resolve().parent
PARTS = ("adam", "drawing", "acting", "environment")
SHOWN = {
    "products": "matrix products", "element-wise": "element-wise operations and calls", "adam": "Adam",
    "drawing": "drawing transitions", "acting": "acting and bookkeeping", "environment": "environment",
}  # fmt: skip


class Clock:
    """Time of computing by part; what a part calls that is a part of its own counts there alone."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._inside: list[float] = []

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose time is counted."""

        def counted(*args: Any, **given: Any) -> Any:
            begin = time.process_time()
            self._inside.append(0.0)
            try:
                return work(*args, **given)
            finally:
                self._count(part, time.process_time() - begin)

        return counted

    def drawn(self, part: str, work: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """The same generator, whose steps are counted."""

        def counted(*args: Any, **given: Any) -> Iterator[Any]:
            found = iter(work(*args, **given))
            following = self.timed(part, lambda: next(found, None))
            while (one := following()) is not None:
                yield one

        return counted

    def _count(self, part: str, spent: float) -> None:
        inside = self._inside.pop()
        self.seconds[part] += spent - inside
        if self._inside:
            self._inside[-1] += spent


def run_guerdon(width: int, steps: int) -> dict[str, Any]:
    """The loop of guerdon: two runs, of which the shorter one has no gradient step more than its start."""
    from gymnasium.vector import SyncVectorEnv

    from guerdon.collect.control import ControlCollector
    from guerdon.compute.optimizers import FlatAdam
    from guerdon.rl import off_policy

    study = {
        "env": {"type": "gymnasium", "task": TASK, "num_envs": 1, "native_reward": "dense"},
        "policy": {"type": "mlp", "hidden": [width, width], "activation": "relu"},
        "algorithm": {
            "type": "sac", "batch_size": BATCH, "online_step_before_learning": STARTS, "rollout_steps": 50
        },
    }  # fmt: skip
    clock = Clock()
    learner = off_policy.ReplayLearner
    FlatAdam.step = clock.timed("adam", FlatAdam.step)  # type: ignore[method-assign]
    learner._draw = clock.timed("drawing", learner._draw)  # type: ignore[method-assign]
    off_policy.gathered = clock.drawn("drawing", off_policy.gathered)
    ControlCollector.collect = clock.timed("acting", ControlCollector.collect)  # type: ignore[method-assign]
    SyncVectorEnv.step = clock.timed("environment", SyncVectorEnv.step)
    start = time_guerdon({**study, "runner": {"total_steps": STARTS}})
    before = dict(clock.seconds)
    whole = time_guerdon({**study, "runner": {"total_steps": STARTS + steps}})
    parts = {part: clock.seconds[part] - 2 * before[part] for part in PARTS}  # the first run again is in the second
    seconds = whole["core_seconds"] - start["core_seconds"]
    return {"core_seconds": seconds, "steps": steps, "parts": parts}


RUNS = {"guerdon": run_guerdon, "products": run_products, "sb3": run_sb3}


def parts_of(run: dict[str, Any], products: float) -> dict[str, float]:
    """Milliseconds of each part for a step."""
    each = {part: 1000 * seconds / run["steps"] for part, seconds in run["parts"].items()}
    whole = 1000 * run["core_seconds"] / run["steps"]
    return {"products": products, "element-wise": whole - products - sum(each.values()), **each}


def main() -> None:
    """Print the tables as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of the state to compare with")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--steps", type=int, default=1000, help="environment steps of each measurement")
    parser.add_argument("--width", type=int, default=256, help="of the two hidden layers")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--side", choices=list(RUNS), help="one measurement in this process")
    options = parser.parse_args()
    pin([options.core])
    if options.side:
        report_measurement(RUNS[options.side](options.width, options.steps))
        return
    checkouts = {"now": HERE.parent} | ({} if options.before is None else {"before": options.before.resolve()})
    sides = {**{name: ("guerdon", checkout) for name, checkout in checkouts.items()}}
    sides |= {name: (name, HERE.parent) for name in ("products", "sb3")}
    where, found = machine_line(["stable_baselines3"]), {name: list[dict[str, Any]]() for name in sides}
    for pair in range(options.pairs):
        for name in sorted(sides, reverse=pair % 2 == 1):
            side, checkout = sides[name]
            os.environ["PYTHONPATH"] = str(checkout / "src")
            given = {"side": side, "core": options.core, "steps": options.steps, "width": options.width}
            found[name].append(measure(__file__, given))
            each = 1000 * found[name][-1]["core_seconds"] / options.steps
            print(f"pair {pair}: {name}, {each:.2f} ms of a core for a step", flush=True)
    each = {name: [1000 * one["core_seconds"] / one["steps"] for one in runs] for name, runs in found.items()}
    outside = {name: np.subtract(each[name], each["products"]).tolist() for name in each if name != "products"}
    names = [name for name in ("before", "now") if name in sides]
    rows = [
        [name, spread(each[name]), spread(outside[name]),
         *[spread(np.divide(outside[name], outside[other]).tolist()) for other in ("before", "sb3") if other in sides]]
        for name in (*names, "sb3")
    ]  # fmt: skip
    rows.append(["matrix products alone", spread(each["products"]), "0", *[""] * (len(rows[0]) - 3)])
    header = ["", "ms of a core for a step", "outside of the products"]
    header += [f"of that {what}" for what in ("before", "of Stable-Baselines3")][-(len(rows[0]) - 3) :]
    split = {name: [parts_of(*pair) for pair in zip(found[name], each["products"], strict=True)] for name in names}
    parts = [
        [SHOWN[part], *[spread([one[part] for one in split[name]]) for name in names]] for part in SHOWN
    ]  # fmt: skip
    print(
        f"\n{where}\n\n{options.width} x {options.width}, {options.steps} steps, {options.pairs} pairs; median (lowest "
        f"to highest).\n\n{table(header, rows)}\n\n{table(['ms for a step', *names], parts)}"
    )


if __name__ == "__main__":
    main()
