"""Games of TextWorld for `text_game.yaml`: turns of a random player to start from, and seeds of games.

    python studies/text_game.py runs/text_game     writes start.jsonl and games.jsonl
    guerdon train studies/text_game_start.yaml policy=sft
    guerdon compare studies/text_game.yaml

The supervised start reads turns of a player that draws each command at random from those that the game shows. So it
knows the form of a reply, and plays no better than that player.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.errors import GuerdonError
from guerdon.files.atomic import write_text
from guerdon.processes.progress import ProgressBar
from guerdon.worlds.textworld import TextWorld

ROOMS, QUEST_LENGTH, TURNS = 3, 2, 8  # as in the study
STARTS, GAMES = 96, 128  # games to start from; games of the runs, half of them to evaluate on


def random_turns(seed: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """The turns of a random player in one game: the messages before, and the command."""
    world = TextWorld(rooms=ROOMS, quest_length=QUEST_LENGTH)
    step = world.reset({"messages": [{"role": "user", "content": str(seed)}]})
    messages = list(step.messages)
    for _ in range(TURNS):
        _, commands = messages[-1]["content"].rsplit("\n\nCommands:\n", 1)
        command = str(rng.choice(commands.split("\n")))
        yield {"prompt": list(messages), "completion": command}
        reply = {"role": "assistant", "content": command}
        step = world.step(reply)
        messages += [reply, *step.messages]
        if step.done:
            return


def write_games(folder: Path) -> None:
    """Write `start.jsonl` and `games.jsonl`; no game is in both.

    Raises:
        MissingDependencyError: TextWorld is not installed.
    """
    rng = np.random.default_rng(0)
    turns: list[dict[str, Any]] = []
    with closing(ProgressBar(STARTS, what="games", lines=10)) as progress:
        for done in range(1, STARTS + 1):
            turns += random_turns(done, rng)
            progress.advance(done, f"games {done}/{STARTS}")
    rows = {
        "start": [turns[k] for k in rng.permutation(len(turns))],
        "games": [{"prompt": str(STARTS + seed)} for seed in range(1, GAMES + 1)],
    }
    for name, found in rows.items():
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in found))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files into the folder that the arguments name."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("folder", nargs="?", type=Path, default=Path("runs/text_game"), help="work_dir of the study")
    folder = ask.parse_args(arguments).folder
    try:
        write_games(folder)
    except GuerdonError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
