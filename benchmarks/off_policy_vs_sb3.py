"""Environment steps per second of computing: SAC of guerdon, of Stable-Baselines3 and of sbx, and its matrix products.

All act in Pendulum-v1, one copy, with batches of 256 transitions, one gradient step per environment step, two critics
and a learned temperature, in float32 on one core. Each measurement runs in a process of its own, and they alternate.
Seconds are those of computing (`time.process_time`) from the first gradient step on, so that other work on the machine
counts for none of them; the process of the side `products` does nothing but the matrix products of as many gradient
steps: two of the policy and three of the critics forwards, and those of the gradients.

Stable-Baselines3 runs the way its documentation shows, with a gradient step after each step; guerdon's rollouts have 50
steps, and 50 gradient steps follow. sbx is Stable-Baselines3 in JAX; its functions are compiled before its time begins.

    python benchmarks/off_policy_vs_sb3.py --core=1 --repetitions=5
    python benchmarks/off_policy_vs_sb3.py --core=1 --repetitions=5 --sides sb3 guerdon sbx products
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from harness import (
    Stopwatch,
    machine_line,
    measure,
    pin,
    rates,
    ratios,
    report_measurement,
    spread,
    table,
    time_guerdon,
)

TASK, BATCH, STARTS = "Pendulum-v1", 256, 500
OBSERVED, ACTIONS, CRITICS = 3, 1, 2
COMPILED = 100  # steps after which JAX compiles nothing more


def run_sb3(width: int, steps: int) -> dict[str, Any]:
    """Stable-Baselines3's SAC from its first gradient step on."""
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    model = SAC(
        "MlpPolicy", TASK, batch_size=BATCH, learning_starts=STARTS, seed=0, device="cpu",
        policy_kwargs={"net_arch": [width, width]},
    )  # fmt: skip
    model.learn(STARTS)
    watch = Stopwatch()
    model.learn(steps, reset_num_timesteps=False)
    return {**watch.read(), "steps": steps}


def run_sbx(width: int, steps: int) -> dict[str, Any]:
    """SAC of sbx, compiled, from its first gradient steps on."""
    from sbx import SAC

    model = SAC(
        "MlpPolicy", TASK, batch_size=BATCH, learning_starts=STARTS, seed=0,
        policy_kwargs={"net_arch": [width, width]},
    )  # fmt: skip
    model.learn(STARTS + COMPILED)
    watch = Stopwatch()
    model.learn(steps, reset_num_timesteps=False)
    return {**watch.read(), "steps": steps}


def run_guerdon(width: int, steps: int) -> dict[str, Any]:
    """The loop of guerdon: two runs, of which the shorter one has no gradient step more than its start."""
    study = {
        "env": {"type": "gymnasium", "task": TASK, "num_envs": 1, "native_reward": "dense"},
        "policy": {"type": "mlp", "hidden": [width, width], "activation": "relu"},
        "algorithm": {
            "type": "sac", "batch_size": BATCH, "online_step_before_learning": STARTS, "rollout_steps": 50
        },
    }  # fmt: skip
    start = time_guerdon({**study, "runner": {"total_steps": STARTS}})
    whole = time_guerdon({**study, "runner": {"total_steps": STARTS + steps}})
    return {name: whole[name] - start[name] for name in ("seconds", "core_seconds")} | {"steps": steps}


def products_step(width: int) -> Callable[[], None]:
    """The matrix products of a gradient step."""
    import torch

    critic = [torch.randn(CRITICS, i, o) for i, o in ((OBSERVED + ACTIONS, width), (width, width), (width, 2))]
    policy = [torch.randn(1, i, o) for i, o in ((OBSERVED, width), (width, width), (width, 2 * ACTIONS))]
    of = {
        id(w): (torch.randn(len(w), BATCH, w.shape[1]), torch.randn(len(w), BATCH, w.shape[2])) for w in critic + policy
    }

    def forward(network: list[Any]) -> None:
        for w in network:
            torch.bmm(of[id(w)][0], w)

    def backward(network: list[Any], *, weights: bool, inputs: bool) -> None:
        for k, w in enumerate(network):
            x, g = of[id(w)]
            if weights:
                torch.bmm(x.mT, g)
            if k or inputs:
                torch.bmm(g, w.mT)

    def step() -> None:
        forward(policy)
        forward(critic)
        forward(critic)
        backward(critic, weights=True, inputs=False)
        forward(policy)
        forward(critic)
        backward(critic, weights=False, inputs=True)
        backward(policy, weights=True, inputs=False)

    return step


def run_products(width: int, steps: int) -> dict[str, Any]:
    """The matrix products of as many gradient steps."""
    import torch

    torch.set_num_threads(1)
    step = products_step(width)
    for _ in range(20):
        step()
    watch = Stopwatch()
    for _ in range(steps):
        step()
    return {**watch.read(), "steps": steps}


RUNS = {"sb3": run_sb3, "guerdon": run_guerdon, "sbx": run_sbx, "products": run_products}
NAMES = {
    "sb3": "Stable-Baselines3 SAC", "guerdon": "guerdon SAC", "sbx": "sbx SAC", "products": "the matrix products alone"
}  # fmt: skip


def main() -> None:
    """Print the table as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--steps", type=int, default=1000, help="environment steps of each measurement")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256], help="of the two hidden layers")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=list(RUNS), default=["sb3", "guerdon", "products"])
    parser.add_argument("--side", choices=list(RUNS), help="one measurement in this process, of the first width")
    options = parser.parse_args()
    pin([options.core])
    if options.side:
        report_measurement(RUNS[options.side](options.widths[0], options.steps))
        return
    packages = ["stable_baselines3", *(["sbx_rl", "jax"] if "sbx" in options.sides else [])]
    where, rows = machine_line(packages), []
    for width in options.widths:
        results: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
        for repetition in range(options.repetitions):
            for side in options.sides:
                given = {"side": side, "core": options.core, "steps": options.steps, "widths": width}
                results[side].append(measure(__file__, given))
                rate = rates(results[side], "core_seconds")[-1]
                print(f"repetition {repetition}: {NAMES[side]}, {width}: {rate:.0f} steps per core-second", flush=True)
        core = {side: rates(runs, "core_seconds") for side, runs in results.items()}
        rows += [
            [f"{NAMES[side]}, {width} x {width}", spread(core[side], 0), spread(ratios(core[side], core["sb3"])),
             spread(ratios(core["products"], core[side]))]
            for side in options.sides
        ]  # fmt: skip
    header = ["", "steps per core-second", "ratio to SB3", "time over that of the products"]
    print(f"\n{where}\n\nMedian of {options.repetitions} (lowest to highest).\n\n{table(header, rows)}")


if __name__ == "__main__":
    main()
