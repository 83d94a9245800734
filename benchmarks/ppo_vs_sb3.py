"""Environment steps per second: guerdon's PPO, Stable-Baselines3's PPO and the bare simulator, on one core.

All three act in the same Meta-World task with its native 0/1 reward, or in another Gymnasium environment with its
own. Both PPOs have the same number of copies, the same network and the same hyper-parameters; evaluations,
checkpoints and TensorBoard are off in both. Each measurement runs in a process of its own, and they alternate (raw,
SB3, guerdon, raw, ...), so that whatever else the machine does falls on all alike. Imports and construction do not
count; everything after them does.

What differs, and is the point: guerdon restores a cached state where Meta-World simulates its arm back at every reset
(as long as about 40 steps) and puts observations together with fewer detours; it acts through numpy and computes the
log-probabilities and values of a whole rollout at once; its parameters are one flat tensor under one fused Adam. SB3
runs the way its documentation shows: `make_vec_env` (a `DummyVecEnv` of `Monitor`ed environments), Meta-World's own
reset with a goal drawn from the task's 50, `TimeLimit` of 200 steps.

With `--second-core` guerdon also runs on two cores: simulators in two processes (`env.vectorization: async`), or two
collectors of a Ray cluster on this machine (`guerdon[ray]`), each synchronous and with rollouts one update old. The
processes of these sides share both cores; only the wall clock counts for them, against guerdon on one core.

    python benchmarks/ppo_vs_sb3.py --core=1 --repetitions=5
    python benchmarks/ppo_vs_sb3.py --core=1 --repetitions=5 --task=CartPole-v1
    python benchmarks/ppo_vs_sb3.py --core=1 --second-core=0 --sides guerdon async async_stale ray ray_stale
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from harness import (
    Stopwatch,
    core_share,
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

COPIES, HORIZON, ROLLOUT, HIDDEN = 8, 200, 250, (128, 128)
PPO = {"learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2, "max_grad_norm": 0.5}
EPOCHS, MINIBATCH = 10, 250
NOTHING: Mapping[str, Any] = {}


def make_env(task: str, seed: int) -> Any:
    """One copy of the task as anyone would make it: in Meta-World 0/1 reward, a goal drawn at reset, 200 steps."""
    import gymnasium

    if "-v" in task:
        return gymnasium.make(task)
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


def run_raw(task: str, steps: int) -> dict[str, Any]:
    """A plain loop: random actions in one copy, a reset every 200 steps."""
    import numpy as np

    env = make_env(task, 0)
    if "-v" in task:
        actions = np.array([env.action_space.sample() for _ in range(steps)])
    else:
        actions = np.random.default_rng(0).uniform(-1, 1, (steps, 4)).astype(np.float32)
    env.reset()
    watch = Stopwatch()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return {**watch.read(), "steps": steps}


def run_sb3(task: str, steps: int) -> dict[str, Any]:
    """Stable-Baselines3's PPO from after its first reset to its end."""
    import torch
    from stable_baselines3 import PPO as SB3PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Start(BaseCallback):
        """Starts the watch when training does, the copies being reset."""

        watch = Stopwatch()

        def _on_training_start(self) -> None:
            self.watch = Stopwatch()

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
    start = Start()
    model.learn(steps, callback=start)
    return {**start.watch.read(), "steps": model.num_timesteps}


def run_guerdon(
    task: str, steps: int, *, env: Mapping[str, Any] = NOTHING, runner: Mapping[str, Any] = NOTHING, **given: Any
) -> dict[str, Any]:
    """The loop of guerdon, in all and by phase; the rest are changes of its configuration."""
    world: dict[str, Any] = {"task": task, "num_envs": COPIES}
    if "-v" in task:
        world |= {"type": "gymnasium", "native_reward": "dense"}
    else:
        world |= {"max_episode_steps": HORIZON, "native_reward": "sparse"}
    return time_guerdon(
        {
            "runner": {"total_steps": steps, **runner},
            "env": {**world, **env},
            "policy": {"type": "mlp", "hidden": HIDDEN, "activation": "tanh", "normalize_observations": False},
            "algorithm": {
                "rollout_steps": ROLLOUT, "num_epochs": EPOCHS, "minibatch_size": MINIBATCH, "value_coef": 1.0, **PPO
            },
            **given,
        }
    )  # fmt: skip


