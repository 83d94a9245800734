"""Text games that TextWorld makes from a seed, as a world of messages.

The prompt of a row is its seed; a seed and the arguments decide the whole game. The model reads the commands that are
possible and answers with one of them. Any other reply changes nothing.

    world = TextWorld(rooms=3, quest_length=2)
    step = world.reset({"messages": [{"role": "user", "content": "7"}]})
    step = world.step({"role": "assistant", "content": "take key"})     # step.reward 1.0 on the way to the goal
"""

from __future__ import annotations

import functools
import hashlib
import re
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guerdon.errors import ConfigError, DataError, boundary, needs
from guerdon.types import Message
from guerdon.worlds.messages import WorldStep

_MISSING = (
    "agent.type textworld needs {name}: pip install --no-deps textworld==1.7.0 jericho==3.3.1 tatsu==5.8.3 "
    "hashids==1.3.1 mementos==1.3.1 more-itertools networkx prompt-toolkit wcwidth termcolor"
)
_RULES = "You play a text game. Answer each message with one of its commands, and nothing else.\n\n"
_PROMPT = re.compile(r"\n>[^\n]*\Z")  # the input line of the interpreter, with its status line
_SEED, _SEEDS = re.compile(r"[0-9]{1,10}"), 1 << 31


class TextWorld:
    """A game. A step toward the goal is paid 1, a step back or a lost game -1, any other 0. The outcome is 1 if won.

    Args:
        rooms: of the house.
        quest_length: commands of the shortest solution.
        objects: that are placed, besides those of the solution.
        turn_rewards: pay single turns; false: the outcome alone.

    Raises:
        ConfigError: a number is too small.
        MissingDependencyError: TextWorld is not installed.
    """

    def __init__(self, rooms: int = 3, quest_length: int = 2, objects: int = 5, turn_rewards: bool = True) -> None:
        with needs(_MISSING):
            import textworld  # noqa: F401
        for name, value, least in (("rooms", rooms, 1), ("quest_length", quest_length, 1), ("objects", objects, 0)):
            if value < least:
                raise ConfigError(f"textworld: {name} must be at least {least}, got {value}", key="agent.params")
        self._made = (rooms, quest_length, objects)
        self._paid = turn_rewards
        self._game: Any = None
        self._state: Any = None

    def reset(self, row: Mapping[str, Any]) -> WorldStep:
        """Begin the game whose seed is the row's last message.

        Raises:
            DataError: it is no seed; or there is no such game.
        """
        import textworld

        *system, asked = row["messages"]
        seed = str(asked["content"]).strip()
        if not (_SEED.fullmatch(seed) and int(seed) < _SEEDS):
            raise DataError(
                f"the prompt of a row for textworld is a seed, a number below 2^31, got {seed[:40]!r}", field="prompt"
            )
        wanted = textworld.EnvInfos(
            intermediate_reward=True, admissible_commands=True, won=True, lost=True, facts=True,
            objective=True, description=True,
        )  # fmt: skip
        with boundary(DataError, f"the game of seed {seed}"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jericho has no list of the moves of such games
            self._game = textworld.start(str(_game_file(int(seed), *self._made)), wanted)
            self._state = self._game.reset()
        first = f"{_RULES}{self._state.objective}\n\n{self._state.description}"
        return WorldStep((*system, self._message(first)), state=self._name())

    def step(self, message: Message) -> WorldStep:
        """Carry out the command in the last line of a reply."""
        lines = str(message["content"]).split("</think>")[-1].split("\n")
        command = next((line.strip(" >.\t").lower() for line in reversed(lines) if line.strip()), "")
        possible = {one.lower(): one for one in self._state.admissible_commands}
        if command not in possible:
            return WorldStep((self._message("That is not one of the commands."),), self._reward(0), state=self._name())
        self._state, _, done = self._game.step(possible[command])
        reward = self._reward(self._state.intermediate_reward)
        if done:
            return WorldStep((), reward, done=True, outcome=float(self._state.won))
        said = _PROMPT.sub("", self._state.feedback).strip()
        return WorldStep((self._message(said),), reward, state=self._name())

    def _message(self, text: str) -> Message:
        commands = "\n".join(self._state.admissible_commands)
        shown = re.sub(r"\n{3,}", "\n\n", text).strip()
        return {"role": "user", "content": f"{shown}\n\nCommands:\n{commands}"}

    def _reward(self, value: float) -> float | None:
        return float(value) if self._paid else None

    def _name(self) -> str:
        """A hash of the state: of all facts of the game."""
        return hashlib.sha256("\n".join(sorted(map(str, self._state.facts))).encode()).hexdigest()[:16]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where the games of this process are; it is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="guerdon-textworld-")


@functools.lru_cache(maxsize=4096)
def _game_file(seed: int, rooms: int, quest_length: int, objects: int) -> Path:
    """The file of a game, made when it is first asked for (in 1 to 3 s)."""
    import textworld

    options = textworld.GameOptions()
    options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = seed, rooms, objects, quest_length
    path = Path(_folder().name) / f"{seed}_{rooms}_{quest_length}_{objects}.z8"
    options.path = str(path)
    textworld.make(options)
    return path
