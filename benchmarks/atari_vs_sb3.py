"""Frames of an Atari game per second of computing: guerdon's PPO, Stable-Baselines3's PPO and the game alone.

Both have the network of Mnih et al. (2015), which actor and critic share, 8 copies and the settings of RL Baselines3
Zoo: rollouts of 128 steps, 4 epochs in minibatches of 256, 84 x 84 pictures of every fourth frame, four at once,
clipped rewards, FIRE at the start. Each measurement runs in a process of its own on one core, and they alternate.
Seconds are those of computing (`time.process_time`) from after the first reset to the last update.

Stable-Baselines3 runs as its documentation shows: `make_atari_env` and `VecFrameStack`. `game` takes random actions in
one copy of Gymnasium's `AtariPreprocessing`.

    python benchmarks/atari_vs_sb3.py --core=1 --repetitions=3
"""

from __future__ import annotations

import argparse
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

COPIES, ROLLOUT, EPOCHS, MINIBATCH, FRAMES = 8, 128, 4, 256, 4
PPO = {"learning_rate": 2.5e-4, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.1, "max_grad_norm": 0.5}


def run_game(task: str, steps: int) -> dict[str, Any]:
    """Random actions in one copy."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make(task, frameskip=1))
    env.action_space.seed(0)
    env.reset(seed=0)
    watch = Stopwatch()
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    return {**watch.read(), "steps": steps * FRAMES}


def run_sb3(task: str, steps: int) -> dict[str, Any]:
    """Stable-Baselines3's PPO from after its first reset to its end."""
    import ale_py
    import gymnasium
    import torch
    from stable_baselines3 import PPO as SB3PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    class Start(BaseCallback):
        """Starts the watch when training does, the copies being reset."""

        watch = Stopwatch()

        def _on_training_start(self) -> None:
            self.watch = Stopwatch()

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(1)
    gymnasium.register_envs(ale_py)
    envs = VecFrameStack(make_atari_env(task, n_envs=COPIES, seed=0), n_stack=4)
    model = SB3PPO(
        "CnnPolicy", envs, n_steps=ROLLOUT, batch_size=MINIBATCH, n_epochs=EPOCHS, vf_coef=0.5, ent_coef=0.01, seed=0,
        device="cpu", **PPO,
    )  # fmt: skip
    start = Start()
    model.learn(steps, callback=start)
    return {**start.watch.read(), "steps": model.num_timesteps * FRAMES}


def run_guerdon(task: str, steps: int) -> dict[str, Any]:
    """The loop of guerdon, in all and by phase."""
    found = time_guerdon(
        {
            "runner": {"total_steps": steps},
            "env": {"type": "gymnasium", "task": task, "num_envs": COPIES, "native_reward": "dense", "atari": True},
            "policy": {"type": "cnn", "shared": True, "hidden": [512]},
            "algorithm": {
                "rollout_steps": ROLLOUT, "num_epochs": EPOCHS, "minibatch_size": MINIBATCH, "entropy_coef": 0.01, **PPO
            },
        }
    )  # fmt: skip
    return {**found, "steps": found["steps"] * FRAMES}


RUNS = {"game": run_game, "sb3": run_sb3, "guerdon": run_guerdon}
NAMES = {
    "game": "the game alone, random actions", "sb3": "Stable-Baselines3 PPO", "guerdon": "guerdon PPO",
}  # fmt: skip


def main() -> None:
    """Print the table as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default="BreakoutNoFrameskip-v4")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--steps", type=int, default=4096, help="actions of each measurement, all copies together")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--side", choices=list(RUNS), help="one measurement in this process")
    options = parser.parse_args()
    pin([options.core])
    if options.side:
        report_measurement(RUNS[options.side](options.task, options.steps))
        return
    where = machine_line(["stable_baselines3", "ale-py", "opencv-python-headless"])
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in RUNS}
    for repetition in range(options.repetitions):
        for side in RUNS:
            given = {"side": side, "core": options.core, "steps": options.steps, "task": options.task}
            results[side].append(measure(__file__, given))
            rate = rates(results[side], "core_seconds")[-1]
            print(f"repetition {repetition}: {NAMES[side]}, {rate:.0f} frames per core-second", flush=True)
    core = {side: rates(runs, "core_seconds") for side, runs in results.items()}
    rows = [[NAMES[side], spread(core[side], 0), spread(ratios(core[side], core["sb3"]))] for side in RUNS]
    whole = sum(run["seconds"] for run in results["guerdon"])
    spent = {name: sum(run["phases"][name] for run in results["guerdon"]) / whole for name in ("simulate", "update")}
    print(
        f"\n{where}\n\n{options.task}, {options.steps * FRAMES} frames, {options.repetitions} repetitions in "
        f"alternation; median (lowest to highest).\n\n{table(['', 'frames per core-second', 'ratio to SB3'], rows)}\n\n"
        f"guerdon's time: simulating {spent['simulate']:.0%} (acting included), policy update {spent['update']:.0%}."
    )


if __name__ == "__main__":
    main()
