"""ManiSkill through guerdon against ManiSkill itself: steps per second of processor time, and resets.

    make env-maniskill
    .venv-maniskill/bin/python benchmarks/maniskill.py             # the speeds
    .venv-maniskill/bin/python benchmarks/maniskill.py experts     # how often demonstrations succeed, and their steps

Both simulate the same copies on the CPU with the same actions, in turn in one process, from state (`obs_mode: state`)
and from pixels (`base_camera`, 128 x 128; ManiSkill's `obs_mode: rgb`).
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

COPIES, ROUNDS, RESETS = 1, 5, 5
STEPS = {"state": 100, "pixels": 20}  # of each copy in a round


def seconds(work: Callable[[], object]) -> float:
    """Processor time of a call, of all threads of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(task: str, observation: str) -> tuple[float, float, float, float]:
    """Median steps/s of ManiSkill and of guerdon, and milliseconds of a reset of each."""
    import gymnasium

    from guerdon.settings.world import ManiSkillSettings
    from guerdon.worlds.build import build_world
    from guerdon.worlds.maniskill import import_maniskill

    import_maniskill()
    theirs = [
        gymnasium.make(
            task,
            obs_mode="state" if observation == "state" else "rgb",
            control_mode="pd_joint_delta_pos",
            reward_mode="dense",
            sim_backend="physx_cpu",
            render_backend="cpu",
            sensor_configs={"height": 128, "width": 128},
            max_episode_steps=10**6,
        )
        for _ in range(COPIES)
    ]
    settings = ManiSkillSettings(
        task=task, num_envs=COPIES, native_reward="dense", observation=observation, cameras=("base_camera",),
        max_episode_steps=10**6,
    )  # fmt: skip
    world = build_world(settings, seed=0)
    shape = (STEPS[observation], COPIES, *theirs[0].action_space.shape)
    actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)

    def raw() -> None:
        for actions_of_all in actions:
            for env, action in zip(theirs, actions_of_all, strict=True):
                env.step(action)

    def ours() -> None:
        for actions_of_all in actions:
            world.step(actions_of_all)

    def reset() -> None:
        for k, env in enumerate(theirs):
            env.reset(seed=k)

    reset()
    world.reset()
    raw()  # the first pictures compile shaders
    ours()
    spent = [(seconds(raw), seconds(ours)) for _ in range(ROUNDS)]
    resets = [(seconds(reset), seconds(world.reset)) for _ in range(RESETS)]
    for env in theirs:
        env.close()
    world.close()
    a, b = (statistics.median(s[i] for s in spent) for i in (0, 1))
    c, d = (statistics.median(r[i] for r in resets) / COPIES for i in (0, 1))
    steps = len(actions) * COPIES
    return steps / a, steps / b, c * 1000, d * 1000


def demonstrate(task: str, mode: str, episodes: int = 20, limit: int = 200) -> tuple[int, list[int]]:
    """How many planned episodes succeed within the limit, and their steps until then."""
    from guerdon.policies.robots.experts import ManiSkillExpert
    from guerdon.worlds.maniskill import ManiSkillVectorEnv

    env = ManiSkillVectorEnv(task, 1, control_mode=mode, max_episode_steps=limit)
    expert, rng, lengths = ManiSkillExpert(env), np.random.default_rng(0), []
    for seed in range(episodes):
        seen, _ = env.reset(seed=[seed])
        expert.restart()
        for step in range(1, limit + 1):
            seen, _, _, _, info = env.step(expert.act(seen, rng))
            if info["success"][0]:
                lengths.append(step)
                break
    env.close()
    return len(lengths), lengths


def experts() -> None:
    """Print the table of demonstrations."""
    modes = ("pd_joint_pos", "pd_joint_delta_pos", "pd_ee_delta_pose")
    print("| task | " + " | ".join(modes) + " |\n| --- |" + " --- |" * len(modes))
    for task in ("PickCube-v1", "PushCube-v1", "StackCube-v1", "PullCube-v1"):
        cells = []
        for mode in modes:
            count, lengths = demonstrate(task, mode)
            cells.append(f"{count} of 20 ({min(lengths, default=0)} to {max(lengths, default=0)})")
        print(f"| {task} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print a table."""
    if importlib.util.find_spec("mani_skill") is None:
        print("ManiSkill is not installed here; it has an environment of its own: make env-maniskill")
        return
    if sys.argv[1:] == ["experts"]:
        experts()
        return
    print("| task | observation | ManiSkill steps/s | guerdon steps/s | ratio | reset, ms | guerdon's, ms |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for task in ("PickCube-v1", "PushCube-v1", "StackCube-v1"):
        for observation in STEPS:
            raw, ours, reset, rebuilt = compare(task, observation)
            print(
                f"| {task} | {observation} | {raw:.0f} | {ours:.0f} | {ours / raw:.2f} | {reset:.0f} | {rebuilt:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
