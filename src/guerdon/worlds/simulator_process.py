"""The main function of a process that simulates copies of a world for `ProcessVectorEnv`.

The first message is the order: settings, the number of copies, the seed. The answer says what was made. Every other
message is a request, the name of one of `_Simulator`'s methods and its arguments. Answers are `("done", result)`,
`("raised", text)` of an exception of the simulator, and `("refused", (class, text, about))` of one of guerdon's errors,
where `about` has its key, or its place and field.

An empty message asks for a step. What it takes and gives is in shared memory (`StepMemory`), but for its info, which is
the result; an empty answer stands for the same info as that of the step before.

    python -m guerdon.worlds.simulator_process 7 8      # the descriptors of its end of the line, and of the memory
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from guerdon.errors import ConfigError, GuerdonError, SimulatorError, boundary
from guerdon.processes.streams import keep_streams
from guerdon.processes.subprocess_worker import end_with_parent
from guerdon.settings.world import WorldSettings
from guerdon.types import BoolArray, ByteArray
from guerdon.worlds.build import make_parts
from guerdon.worlds.gymnasium_env import RenderEye
from guerdon.worlds.interventions import NAMES
from guerdon.worlds.resets import BrokenCopyError, by_name, raised_by
from guerdon.worlds.returned import marks_of
from guerdon.worlds.step_memory import StepMemory


class _Simulator:
    """The copies of this process, and what draws them; `memory` is the descriptor of what steps take and give."""

    def __init__(
        self, memory: int, settings: WorldSettings, copies: int, seed: int, keep_info: tuple[str, ...] = ()
    ) -> None:
        self.env, self.eye, words = make_parts(settings, copies, seed)
        if AutoresetMode(self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)) != AutoresetMode.DISABLED:
            raise ConfigError.about(
                "env.vectorization",
                "async begins episodes anew where a simulator broke, so the environment's autoreset must be disabled",
            )
        env = self.env
        self._told = {(NAMES | getattr(settings, "info_keys", {}))["teleop_action"], *keep_info}
        self._memory = StepMemory(memory, copies, env.single_observation_space, env.single_action_space)
        os.close(memory)
        self.tasks = [words] * copies if isinstance(words, str) else list(words)
        self.save_state, self.load_state = (getattr(env, name, None) for name in ("save_state", "load_state"))

    def facts(self) -> dict[str, Any]:
        """What the other end needs to know."""
        return {
            "spaces": (self.env.single_observation_space, self.env.single_action_space),
            "columns": getattr(self.env, "columns", None),
            "action_start": getattr(self.env, "action_start", 0),
            "proprioception": getattr(self.env, "proprioception", None),
            "unlimited": getattr(self.env, "unlimited", False),
            "tasks": self.tasks,
            "all_texts": tuple(getattr(self.env, "all_texts", ())),
            "size": self.eye.size,
            "cameras": tuple(getattr(self.eye, "cameras", ())),
            "at_once": isinstance(self.eye, RenderEye),
            "cannot_draw": getattr(self.eye, "cannot_draw", False),
        }

    def reset(
        self, seeds: list[int | None], mask: BoolArray, tasks: list[int] | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """(n, ...) observations after a reset of some copies, to these tasks where they change, and their marks."""
        options: dict[str, Any] = {"reset_mask": mask} | ({} if tasks is None else {"tasks": tasks})
        observations, info = self.env.reset(seed=seeds, options=options)
        return np.asarray(observations), marks_of(info)

    def step(self) -> dict[str, np.ndarray]:
        """One step of all copies; those parts of its info that are a number for each copy, or actions."""
        m = self._memory
        m.observations[...], m.rewards[...], m.terminated[...], m.truncated[...], info = self.env.step(m.actions.copy())
        return {name: value for name, value in by_name(info).items() if _plain(value) or name in self._told}

    def looks(self, indices: Sequence[int]) -> list[Any]:
        """What is needed to draw these copies as they are now."""
        return [self.eye.look(index) for index in indices]

    def render(self, looks: Sequence[Any], camera: str | None) -> ByteArray:
        """Pictures of earlier looks."""
        return self.eye.render(looks) if camera is None else self.eye.render(looks, camera)  # type: ignore[call-arg]

    def close(self) -> None:
        """Free simulators and renderers."""
        self.eye.close()
        self.env.close()


def _plain(value: Any) -> bool:
    """Whether a value of info is one number, text or None for each copy."""
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        return False
    return value.dtype != object or all(
        one is None or isinstance(one, bool | int | float | str | np.generic) for one in value
    )


def _answer(work: Callable[[], Any]) -> tuple[str, Any]:
    try:
        with boundary(SimulatorError, "the simulator"):
            return "done", work()
    except GuerdonError as error:
        if isinstance(error, BrokenCopyError):
            return "raised", str(error)
        if type(error) is SimulatorError and (said := raised_by(error)):
            return "raised", said
        about = {name: value for name, value in vars(error).items() if name in ("key", "where", "field")}
        return "refused", (type(error).__name__, str(error), about)


def main() -> None:
    """Make copies and answer until the other end is closed."""
    keep_streams()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles an interrupt; its end closes the line
    line = Connection(int(sys.argv[1]))
    made: list[_Simulator] = []
    told = b""  # the info of the last step

    def make() -> dict[str, Any]:
        made.append(_Simulator(int(sys.argv[2]), *line.recv()))
        return made[0].facts()

    line.send(_answer(make))
    while made:
        try:
            message = line.recv_bytes()
        except (EOFError, OSError):
            made.pop().close()
            continue
        if message:
            name, *arguments = ForkingPickler.loads(message)
            line.send(_answer(partial(getattr(made[0], name), *arguments)))
            continue
        kind, info = _answer(made[0].step)
        before, told = told, bytes(ForkingPickler.dumps(info))
        if kind == "done" and told == before:
            line.send_bytes(b"")
        else:
            line.send((kind, info))


if __name__ == "__main__":
    main()
