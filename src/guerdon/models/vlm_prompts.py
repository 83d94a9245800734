"""Named prompts for vision-language models: what is asked, with which pictures, on which scale.

A caller chooses a template by its name and never sends one. The task is put in once, literally: braces in it stay
braces, and what could be read as one of the model's own marks (`<|image_pad|>`, `<image>`, `</answer>`) is pulled
apart. This module does not know models or how answers are read.

    asked = PROMPTS["completed"].fill("close the door")
    asked.text      # "The task is close the door, is it completed?"
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from guerdon.errors import ConfigError
from guerdon.models.explained_score import Scale

Slot = Literal["image", "first", "video", "last"]
Answer = Literal["completed", "number", "true", "trend", "preference"]

_PLACE = re.compile(r"\{task_instruction\}|\{task\}")
_MARK = re.compile(r"<(?=[|/!?\w])|\|(?=>)")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class PromptTemplate:
    """A question about pictures.

    Attributes:
        name: what callers choose it by.
        answer: what kind of answer it asks for.
        user: the words after the pictures, with `{task}` or `{task_instruction}`.
        slots: the pictures of the user's turn, in order: `image` is the frame that is judged, `first` and `last` are
            those of the video.
        system: words of the system turn; empty for the chat template's own.
        scale: of an answer that is a number.
        max_tokens: longest answer that makes sense.
        chat: put into the model's chat template; else the bare words, which end where the answer begins.
    """

    name: str
    answer: Answer
    user: str
    slots: tuple[Slot, ...]
    system: str = ""
    scale: Scale = "percentage"
    max_tokens: int = 16
    chat: bool = True

    def fill(self, task: str) -> Asked:
        """The question about this task; a template without a place for the task is told it first."""
        plain = plain_words(task)
        user = self.user if _PLACE.search(self.user) else "Task info:\n{task}\n\n" + self.user
        return Asked(_PLACE.sub(lambda _: plain, user), _PLACE.sub(lambda _: plain, self.system), self)

    @property
    def sees_video(self) -> bool:
        """Whether it looks at more than one frame."""
        return self.slots != ("image",)


@dataclass(frozen=True)
class Asked:
    """A template with a task in it.

    Attributes:
        text: words of the user's turn after the pictures.
        system: words of the system turn; empty for none.
        template: where it comes from.
    """

    text: str
    system: str
    template: PromptTemplate


def plain_words(text: str) -> str:
    """One line of words that no tokenizer or parser takes for a mark of its own."""
    return _MARK.sub(lambda found: found[0] + " ", _SPACES.sub(" ", text).strip())


_COMPLETED = "The task is {task}, is it completed?"
_COMPLETION = (
    "Task info:\n{task_instruction}\n\n"
    "How far is this task completed at the end of what you see? Judge progress toward the goal of the task; do not "
    "describe the scene. Answer with a number between 1 and 100, the percentage of completion, and nothing else."
)
_PRIMO_SYSTEM = (
    "You judge how far a robot has come with a task. First think inside <think> </think>, in this order: "
    "<planning> the steps that the task needs </planning>, <observation> what the pictures show "
    "</observation>, <reasoning> which steps are done </reasoning>. Then give the final output, and only that, "
    "inside <answer> </answer>."
)
_PRIMO_USER = (
    "Task info:\n{task_instruction}\n\n"
    "The first picture shows the scene at the start, the video what the robot did, the last picture the scene now. "
    "What percentage of the task is completed, from 0 to 100? Judge progress toward the goal; do not describe the "
    "scene.\n\nQUESTION TYPE: numerical\n\n"
    "Write <think> <planning>...</planning> <observation>...</observation> <reasoning>...</reasoning> </think> "
    "<answer>a numeric value</answer>."
)
_TREND = (
    "The pictures show a robot at work, in order of time. Task: {task_instruction}\n"
    "Over these pictures, does the robot come nearer to completing the task (positive), does it get further away or "
    'undo something (negative), or can you not tell (unclear)? Answer with JSON: {"trend": "positive"}, '
    '{"trend": "negative"} or {"trend": "unclear"}.'
)
_PREFERENCE = (
    "Two pictures show a robot at work. Task: {task_instruction}\n"
    "In which of them is the task nearer to completion? Answer with one word: first, second or same."
)
_TRUE = (
    "The above video shows a robot manipulation trajectory that completes the following task: {task_instruction} "
    "Decide whether the above statement is True or not. The answer is:"
)

PROMPTS: dict[str, PromptTemplate] = {
    prompt.name: prompt
    for prompt in (
        PromptTemplate("completed", "completed", _COMPLETED, ("image",), max_tokens=64),
        PromptTemplate("completed_video", "completed", _COMPLETED, ("video",), max_tokens=64),
        PromptTemplate("completion_percentage", "number", _COMPLETION, ("video",)),
        PromptTemplate("completion_percentage_image", "number", _COMPLETION, ("image",)),
        PromptTemplate(
            "primo_r1", "number", _PRIMO_USER, ("first", "video", "last"), system=_PRIMO_SYSTEM, max_tokens=4096
        ),
        PromptTemplate("true_logprob", "true", _TRUE, ("video",), chat=False),
        PromptTemplate("true_logprob_chat", "true", _TRUE, ("video",)),
        PromptTemplate("trend", "trend", _TREND, ("video",), max_tokens=32),
        PromptTemplate("preference", "preference", _PREFERENCE, ("first", "last"), max_tokens=8),
    )
}


def find_prompt(name: str, *, answers: tuple[Answer, ...]) -> PromptTemplate:
    """The template of this name, if it asks for one of these kinds of answer.

    Raises:
        ConfigError: there is none, or it asks for something else.
    """
    fitting = [prompt.name for prompt in PROMPTS.values() if prompt.answer in answers]
    if name not in fitting:
        why = "asks for another kind of answer than this model gives" if name in PROMPTS else "is unknown"
        raise ConfigError(f"the prompt {name!r} {why}; choose one of {', '.join(fitting)}")
    return PROMPTS[name]
