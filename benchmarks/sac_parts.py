"""Where the time of SAC goes: this checkout against another one, beside matrix products and Stable-Baselines3's SAC.

All act in Pendulum-v1 as in `off_policy_vs_sb3.py`. Each side is a process of its own that is made once; then they take
rounds in turns, of 50 environment steps with a gradient step each, so that whatever else the machine does falls on all
alike. What counts is the time of computing (`time.process_time`), and ratios are of the same round. The side `products`
does nothing but the matrix products of as many gradient steps. What is neither products, Adam, drawing, acting nor the
environment is `element-wise`: activations, their gradients, the distribution of actions, targets, losses, and the calls
of all operations.

    git worktree add ../before v1.2
    python benchmarks/sac_parts.py --before=../before --core=1 --rounds=40 --width=256
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine_line, pin, table
from off_policy_vs_sb3 import BATCH, STARTS, TASK, products_step

HERE = Path(__file__).resolve().parent
STEPS, UNCOUNTED = 50, 2
PARTS = ("adam", "drawing", "acting", "environment")
SHOWN = {
    "products": "matrix products", "element-wise": "element-wise operations and calls", "adam": "Adam",
    "drawing": "drawing transitions", "acting": "acting and bookkeeping", "environment": "environment",
}  # fmt: skip
NAMES = {"before": "guerdon, before", "now": "guerdon, now", "sb3": "Stable-Baselines3"}


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


def guerdon_side(width: int, clock: Clock) -> Callable[[], Any]:
    """A round of guerdon's loop, whose parts are counted."""
    from gymnasium.vector import SyncVectorEnv

    from guerdon.collect.control import ControlCollector
    from guerdon.compute.optimizers import FlatAdam
    from guerdon.rl import off_policy
    from guerdon.rl.loop import Loop
    from guerdon.settings.study import Study

    learner, never = off_policy.ReplayLearner, 10**12
    FlatAdam.step = clock.timed("adam", FlatAdam.step)  # type: ignore[method-assign]
    learner._draw = clock.timed("drawing", learner._draw)  # type: ignore[method-assign]
    off_policy.gathered = clock.drawn("drawing", off_policy.gathered)
    ControlCollector.collect = clock.timed("acting", ControlCollector.collect)  # type: ignore[method-assign]
    SyncVectorEnv.step = clock.timed("environment", SyncVectorEnv.step)
    study = {
        "env": {"type": "gymnasium", "task": TASK, "num_envs": 1, "native_reward": "dense"},
        "policy": {"type": "mlp", "hidden": [width, width], "activation": "relu"},
        "algorithm": {
            "type": "sac", "batch_size": BATCH, "online_step_before_learning": STARTS, "rollout_steps": STEPS
        },
        "runner": {
            "total_steps": 10**6, "eval_every": never, "eval_episodes": 1, "checkpoint_every": never,
            "logger": {"tensorboard": False},
        },
    }  # fmt: skip
    loop = Loop(Study.model_validate(study), Path(tempfile.mkdtemp()))
    while loop.step < STARTS:
        loop.iterate()
    return loop.iterate


def sb3_side(width: int, clock: Clock) -> Callable[[], Any]:
    """A round of Stable-Baselines3."""
    from stable_baselines3 import SAC

    model = SAC(
        "MlpPolicy", TASK, batch_size=BATCH, learning_starts=STARTS, seed=0, device="cpu",
        policy_kwargs={"net_arch": [width, width]},
    )  # fmt: skip
    model.learn(STARTS)
    return lambda: model.learn(STEPS, reset_num_timesteps=False)


def products_side(width: int, clock: Clock) -> Callable[[], Any]:
    """The matrix products of as many gradient steps."""
    step = products_step(width)
    return lambda: [step() for _ in range(STEPS)]


SIDES = {"before": guerdon_side, "now": guerdon_side, "products": products_side, "sb3": sb3_side}


def serve(side: str, width: int) -> None:
    """Take a round for each line of the input, and print what it took as a line."""
    import torch

    torch.set_num_threads(1)
    clock = Clock()
    work = SIDES[side](width, clock)
    for _ in sys.stdin:
        parts, begin = dict(clock.seconds), time.process_time()
        work()
        spent = time.process_time() - begin
        each = {part: 1000 * (clock.seconds[part] - parts[part]) / STEPS for part in PARTS}
        print(json.dumps({"whole": 1000 * spent / STEPS, **each}), flush=True)


def started(side: str, checkout: Path, core: int, width: int) -> subprocess.Popen[str]:
    """The process of a side, with the source of a checkout."""
    variables = {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, __file__, f"--side={side}", f"--core={core}", f"--width={width}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | variables,
    )  # fmt: skip


def one_round(process: subprocess.Popen[str]) -> dict[str, float]:
    """What a round of a side took, in milliseconds for a step."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: dict[str, float] = json.loads(process.stdout.readline())
    return found


def middle(values: Any) -> str:
    """Median and quartiles."""
    low, half, high = np.percentile(values, [25, 50, 75])
    return f"{half:.2f} ({low:.2f} to {high:.2f})"


def report(found: dict[str, list[dict[str, float]]]) -> str:
    """The tables as Markdown."""
    whole = {side: np.array([one["whole"] for one in rounds]) for side, rounds in found.items()}
    outside = {side: times - whole["products"] for side, times in whole.items() if side != "products"}
    rows = [
        [NAMES[side], middle(whole[side]), middle(times), f"{np.median(times) / np.median(outside['before']):.2f}"]
        for side, times in outside.items()
    ]
    rows.append(["matrix products alone", middle(whole["products"]), "", ""])
    header = ["", "ms for a step", "outside of the products", "of that before"]
    parts = []
    for part, name in SHOWN.items():
        cells = []
        for side in ("before", "now"):
            times = {one: np.array([spent[one] for spent in found[side]]) for one in PARTS}
            times |= {"products": whole["products"], "element-wise": outside[side] - sum(times.values())}
            cells.append(f"{np.median(times[part]):.2f}")
        parts.append([name, *cells])
    return f"{table(header, rows)}\n\n{table(['ms for a step', 'before', 'now'], parts)}"


def main() -> None:
    """Print the tables, or be one side (`--side`)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of the state to compare with")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--width", type=int, default=256, help="of the two hidden layers")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--side", choices=list(SIDES), help="take rounds in this process")
    options = parser.parse_args()
    pin([options.core])
    if options.side:
        serve(options.side, options.width)
        return
    if options.before is None:
        parser.error("give --before")
    checkouts = dict.fromkeys(SIDES, HERE.parent) | {"before": options.before.resolve()}
    where = machine_line(["stable_baselines3"])
    processes = {side: started(side, checkouts[side], options.core, options.width) for side in SIDES}
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(options.rounds + UNCOUNTED):
        for side in sorted(SIDES, reverse=number % 2 == 1):
            spent = one_round(processes[side])
            if number >= UNCOUNTED:
                found[side].append(spent)
    for process in processes.values():
        process.communicate()
    print(
        f"{where}\n\n{options.width} x {options.width}, {options.rounds} rounds of {STEPS} steps; median (quartiles)."
        f"\n\n{report(found)}"
    )


if __name__ == "__main__":
    main()
