"""Reward models for the tests of the server: small, exact, and bad in the ways that real ones are.

A server process builds them through `custom_backend: toys:make` (this folder is on its path), with their behaviour in
`options`. They import nothing heavy.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import threading
import time
from pathlib import Path

import numpy as np

from guerdon.files.atomic import write_json
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.types import Episode, Failure, RewardInfo, Score


def step_value(text: str) -> float:
    """What the toy says of a step, exact in float32: the share of the letter a, in 1/64."""
    return int(64 * text.count("a") / max(len(text), 1)) / 64


def pass_turnstile(folder, tasks):
    """Say who is there, and wait to be let go."""
    if folder is not None:
        Path(folder, "enter").write_text(json.dumps(tasks))
        Path(folder, "leave").read_text()


class Toy:
    """Judges texts by their share of the letter a, frames by their brightness.

    Args:
        delay_ms: of each call.
        per_item_ms: and of each item in it.
        granularity: `step` or `total`.
        modality: what it says of itself.
        gate: a file; calls wait while it exists.
        journal: a file; each call appends a line with its episodes' ids.
        turnstile: a folder with the pipes `enter` and `leave`; each call writes its episodes' tasks into the first, and
            waits until something was written into the second.
    """

    def __init__(
        self, delay_ms=0.0, per_item_ms=0.0, granularity="step", modality="text", gate=None, journal=None, name="toy",
        turnstile=None,
    ):  # fmt: skip
        self.delay, self.per_item = delay_ms / 1000, per_item_ms / 1000
        self.gate, self.journal, self.turnstile = gate, journal, turnstile
        self.calls: list[int] = []
        self.options: list[JudgeOptions] = []
        self.threads: set[int] = set()
        self.info = RewardInfo(
            name=name, range=(0.0, 1.0), granularity=granularity, modality=modality,
            frames_needed=0 if modality == "text" else 1,
        )  # fmt: skip

    def score(self, episodes):
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes, options):
        self.calls.append(len(episodes))
        self.options.append(options)
        self.threads.add(threading.get_ident())
        if self.journal:
            with Path(self.journal).open("a") as file:
                file.write(json.dumps([e.id for e in episodes]) + "\n")
        pass_turnstile(self.turnstile, [e.task for e in episodes])
        while self.gate and Path(self.gate).exists():
            time.sleep(0.002)
        if self.delay or self.per_item:
            time.sleep(self.delay + self.per_item * len(episodes))
        return [self._judge(episode) for episode in episodes]

    def _judge(self, episode: Episode) -> ExplainedScore:
        text = "".join(episode.texts or ())
        if "poison" in text:
            raise RuntimeError(f"secret at /home/nobody/model.py: {text}")
        if "quit" in text:
            sys.exit(3)
        if "mute" in text:
            return ExplainedScore(Score(failure=Failure("mute", "the toy has nothing to say")))
        if "longer" in text:
            return ExplainedScore(Score(steps=np.zeros(len(episode) + 1, np.float32)))
        values = [step_value(t) for t in episode.texts] if episode.texts is not None else self._bright(episode)
        steps = np.array(values, np.float32)
        said = f"{self.info.name}: {steps[-1]}"
        if self.info.granularity == "total":
            return ExplainedScore(Score(total=float(steps[-1])), said, tokens=len(text))
        return ExplainedScore(Score(steps=steps, total=float(steps[-1])), said, tokens=len(text))

    def _bright(self, episode: Episode) -> list[float]:
        return (episode.frames.reshape(len(episode), -1).mean(axis=1) / 255).round(4).tolist()


class Learner(Toy):
    """A toy that learns: one weight, added to every score, moved by the outcomes; saved as JSON."""

    def __init__(self, learn_ms=0.0, **options):
        super().__init__(**options)
        self.weight, self.seen, self.learn_s = 0.0, 0, learn_ms / 1000

    def learn(self, episodes):
        time.sleep(self.learn_s)
        pass_turnstile(self.turnstile, ["learn", *(e.task for e in episodes)])
        for episode in episodes:
            if "explode" in "".join(episode.texts or ()):
                self.weight = 99.0  # half done
                raise RuntimeError("secret: it exploded")
            self.weight += (1 if episode.outcome else -1) / 1024
            self.seen += 1
        return {"weight": self.weight, "seen": float(self.seen)}

    def _judge(self, episode):
        judged = super()._judge(episode)
        if judged.score.failure is not None:
            return judged
        return ExplainedScore(Score(steps=judged.score.steps, total=judged.score.total + self.weight), judged.text)

    def save(self, folder: Path) -> None:
        folder.mkdir()
        write_json(folder / "toy.json", {"weight": self.weight, "seen": self.seen})

    def restore(self, folder: Path) -> None:
        state = json.loads((folder / "toy.json").read_text())
        self.weight, self.seen = state["weight"], state["seen"]


class OldScorer:
    """The interface of the first reward server."""

    def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        assert Path(video_path).stat().st_size > 0
        return {"bad": 1.5, "nan": float("nan")}.get(task_text, 0.25), f"{task_text} {nframes} {max_pixels}"


def make(settings):
    """A toy with the options of the settings; `version_file` holds a number that it adds to nothing but its name."""
    options = dict(settings.options)
    if "fail_file" in options and Path(options.pop("fail_file")).exists():
        raise RuntimeError("secret: cannot load from /home/nobody")
    if "slow_load_gate" in options:
        gate = Path(options.pop("slow_load_gate"))
        while gate.exists():
            time.sleep(0.01)
    if "version_file" in options:
        options["name"] = Path(options.pop("version_file")).read_text().strip()
    return Toy(**options)


def make_learner(settings):
    return Learner(**settings.options)


def make_old(settings):
    return OldScorer()


def make_gpu_witness(settings):
    """Says in its name what GPUs were visible when torch was first imported."""
    assert "torch" not in sys.modules
    return Toy(name=f"gpus {os.environ.get('CUDA_VISIBLE_DEVICES')}")


def make_nothing(settings):
    return 3


class Mortal(Toy):
    """A toy whose process ends at the word `die`, and that says in which process it judged.

    Args:
        meet: a file; where it is named, "a" and "aa" are judged only when both are being judged.
        dies_once: a file; while it exists, it is removed and the process ends.
    """

    def __init__(self, meet=None, dies_once=None, **options):
        super().__init__(**options)
        self.meet, self.dies_once = meet, dies_once

    def _judge(self, episode):
        text = "".join(episode.texts or ())
        if self.dies_once and Path(self.dies_once).exists():
            Path(self.dies_once).unlink()
            os._exit(9)
        if "die" in text:
            os._exit(9)
        if self.meet and text in ("a", "aa"):
            self._wait_for("aa" if text == "a" else "a", text)
        return ExplainedScore(super()._judge(episode).score, str(os.getpid()))

    def _wait_for(self, other, own):
        """Leave a mark, wait for the other's, and take it away."""
        Path(f"{self.meet}.{own}").touch()
        mark = Path(f"{self.meet}.{other}")
        while not mark.exists():
            time.sleep(0.002)
        mark.unlink()


def make_mortal(settings):
    options = dict(settings.options)
    if Path(options.pop("fail_file", os.devnull + "/none")).exists():
        raise RuntimeError("secret: cannot load from /home/nobody")
    return Mortal(**options)


class Stuck(Mortal):
    """A toy with a call that never ends: at the word `hang`, or at `spin`, where no other thread of it runs either."""

    def _judge(self, episode):
        text = "".join(episode.texts or ())
        if "hang" in text:
            threading.Event().wait()
        if "spin" in text:
            re.match("(a|aa)+$", "a" * 200 + "b")
        return super()._judge(episode)


def make_stuck(settings):
    """It is loaded while the file `slow_load_gate` does not exist."""
    options = dict(settings.options)
    gate = Path(options.pop("slow_load_gate", os.devnull + "/none"))
    while gate.exists():
        time.sleep(0.01)
    return Stuck(**options)


def make_parent(settings):
    """A toy that has a process of its own."""
    child = multiprocessing.get_context("spawn").Process(target=print, daemon=True)
    child.start()
    child.join()
    return Toy()
