"""Text games of TextWorld as a world of messages. They need the packages of `make env-worlds`."""

import random
from importlib.util import find_spec

import pytest

from guerdon.worlds.textworld import TextWorld, _game_file
from tables import refuses

pytestmark = pytest.mark.skipif(
    find_spec("textworld") is None, reason="TextWorld is not installed: make env-worlds"
)  # every other part is covered without it


def row(seed):
    return {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": str(seed)}]}


def said(text):
    return {"role": "assistant", "content": text}


def solution(seed):
    import textworld

    game = textworld.start(str(_game_file(seed, 3, 2, 5)), textworld.EnvInfos(policy_commands=True))
    return game.reset().policy_commands


def test_a_game_is_won_by_its_solution():
    world, again = TextWorld(), TextWorld()
    begun = world.reset(row(7))
    assert again.reset(row(7)) == begun
    system, first = begun.messages
    assert system["content"] == "Be brief."
    commands = first["content"].partition("\n\nCommands:\n")[2].split("\n")
    goal, end = solution(7)
    assert {"look", goal} <= set(commands)
    for text in ("sing", "look"):
        step = world.step(said(text))
        assert (step.reward, step.done, step.state) == (0.0, False, begun.state), text
    on = world.step(said(f"<think>\n{end}\n</think>\nI will do it.\n> {goal.upper()}."))
    assert (on.reward, on.done) == (1.0, False)
    assert on.state != begun.state
    last = world.step(said(end))
    assert (last.reward, last.done, last.outcome, last.messages) == (1.0, True, 1.0, ())


def test_outcomes_alone():
    world = TextWorld(turn_rewards=False)
    world.reset(row(7))
    goal, end = solution(7)
    steps = [world.step(said(text)) for text in ("sing", goal, end)]
    assert [step.reward for step in steps] == [None] * 3
    assert steps[-1].outcome == 1.0


def test_a_row_without_a_seed():
    for seed in ("seven", "-1", str(1 << 31), ""):
        with refuses("prompt", "is a seed"):
            TextWorld().reset(row(seed))


@pytest.mark.slow
def test_how_often_a_random_agent_wins():
    won, rng = 0, random.Random(0)
    for seed in range(12):
        for _ in range(10):
            world = TextWorld()
            step = world.reset(row(seed))
            for _ in range(8):
                commands = step.messages[-1]["content"].partition("\n\nCommands:\n")[2].split("\n")
                step = world.step(said(rng.choice(commands)))
                if step.done:
                    won += step.outcome
                    break
    assert 0.05 < won / 120 < 0.30
