"""Simulators in processes: environment steps, scoring beside simulation, and frames, against what they can do alone.

1. Environment steps/s: a policy of zero cost in copies that have a process each (`env.vectorization: async`), against
   Gymnasium's `AsyncVectorEnv` of the simulator as its own package makes it, with as many processes, the same actions
   and the same pictures: none, or one of every copy at every `--every`-th step.
2. Rollouts with a reward model that takes as long as the simulator, scored after the rollout and while it goes on
   (`reward.overlap_steps`), against the slower of the two: a model that waits (for a server), and one that computes.
3. Frames/s per core-second at 128 and 256 pixels: through guerdon, against the simulator's own renderer on the live
   simulator in its fastest setting: MuJoCo's without shadows, reflections and multisampling, ManiSkill's sensor
   `base_camera` with the shader `minimal`, colours alone.

Measurements run in a process of their own, in alternation. `--worlds` names what is installed in this environment.

    python benchmarks/vla.py --worlds=metaworld --repetitions=3
    python benchmarks/vla.py --worlds=libero --steps=150 --repetitions=3
    .venv-maniskill/bin/python benchmarks/vla.py --worlds=maniskill --steps=400 --frames=30 --repetitions=3
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from harness import Stopwatch, machine_line, measure, rates, ratios, report_measurement, spread, table

TASKS = {"metaworld": "window-close", "libero": "libero_object", "maniskill": "PushCube-v1"}
PACKAGES = {"libero": "robosuite", "maniskill": "mani-skill"}  # whose versions are printed, too
SIZES = (128, 256)
HORIZON = 200
POOL = 64  # different actions
OVERLAP = 10  # steps that are scored together beside the simulation


# The simulators as their packages make them.


class OwnMetaWorld(gymnasium.Wrapper):  # type: ignore[misc]
    """Draws one of the task's 50 goals at reset, and pictures by MuJoCo's renderer."""

    def __init__(self, task: str, size: int) -> None:
        import metaworld

        benchmark = metaworld.MT1(f"{task}-v3", seed=0)
        self.goals, self.rng, self.size = benchmark.train_tasks, np.random.default_rng(0), size
        env = benchmark.train_classes[f"{task}-v3"]()
        env.set_task(self.goals[0])
        env.max_path_length = 2**31
        super().__init__(env)
        self._draw: Callable[[], np.ndarray] | None = None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """A goal of the 50."""
        self.unwrapped.set_task(self.goals[int(self.rng.integers(len(self.goals)))])
        return self.env.reset(**kwargs)  # type: ignore[no-any-return]

    def render(self) -> np.ndarray:
        """(H, W, 3) of the camera `corner`."""
        self._draw = self._draw or renderer(self.unwrapped.model, self.unwrapped.data, "corner", self.size)
        return self._draw()


class OwnLibero(gymnasium.Env):  # type: ignore[misc]
    """LIBERO's environment without a renderer of its own; pictures by MuJoCo's."""

    def __init__(self, suite: str, size: int) -> None:
        from guerdon.worlds.libero_files import import_libero, init_states, libero_task

        self.task, self.size, self.number = libero_task(suite, "0"), size, 0
        _, wrapper = import_libero()
        self.control = wrapper.ControlEnv(
            bddl_file_name=self.task.bddl, use_camera_obs=False, has_offscreen_renderer=False, ignore_done=True
        )
        self.states = init_states(self.task)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The next initial state, settled for 10 steps."""
        self.control.reset()
        seen = self.control.set_init_state(self.states[self.number % len(self.states)])
        self.number += 1
        for _ in range(10):
            seen, *_ = self.control.step([0, 0, 0, 0, 0, 0, -1])
        self._draw: Callable[[], np.ndarray] | None = None  # LIBERO makes another scene at every reset
        return self._shown(seen), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; episodes end by the limit alone."""
        seen, reward, success, _ = self.control.step(action)
        return self._shown(seen), float(reward), False, False, {"success": bool(success)}

    def render(self) -> np.ndarray:
        """(H, W, 3) of the camera `agentview`."""
        sim = self.control.env.sim
        self._draw = self._draw or renderer(sim.model._model, sim.data._data, "agentview", self.size, visual=True)
        return self._draw()

    def _shown(self, seen: dict[str, np.ndarray]) -> np.ndarray:
        parts = [seen[f"robot0_{name}"] for name in ("eef_pos", "eef_quat", "gripper_qpos")]
        return np.concatenate(parts).astype(np.float32)[:8]


class OwnManiSkill(gymnasium.Env):  # type: ignore[misc]
    """ManiSkill's environment on the CPU, with its own reset; pictures by its sensor."""

    def __init__(self, task: str, size: int) -> None:
        from guerdon.worlds.maniskill import import_maniskill

        import_maniskill()
        self.own = gymnasium.make(
            task, obs_mode="state", control_mode="pd_joint_delta_pos", reward_mode="none", sim_backend="physx_cpu",
            render_backend="cpu", sensor_configs={"height": size, "width": size, "shader_pack": "minimal"},
        ).unwrapped  # fmt: skip
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.own.get_obs().shape[1:], np.float32)
        self.action_space = self.own.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """ManiSkill's, which does not build the scene again."""
        seen, _ = self.own.reset(seed=seed)
        return seen[0].numpy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; episodes end by the limit alone."""
        seen, reward, _, _, info = self.own.step(action)
        return seen[0].numpy(), float(reward), False, False, {"success": bool(info["success"])}

    def render(self) -> np.ndarray:
        """(H, W, 3) of the camera `base_camera`."""
        for hidden in self.own._hidden_objects:
            hidden.hide_visual()
        self.own.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        camera = self.own.scene.sensors["base_camera"]
        camera.capture()
        seen = camera.get_obs(rgb=True, depth=False, position=False, segmentation=False)["rgb"]
        return np.asarray(seen[0].numpy())


OWN = {"metaworld": OwnMetaWorld, "libero": OwnLibero, "maniskill": OwnManiSkill}


def renderer(model: Any, data: Any, camera: str, size: int, *, visual: bool = False) -> Callable[[], np.ndarray]:
    """MuJoCo's own renderer in its fastest setting: a function that draws the simulator as it is now."""
    import mujoco

    model.vis.quality.shadowsize, model.vis.quality.offsamples = 0, 0
    frame = model.vis.global_
    frame.offheight, frame.offwidth = max(frame.offheight, size), max(frame.offwidth, size)
    drawer, option = mujoco.Renderer(model, size, size), mujoco.MjvOption()
    drawer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    drawer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    option.sitegroup[:] = 1 if visual else 0
    option.geomgroup[0] = 0 if visual else 1

    def draw() -> np.ndarray:
        drawer.update_scene(data, camera=camera, scene_option=option)
        return np.asarray(drawer.render())

    return draw


