"""Data sets there and back with the real `lerobot`: what guerdon writes it reads, and the other way round.

`lerobot` pins other versions of torch and datasets, so it needs an environment of its own, with PyAV and a
torchvision that decodes MP4:

    python3.11 -m venv lerobot-env && lerobot-env/bin/pip install lerobot==0.4.4
    GUERDON_LEROBOT=lerobot-env/bin/python pytest -m slow tests/episodes/test_real_lerobot.py
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from guerdon.episodes.read import read_episodes, summarize
from guerdon.episodes.write import EpisodeWriter
from guerdon.types import Episode

LEROBOT = os.environ.get("GUERDON_LEROBOT")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(LEROBOT is None, reason="set GUERDON_LEROBOT to a Python interpreter that has lerobot"),
]
LENGTHS = (5, 1, 9, 7, 2)
FPS = 10
FORMS = ("png", "mp4")


def lerobot(command, folder):
    """Run LeRobot's side, with nothing of guerdon's environment on its path."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    side = [LEROBOT, str(Path(__file__).with_name("lerobot_side.py")), command, str(folder)]
    done = subprocess.run(side, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def made():
    """Episodes of several lengths and tasks, with a success at the last row; the outcome of the first is unknown."""
    random = np.random.default_rng(0)
    for number, length in enumerate(LENGTHS):
        y, x = np.mgrid[0:32, 0:48]
        frames = np.stack([np.stack([y + t, x + 2 * t, np.full_like(x, 40 + number)], -1) for t in range(length)])
        actions = random.normal(size=(length, 4)).astype(np.float32)
        rewards = random.normal(size=length).astype(np.float32)
        actions[0] = rewards[0] = 0
        yield Episode(
            id=f"episode-{number}",
            task=("close the window", "press the button")[number % 2],
            frames=frames.astype(np.uint8),
            states=random.normal(size=(length, 6)).astype(np.float32),
            actions=actions,
            rewards=rewards,
            success=np.arange(length) == length - 1,
            outcome=None if number == 0 else bool(number % 2),
        )


def test_lerobot_reads_what_guerdon_writes(tmp_path):
    for form in FORMS:
        with EpisodeWriter(tmp_path / form, fps=FPS, flush_every=2, video=form == "mp4") as writer:
            for episode in made():
                writer.add(episode)
        read = list(read_episodes(tmp_path / form))
        names = ("frames", "states", "actions", "rewards", "success")
        columns = {name: np.concatenate([getattr(e, name) for e in read]) for name in names}
        tasks = np.concatenate([[e.task] * len(e) for e in read])
        np.savez(tmp_path / f"{form}.npz", tasks=tasks, lengths=np.array(LENGTHS), fps=FPS, **columns)
    said = lerobot("check", tmp_path)
    assert [f"checked {form} by lerobot" in said for form in FORMS] == [True, True]


def test_guerdon_reads_what_lerobot_records(tmp_path):
    lerobot("record", tmp_path)
    for form in FORMS:
        root = tmp_path / f"{form}-theirs"
        summary = summarize(root)
        assert (summary.episodes, summary.frames, summary.successes, summary.skipped) == (3, 21, 2, ())
        episodes = list(read_episodes(root))
        assert len(episodes) == 3
        for number, episode in enumerate(episodes):
            steps = np.arange(6 + number)
            grey = 20 * steps + number
            assert np.abs(episode.frames.astype(int) - grey[:, None, None, None]).max() <= (0 if form == "png" else 4)
            np.testing.assert_array_equal(episode.states, np.stack([np.full_like(steps, number), steps], -1))
            np.testing.assert_array_equal(episode.actions[:, 0], steps)  # the action before row t is t
            assert episode.task == "pour the tea"
            assert episode.outcome is (number > 0)
