"""`guerdon` as it is called, with models that write down what they are given, and what a training is given.

    python recorded.py score rows.jsonl --model recorded:judge -o out.jsonl      # given.jsonl: a line for each response

The models know what the rows of `layout_rows` were made from: a response is good or bad, a step right or wrong. So a
reading that takes a column for something else shows twice: in what was written down, and in the figures.
"""

import json
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
from layout_rows import ASKED, GOOD, RESPONSES, STEPPED, TEXTS

from guerdon import cli
from guerdon.auditing import audited
from guerdon.evaluation.searching import search_study
from guerdon.labels.labelers import StepLabels
from guerdon.tasks import prompt_files
from guerdon.train import preferences, text
from guerdon.types import RewardInfo, Score

GIVEN = Path("given.jsonl")
JUDGED = {(asked, text): float(text == TEXTS[asked][verdict == "second"])
          for asked, verdict in ASKED if verdict in ("first", "second") for text in TEXTS[asked]}  # fmt: skip
JUDGED |= {(asked, said): float(good) for asked, said, good in GOOD if good is not None}
JUDGED |= {(asked, said): reward for asked, said, reward, _ in RESPONSES}
STEPS = {(asked, step): label for asked, steps, labels in STEPPED for step, label in zip(steps, labels, strict=True)}


def write(*values):
    """A line of what was given."""
    with GIVEN.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def turns(messages):
    """The role and the text of each message."""
    return [[one["role"], one["content"]] for one in messages]


class Judge:
    """Knows which response is good; writes down the conversation, the response, and what is said to be true."""

    info = RewardInfo("judge", (0.0, 1.0), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes):
        return [self._score(episode) for episode in episodes]

    def _score(self, episode):
        asked = turns(episode.context) or [["user", episode.task]]
        said = "".join(episode.texts)
        write(asked, said, episode.meta.get("ground_truth"))
        return Score(total=JUDGED.get((asked[-1][1], said), 0.5))


class StepJudge(Judge):
    """The same of steps."""

    info = RewardInfo("steps", (0.0, 1.0), modality="text", frames_needed=0, success_threshold=0.5)

    def _score(self, episode):
        asked = turns(episode.context) or [["user", episode.task]]
        steps = [one.strip() for one in episode.texts]
        write(asked, steps, episode.meta.get("ground_truth"))
        values = [STEPS.get((asked[-1][1], one), 0.5) for one in steps]
        return Score.from_values(np.array([1.0 if one is None else one for one in values], np.float32))


class Labeler:
    """Labels every step as right; writes down what it answers, the steps, and the true answer."""

    name, at_a_time = "recorded", 100

    def label(self, solutions):
        for one in solutions:
            write(turns(one.prompt.messages), list(one.solution.steps), one.prompt.ground_truth)
        return [StepLabels((1.0,) * len(one.solution.steps)) for one in solutions]


def judge():
    return Judge()


def step_judge():
    return StepJudge()


def labeler():
    return Labeler()


def asked_of(response):
    """What a solution answers."""
    return turns(response.context) or [["user", response.question]]


def compared(made):
    """`make_pair_lessons`, which writes down what it is given."""

    def with_record(model, comparisons, settings, **how):
        for one in comparisons:
            responses = [[response.text, rank] for response, rank in zip(one.responses, one.ranks, strict=True)]
            write(asked_of(one.responses[0]), responses, one.label, dict(one.attributes))
        return made(model, comparisons, settings, **how)

    return with_record


def solved(made):
    """`make_lessons`, the same."""

    def with_record(model, solutions, settings):
        for one in solutions:
            write(asked_of(one), [step.strip() for step in one.steps], list(one.labels))
        return made(model, solutions, settings)

    return with_record


def logged(read):
    """`read_log`, which writes down a line for each row that it gives."""

    def with_record(path, **how):
        rows = read(path, **how)
        truths = rows.texts.truths or [None] * len(rows)
        for one in zip(rows.texts.prompts, rows.texts.responses, rows.reward_N.tolist(), truths, strict=True):
            write(*one)
        return rows

    return with_record


def write_prompts(prompts):
    """What is asked, the true answer and the worked solution of each prompt."""
    for one in prompts:
        write(turns(one.messages), one.ground_truth, one.solution, dict(one.extra_info))


def sourced(source):
    """What gives the prompts of a `data` section, and writes down those to train on."""

    def with_record(settings, read_as, **how):
        train, validation = source(settings, read_as, **how)
        write_prompts(train)
        return train, validation

    return with_record


def questioned(read):
    """`read_prompts`, the same."""

    def with_record(path, **how):
        prompts = read(path, **how)
        write_prompts(prompts)
        return prompts

    return with_record


PLACES = ((preferences, "make_pair_lessons", compared), (text, "make_lessons", solved), (audited, "read_log", logged),
          (prompt_files, "_sources", sourced), (search_study, "read_prompts", questioned))  # fmt: skip


def record():
    """Write down from now on what commands are given."""
    for module, name, recorded in PLACES:
        setattr(module, name, recorded(getattr(module, name)))


@contextmanager
def recording():
    """Write it down until the end."""
    with ExitStack() as stack:
        for module, name, recorded in PLACES:
            stack.enter_context(mock.patch.object(module, name, recorded(getattr(module, name))))
        yield


if __name__ == "__main__":
    sys.modules["recorded"] = sys.modules["__main__"]  # the models are named as this module's
    record()
    cli.main()