def make_own(world: str, size: int) -> gymnasium.Env:
    """One copy, headless."""
    from guerdon.worlds.camera import choose_headless_backend

    choose_headless_backend()
    return gymnasium.wrappers.TimeLimit(OWN[world](TASKS[world], size), HORIZON)


# Measurements, each in a process of its own.


def settings_of(world: str, copies: int, size: int, *, together: int = 0) -> Any:
    """The `env` section; `together` copies in each process, 0: all in this one."""
    from guerdon.settings.world import LiberoSettings, ManiSkillSettings, MetaWorldSettings

    given: dict[str, Any] = {"num_envs": copies, "max_episode_steps": HORIZON, "frame_size": size}
    given |= {"vectorization": "async", "num_envs_per_process": together} if together else {}
    if world == "libero":
        return LiberoSettings(task_suite_name=TASKS[world], task="0", cameras=("agentview",), **given)
    if world == "maniskill":
        return ManiSkillSettings(task=TASKS[world], cameras=("base_camera",), **given)
    return MetaWorldSettings(task=TASKS[world], **given)


def still_policy(actions_N_B_A: np.ndarray) -> Any:
    """A policy of zero cost: it takes actions from a list, and says that their log-probability is 0."""
    import torch

    from guerdon.policies.robots.robot import Action, RobotPolicy
    from guerdon.types import Evaluated

    pool = itertools.cycle(actions_N_B_A)

    class Still(RobotPolicy):
        def act(self, observations: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
            return Action(next(pool))

        def evaluate(self, inputs: Any, *, entropy: bool = False) -> Evaluated:
            return Evaluated(torch.zeros(len(inputs), 1))

    return Still()


def pool_of_actions(copies: int, size: int) -> np.ndarray:
    """(64, B, A) float32: the same action for all copies."""
    actions = np.random.default_rng(0).uniform(-1, 1, (POOL, 1, size)).astype(np.float32)
    return actions.repeat(copies, axis=1)


class SharedWatch:
    """Time since it was made, on the wall and of the cores that this process and some others computed on (Linux)."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._own, self._others = Stopwatch(), self._computed(pids)

    def read(self, pids: Sequence[int]) -> dict[str, float]:
        """Both times by name."""
        own = self._own.read()
        return {**own, "core_seconds": own["core_seconds"] + self._computed(pids) - self._others}

    @staticmethod
    def _computed(pids: Sequence[int]) -> float:
        parts = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(part[11]) + int(part[12]) for part in parts) / os.sysconf("SC_CLK_TCK")


def steps_raw(world: str, copies: int, steps: int, every: int) -> dict[str, Any]:
    """Gymnasium's vector environment with a process for each copy."""
    makers = [partial(make_own, world, 128)] * copies
    env = gymnasium.vector.AsyncVectorEnv(
        makers,
        context="spawn" if world == "maniskill" else None,  # its renderer belongs to one process
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    actions = pool_of_actions(copies, env.single_action_space.shape[0])
    env.reset(seed=0)
    if every:
        env.call("render")
    pids = [process.pid for process in env.processes]
    watch = SharedWatch(pids)
    for t in range(steps):
        env.step(actions[t % POOL])
        if every and t % every == 0:
            env.call("render")
    found = watch.read(pids)
    env.close()
    return {**found, "steps": copies * steps}


def steps_guerdon(world: str, copies: int, steps: int, every: int, together: int) -> dict[str, Any]:
    """Rollouts of `HORIZON` steps through the collector, after a first one."""
    from guerdon.collect.control import ControlCollector
    from guerdon.settings.policy import MLPPolicySettings
    from guerdon.types import Observes

    settings = settings_of(world, copies, 128, together=together)
    observes = [Observes(every=every, last=False)] if every else []
    length = min(steps, HORIZON)
    collector = ControlCollector(settings, MLPPolicySettings(), seed=0, rollout_steps=length, observes=observes)
    policy = still_policy(pool_of_actions(copies, collector.world.action_space.shape[0]))
    collector.collect(policy)
    pids = collector.world.env.pids
    watch, taken = SharedWatch(pids), 0
    while taken < copies * steps:
        taken += collector.collect(policy).steps
    found = watch.read(pids)
    collector.close()
    return {**found, "steps": taken}


def frames_raw(world: str, size: int, count: int) -> dict[str, Any]:
    """Pictures of the live simulator."""
    env = make_own(world, size)
    env.reset(seed=0)
    draw = env.env.render if world == "metaworld" else env.unwrapped.render
    draw()
    watch = Stopwatch()
    for _ in range(count):
        draw()
    return {**watch.read(), "steps": count}


def frames_guerdon(world: str, size: int, count: int) -> dict[str, Any]:
    """Looks and pictures of a world in this process."""
    from guerdon.worlds.build import build_world

    made = build_world(settings_of(world, 1, size), seed=0)
    made.reset()
    assert made.eye is not None
    made.render([made.eye.look(0)])
    watch = Stopwatch()
    made.render([made.eye.look(0) for _ in range(count)])
    found = watch.read()
    made.close()
    return {**found, "steps": count}


class SlowModel:
    """A reward model that takes a given time per frame.

    Args:
        computes: on a core; else it waits, as for a server.
    """

    def __init__(self, *, computes: bool) -> None:
        from guerdon.types import RewardInfo

        self.info, self.seconds, self._computes = RewardInfo(name="slow", range=(0.0, 1.0)), 0.0, computes

    def score(self, episodes: Sequence[Any]) -> list[Any]:
        """0.5 for every frame."""
        import torch

        from guerdon.types import Score

        seconds = self.seconds * sum(len(episode.frames) for episode in episodes)
        if self._computes:
            end, matrix = time.thread_time() + seconds, torch.ones(256, 256)
            while time.thread_time() < end:
                matrix @ matrix
        else:
            time.sleep(seconds)
        return [Score.from_values(np.full(len(episode.frames), 0.5)) for episode in episodes]


def overlap(world: str, copies: int, steps: int, together: int) -> dict[str, Any]:
    """Seconds of simulation, and of rollouts whose every step is scored for as long as it simulates, in turns."""
    from guerdon.collect.control import ControlCollector
    from guerdon.rewards.control_sources import ControlReward
    from guerdon.rewards.source import SourceTerms
    from guerdon.settings.policy import MLPPolicySettings
    from guerdon.settings.reward_source import RobotSource

    settings = settings_of(world, copies, 16, together=together)
    source = RobotSource.model_validate({"model": {"model_type": "constant"}, "reward_mode": "per_step"})
    collector = ControlCollector(settings, MLPPolicySettings(), seed=0, rollout_steps=steps, overlap_steps=OVERLAP)
    policy = still_policy(pool_of_actions(copies, collector.world.action_space.shape[0]))
    found: dict[str, Any] = {"steps": copies * steps}

    def seconds(reward: ControlReward | None, *, beside: bool = False) -> float:
        collector.watchers = [reward.score_ahead] if reward is not None and beside else []
        watch = Stopwatch()
        rollout = collector.collect(policy)
        if reward is not None:
            reward.measure(rollout)
        return float(watch.read()["seconds"])

    for name, computes in (("waits", False), ("computes", True)):
        model = SlowModel(computes=computes)
        reward = ControlReward(SourceTerms("slow"), model, source, num_envs=copies)
        collector.observes = (reward.observes,)
        seconds(None)
        alone = found[f"{name}_alone"] = seconds(None)
        model.seconds = alone / (copies * steps)
        found[f"{name}_after"] = seconds(reward)
        found[f"{name}_beside"] = seconds(reward, beside=True)
    collector.close()
    return found


# Tables.


def compared(sides: Sequence[tuple[str, dict[str, Any]]], repetitions: int) -> dict[str, list[dict[str, Any]]]:
    """Measurements of all sides in alternation."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in sides}
    for _ in range(repetitions):
        for name, options in sides:
            found[name].append(measure(__file__, options))
    return found


def steps_table(common: dict[str, Any], options: argparse.Namespace) -> str:
    """Environment steps, without pictures and with some."""
    rows = []
    for every in (0, options.every):
        sides = [(side, {**common, "side": f"steps_{side}", "every": every}) for side in ("raw", "guerdon")]
        found = compared(sides, options.repetitions)
        row = [f"a 128 px picture at every {every}th step" if every else "no pictures"]
        for clock in ("seconds", "core_seconds"):
            raw, own = (rates(found[side], clock) for side in ("raw", "guerdon"))
            row += [spread(raw, 0), spread(own, 0), spread(ratios(own, raw))]
        rows.append(row)
    names = ["AsyncVectorEnv", "guerdon", "ratio"]
    return table(["environment steps", *(f"{n}{per}" for per in (" /s", " /core-s") for n in names)], rows)


def overlap_table(common: dict[str, Any], options: argparse.Namespace) -> str:
    """Rollouts with a reward model that is as slow as the simulator."""
    runs = compared([("overlap", {**common, "side": "overlap"})], options.repetitions)["overlap"]
    rows = []
    for name in ("waits", "computes"):
        alone, after, beside = ([run[f"{name}_{key}"] for run in runs] for key in ("alone", "after", "beside"))
        parts = [spread(alone), spread(after), spread(ratios(after, alone)), spread(beside)]
        rows.append([f"that {name}", *parts, spread(ratios(beside, alone))])
    names = ["simulation and pictures", "scored after", "ratio", f"in parts of {OVERLAP} steps", "ratio"]
    return table(["rollout, s, with a reward model", *names], rows)


def frames_table(common: dict[str, Any], options: argparse.Namespace) -> str:
    """Pictures per core-second."""
    rows = []
    for size in SIZES:
        common = {**common, "size": size, "frames": options.frames}
        sides = [(side, {**common, "side": f"frames_{side}"}) for side in ("raw", "guerdon")]
        found = compared(sides, options.repetitions)
        core = {side: rates(runs, "core_seconds") for side, runs in found.items()}
        quotients = ratios(core["guerdon"], core["raw"])
        rows.append([f"{size} px", spread(core["raw"], 0), spread(core["guerdon"], 0), spread(quotients)])
    return table(["frames per core-second", "the simulator's renderer", "guerdon", "ratio"], rows)


TABLES = {"steps": steps_table, "overlap": overlap_table, "frames": frames_table}


def report(world: str, options: argparse.Namespace) -> None:
    """The tables of a world."""
    common = {"world": world, "copies": options.copies, "steps": options.steps, "together": options.together}
    print(f"\n### {world}: {options.copies} copies, {options.together} in each of guerdon's processes\n")
    for name in options.tables:
        print(TABLES[name](common, options) + "\n")


def main() -> None:
    """Print the tables as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="+", default=["metaworld"], choices=sorted(TASKS))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--together", type=int, default=1, help="copies in each of guerdon's processes")
    parser.add_argument("--steps", type=int, default=1000, help="of every copy in a measurement")
    parser.add_argument("--every", type=int, default=10, help="steps between pictures")
    parser.add_argument("--frames", type=int, default=100, help="pictures in a measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    parser.add_argument("--world", default="", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=128, help=argparse.SUPPRESS)
    given = parser.parse_args()
    match given.side:
        case "steps_raw":
            report_measurement(steps_raw(given.world, given.copies, given.steps, given.every))
        case "steps_guerdon":
            report_measurement(steps_guerdon(given.world, given.copies, given.steps, given.every, given.together))
        case "overlap":
            report_measurement(overlap(given.world, given.copies, min(given.steps, HORIZON), given.together))
        case "frames_raw":
            report_measurement(frames_raw(given.world, given.size, given.frames))
        case "frames_guerdon":
            report_measurement(frames_guerdon(given.world, given.size, given.frames))
        case _:
            print(machine_line([PACKAGES[world] for world in given.worlds if world in PACKAGES]))
            for world in given.worlds:
                report(world, given)


if __name__ == "__main__":
    main()