PROCESSES = {"vectorization": "async", "num_envs_per_process": COPIES // 2}
RAY = {"engine": "ray", "cluster": {"collectors": 2, "collector_cpus": 0}}
RUNS = {
    "raw": run_raw,
    "sb3": run_sb3,
    "guerdon": run_guerdon,
    "async": partial(run_guerdon, env=PROCESSES),
    "async_stale": partial(run_guerdon, env=PROCESSES, runner={"max_staleness": 1}),
    "ray": partial(run_guerdon, runner={"rollout_shards": 2}, **RAY),
    "ray_stale": partial(run_guerdon, runner={"rollout_shards": 2, "max_staleness": 1}, **RAY),
}
ONE_CORE = ("raw", "sb3", "guerdon")
NAMES = {
    "raw": "simulator alone, random actions",
    "sb3": "Stable-Baselines3 PPO",
    "guerdon": "guerdon PPO",
    "async": "two cores, simulators in two processes",
    "async_stale": "the same, rollouts one update old",
    "ray": "two cores, two collectors of Ray",
    "ray_stale": "the same, rollouts one update old",
}


def report_two(results: Mapping[str, list[dict[str, Any]]]) -> str:
    """Wall-clock speeds against guerdon on one core, as Markdown."""
    wall = {side: rates(runs) for side, runs in results.items()}
    rows = [
        [NAMES[side], spread(wall[side], 0), spread(ratios(wall[side], wall["guerdon"]))]
        for side in results
        if side not in ("raw", "sb3")
    ]
    return table(["", "steps/s", "ratio to one core"], rows)


def report(results: dict[str, list[dict[str, Any]]]) -> str:
    """The measurements as Markdown."""
    wall = {side: rates(runs) for side, runs in results.items()}
    core = {side: rates(runs, "core_seconds") for side, runs in results.items()}
    rows = [
        [name, spread(wall[side], 0), spread(ratios(wall[side], wall["raw"])), spread(ratios(wall[side], wall["sb3"])),
         spread(core[side], 0), spread(ratios(core[side], core["raw"])), spread(ratios(core[side], core["sb3"]))]
        for side, name in NAMES.items()
        if side in results
    ]  # fmt: skip
    header = [
        "", "steps/s", "of the simulator's speed", "ratio to SB3",
        "steps per core-second", "of the simulator's speed", "ratio to SB3",
    ]  # fmt: skip
    whole = sum(r["seconds"] for r in results["guerdon"])
    spent = {name: sum(r["phases"][name] for r in results["guerdon"]) / whole for name in ("simulate", "update")}
    return (
        f"{table(header, rows)}\n\n{core_share(results)} guerdon's time: simulating {spent['simulate']:.0%} (acting "
        f"included), policy update {spent['update']:.0%}, bookkeeping and logs {1 - sum(spent.values()):.0%}."
    )


def main() -> None:
    """Print the tables as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="window-close", help="of Meta-World, or a Gymnasium id such as CartPole-v1")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--second-core", type=int, help="and the other one of the sides on two cores")
    parser.add_argument("--sides", nargs="+", choices=list(RUNS), default=list(ONE_CORE), help="what is compared")
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps of each measurement")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--side", choices=list(RUNS), help="one measurement in this process")
    options = parser.parse_args()
    beyond = [side for side in (options.side, *options.sides) if side not in (None, *ONE_CORE)]
    if beyond and options.second_core is None:
        parser.error(f"{beyond[0]} runs on two cores: give --second-core")
    whole = set(ONE_CORE) <= set(options.sides)
    if not (options.side or whole or (beyond and "guerdon" in options.sides)):
        parser.error(f"--sides: {', '.join(ONE_CORE)} are compared with each other, those on two cores with guerdon")
    pin([options.core, *([] if options.side in (None, *ONE_CORE) else [options.second_core])])
    if options.side:
        report_measurement(RUNS[options.side](options.task, options.steps))
        return
    where = machine_line(["stable_baselines3"])
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
    arguments = {"task": options.task, "core": options.core, "steps": options.steps}
    two = {} if options.second_core is None else {"second-core": options.second_core}
    for repetition in range(options.repetitions):
        for side in options.sides:
            results[side].append(measure(__file__, {"side": side, **arguments, **two}))
            print(f"repetition {repetition}: {NAMES[side]}, {rates(results[side])[-1]:.0f} steps/s", flush=True)
    tables = [report({side: results[side] for side in ONE_CORE})] if whole else []
    tables += [report_two(results)] if beyond else []
    print(
        f"\n{where}\n\nTask {options.task}, {options.steps} steps, {options.repetitions} repetitions in alternation; "
        "median (lowest to highest).\n\n" + "\n\n".join(tables)
    )


if __name__ == "__main__":
    main()
