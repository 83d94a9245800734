"""Final returns of guerdon's SAC and Stable-Baselines3's SAC, seed by seed, as an interval of their difference.

Both have Stable-Baselines3's defaults: two critics of 256 x 256 (`--width`), batches of 256, a learned temperature, one
gradient step per environment step. The first steps are random there, and those of the untrained policy here; guerdon's
policy normalises observations, which is its default. The final policy, without noise, plays 20 episodes that begin
alike for both. What was measured is in off_policy_returns.jsonl, and the same command goes on with it.

    python benchmarks/off_policy_returns.py --task=Pendulum-v1 --steps=10000 --seeds=10
    python benchmarks/off_policy_returns.py --task=LunarLanderContinuous-v3 --steps=100000 --seeds=5 --width=128
    python benchmarks/off_policy_returns.py --task=HalfCheetah-v5 --steps=100000 --seeds=5 --width=128
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine_line, measure, report_measurement, table
from scipy.stats import ttest_ind

BATCH, EPISODES = 256, 20
MEASURED = Path(__file__).with_suffix(".jsonl")
STARTS = {"Pendulum-v1": 100}  # random steps at the start; those of other tasks are 10,000, as in the paper


def returns(task: str, act: Callable[[np.ndarray], np.ndarray]) -> float:
    """Mean return of a policy over episodes from fixed starts."""
    import gymnasium

    env, found = gymnasium.make(task), []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=10_000 + episode)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, over = total + float(reward), terminated or truncated
        found.append(total)
    return float(np.mean(found))


def run_sb3(task: str, steps: int, seed: int, width: int) -> float:
    """Stable-Baselines3."""
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    model = SAC(
        "MlpPolicy", task, batch_size=BATCH, learning_starts=STARTS.get(task, 10_000), seed=seed, device="cpu",
        policy_kwargs={"net_arch": [width, width]},
    )  # fmt: skip
    model.learn(steps)
    return returns(task, lambda observation: model.predict(observation, deterministic=True)[0])


def run_guerdon(task: str, steps: int, seed: int, width: int) -> float:
    """The loop of guerdon."""
    from guerdon.policies.robots.control import load_policy
    from guerdon.rl.loop import Loop
    from guerdon.settings.study import Study

    never = 10**12
    quiet = {"eval_every": never, "eval_episodes": 1, "checkpoint_every": never, "logger": {"tensorboard": False}}
    study = {
        "env": {"type": "gymnasium", "task": task, "num_envs": 1, "native_reward": "dense"},
        "policy": {"type": "mlp", "hidden": [width, width], "activation": "relu"},
        "algorithm": {
            "type": "sac", "batch_size": BATCH, "gamma": 0.99,
            "online_step_before_learning": STARTS.get(task, 10_000),
        },
        "runner": {"total_steps": steps, "seed": seed, **quiet},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Loop(Study.model_validate(study), Path(folder)).run()
        actor = load_policy(Path(folder) / "policy").actor()
    rng = np.random.default_rng(0)
    return returns(
        task, lambda observation: actor.act(observation[None].astype(np.float32), rng, greedy=True).values[0]
    )


RUNS = {"sb3": run_sb3, "guerdon": run_guerdon}


def main() -> None:
    """Print the table as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=10, help="how many; of one measurement the seed itself")
    parser.add_argument("--width", type=int, default=256, help="of the two hidden layers, for both")
    parser.add_argument("--results", type=Path, default=MEASURED, help="what was measured")
    parser.add_argument("--side", choices=list(RUNS), help="one measurement in this process")
    options = parser.parse_args()
    if options.side:
        report_measurement({"return": RUNS[options.side](options.task, options.steps, options.seeds, options.width)})
        return
    kept = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    found: dict[str, list[float]] = {side: [] for side in RUNS}
    for seed in range(options.seeds):
        for side in RUNS:
            given: dict[str, Any] = {name: getattr(options, name) for name in ("task", "steps", "width")}
            given |= {"side": side, "seeds": seed}
            row = next((one for one in kept if given.items() <= one.items()), None)
            if row is None:
                row = given | measure(__file__, given)
                with options.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            found[side].append(row["return"])
            print(f"seed {seed}: {side} {row['return']:.1f}", flush=True)
    ours, theirs = (np.array(found[side]) for side in ("guerdon", "sb3"))
    difference, of = ours.mean() - theirs.mean(), abs(theirs.mean())
    low, high = ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    cells = [
        options.task, f"{options.steps:,}", str(options.width), f"{ours.mean():.1f}", f"{theirs.mean():.1f}",
        f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]", f"{difference / of:+.1%} [{low / of:+.1%}, {high / of:+.1%}]",
    ]  # fmt: skip
    header = ["task", "steps", "width", "guerdon", "Stable-Baselines3", "difference", "of theirs"]
    print(f"\n{machine_line(['stable_baselines3'])}\n\n{options.seeds} seeds, Welch intervals.\n")
    print(table(header, [cells]))


if __name__ == "__main__":
    main()
