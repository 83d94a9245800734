"""Environment steps per second: guerdon's PPO, Stable-Baselines3's PPO and the bare simulator, on one core.

All three act in the same Meta-World task with its native 0/1 reward. Both PPOs have the same number of copies,
the same network and the same hyper-parameters; evaluations, checkpoints and TensorBoard are off in both. Each
measurement runs in a process of its own, and they take turns (raw, SB3, guerdon, raw, ...), so that whatever else
the machine does falls on all alike. Imports and construction do not count; everything after them does.

What differs, and is the point: guerdon restores a cached state where Meta-World simulates 100 steps at every reset;
it acts through numpy and computes log-probabilities and values of a whole rollout at once; its parameters are one
flat tensor under one fused Adam. SB3 runs the way its documentation shows: `make_vec_env` (a `DummyVecEnv` of
`Monitor`ed environments), Meta-World's own reset with a goal drawn from the task's 50, `TimeLimit` of 200 steps.

    python benchmarks/ppo_vs_sb3.py --core=1 --repetitions=5
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import machine_line, measure, pin, spread, table, tell

SIDES = ("raw", "sb3", "guerdon")
COPIES, HORIZON, ROLLOUT, HIDDEN = 8, 200, 250, (128, 128)
PPO = {"learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2, "max_grad_norm": 0.5}
EPOCHS, MINIBATCH = 10, 250


def make_env(task: str, seed: int) -> Any:
    """One copy of the task as anyone would make it: 0/1 reward, a goal drawn at reset, 200 steps."""
    import gymnasium
    import metaworld
    import numpy as np

    benchmark = metaworld.MT1(f"{task}-v3", seed=0)

    class SparseGoals(gymnasium.Wrapper):
        """Draws one of the 50 goals at reset and rewards success with 1."""

        rng = np.random.default_rng(seed)

        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            goals = benchmark.train_tasks
            self.unwrapped.set_task(goals[int(self.rng.integers(len(goals)))])
            return self.env.reset(**kwargs)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, _, terminated, truncated, info = self.env.step(action)
            return observation, float(info["success"]), terminated, truncated, info

    env = benchmark.train_classes[f"{task}-v3"]()
    env.set_task(benchmark.train_tasks[0])
    return gymnasium.wrappers.TimeLimit(SparseGoals(env), HORIZON)


def run_raw(task: str, steps: int) -> float:
    """Seconds of a plain loop: random actions in one copy, a reset every 200 steps."""
    import numpy as np

    env = make_env(task, 0)
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, 4)).astype(np.float32)
    env.reset()
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return time.perf_counter() - start


def run_sb3(task: str, steps: int) -> float:
    """Seconds of Stable-Baselines3's PPO from after its first reset to its end."""
    import torch
    from stable_baselines3 import PPO as SB3PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Clock(BaseCallback):
        """Starts when training does, the copies being reset."""

        start = 0.0

        def _on_training_start(self) -> None:
            self.start = time.perf_counter()

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(1)
    seeds = iter(range(COPIES))
    envs = make_vec_env(lambda: make_env(task, next(seeds)), n_envs=COPIES, seed=0)
    model = SB3PPO(
        "MlpPolicy",
        envs,
        n_steps=ROLLOUT,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        vf_coef=0.5,
        ent_coef=0.0,
        policy_kwargs={"net_arch": {"pi": list(HIDDEN), "vf": list(HIDDEN)}, "activation_fn": torch.nn.Tanh},
        seed=0,
        device="cpu",
        **PPO,
    )
    clock = Clock()
    model.learn(steps, callback=clock)
    return time.perf_counter() - clock.start


def run_guerdon(task: str, steps: int) -> tuple[float, dict[str, float]]:
    """Seconds of guerdon's loop from after its first reset to its last update, and their split by phase."""
    from guerdon.rl.loop import Loop
    from guerdon.settings.study import Study

    never = 10**12
    study = Study.model_validate(
        {
            "runner": {
                "total_steps": steps,
                "eval_every": never,
                "eval_episodes": 1,
                "checkpoint_every": never,
                "logger": {"tensorboard": False},
            },
            "env": {"task": task, "num_envs": COPIES, "max_episode_steps": HORIZON, "native_reward": "sparse"},
            "policy": {"type": "mlp", "hidden": HIDDEN, "activation": "tanh", "normalize_observations": False},
            "algorithm": {
                "rollout_steps": ROLLOUT, "num_epochs": EPOCHS, "minibatch_size": MINIBATCH, "value_coef": 1.0, **PPO
            },
        }
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(study, Path(folder))
        begun = loop.wall_time
        loop.run()
        rows = [json.loads(line) for line in (Path(folder) / "timings.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "kind" not in row]  # what follows the last update is one evaluation and a film
    phases = {
        name.removeprefix("seconds/"): sum(row[name] for row in rows) for name in rows[0] if name.startswith("seconds/")
    }
    return rows[-1]["wall_time"] - begun, phases


def one(side: str, task: str, steps: int) -> dict[str, Any]:
    """One measurement, in this process."""
    if side == "guerdon":
        seconds, phases = run_guerdon(task, steps)
        return {"rate": steps / seconds, "seconds": seconds, "phases": phases}
    seconds = (run_raw if side == "raw" else run_sb3)(task, steps)
    return {"rate": steps / seconds, "seconds": seconds}


def report(results: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> str:
    """The measurements as Markdown."""
    rates = {side: [r["rate"] for r in runs] for side, runs in results.items()}

    def over(a: str, b: str) -> list[float]:
        return [x / y for x, y in zip(rates[a], rates[b], strict=True)]

    names = {
        "raw": "simulator alone, random actions",
        "sb3": "Stable-Baselines3 PPO",
        "guerdon": "guerdon PPO",
    }
    rows = [
        [names[side], spread(rates[side], 0), spread(over(side, "raw")), spread(over(side, "sb3"))]
        for side in options.sides
    ]
    header = ["", "environment steps/s", "share of the simulator's speed", "ratio to SB3"]
    phases = results["guerdon"][0]["phases"]
    totals = {name: sum(r["phases"][name] for r in results["guerdon"]) for name in phases}
    whole = sum(r["seconds"] for r in results["guerdon"])
    split = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in totals.items() if seconds)
    ratio = over("guerdon", "sb3")
    return (
        f"Task {options.task}, {options.steps} steps, {options.repetitions} repetitions taking turns; "
        f"median (lowest to highest).\n\n{table(header, rows)}\n\n"
        f"guerdon over SB3, turn by turn: {spread(ratio)}. guerdon's time: {split}, "
        f"the rest {1 - sum(totals.values()) / whole:.0%}."
    )


def main() -> None:
    """Measure in turns and print Markdown, or do one measurement for the process that asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="window-close")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps of each measurement")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help="one measurement in this process")
    options = parser.parse_args()
    options.sides = SIDES
    pin([options.core])
    if options.side:
        tell(one(options.side, options.task, options.steps))
        return
    where = machine_line(["stable_baselines3"])
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for repetition in range(options.repetitions):
        for side in SIDES:
            told = measure(
                __file__, {"side": side, "task": options.task, "core": options.core, "steps": options.steps}
            )
            results[side].append(told)
            print(f"repetition {repetition}: {side} {told['rate']:.0f} steps/s in {told['seconds']:.1f} s", flush=True)
    print(f"\n{where}\n\n{report(results, options)}")


if __name__ == "__main__":
    main()
