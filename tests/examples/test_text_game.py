"""The turns of a random player that `studies/text_game.py` writes."""

import json
import sys
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from studies import text_game
from studies.text_game import TURNS, random_turns

needs_textworld = pytest.mark.skipif(find_spec("textworld") is None, reason="TextWorld is not installed")


def test_without_textworld_one_line_says_what_to_install_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(SystemExit, match=r"^error: agent.type textworld needs textworld: pip install .*[^\n]$"):
        text_game.main([str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


@needs_textworld
def test_each_turn_is_a_command_of_the_message_before_and_the_turns_follow_each_other():
    turns = list(random_turns(1, np.random.default_rng(0)))
    assert 1 <= len(turns) <= TURNS
    for turn in turns:
        assert turn["completion"] in turn["prompt"][-1]["content"].rsplit("Commands:\n", 1)[1].split("\n")
    for before, after in pairwise(turns):
        *earlier, reply, _ = after["prompt"]
        assert earlier == before["prompt"]
        assert reply == {"role": "assistant", "content": before["completion"]}


@needs_textworld
def test_games_to_start_from_are_not_those_of_the_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(text_game, "STARTS", 2)
    text_game.main([str(tmp_path)])
    seeds = {json.loads(line)["prompt"] for line in (tmp_path / "games.jsonl").open()}
    assert len(seeds) == text_game.GAMES
    assert not seeds & {"1", "2"}
    starts = [json.loads(line) for line in (tmp_path / "start.jsonl").open()]
    assert sum(len(row["prompt"]) == 1 for row in starts) == 2
