"""Named prompts of vision-language models, questions with pictures, and the backend protocol that answers them.

A caller chooses a template by its name and never sends one. The task is inserted once, literally: braces in it stay
braces, and text that could be read as a control token (`<|image_pad|>`, `<image>`, `</answer>`) is split. A `Question`
is a filled prompt with its pictures; a `Backend` generates a reply, or returns how likely the first word of the reply
is one of a few words. Words are compared by their text: every token that is `yes` without its spaces and capitals
counts as yes.

    prompt = PROMPTS["completed"].fill("close the door")
    prompt.text      # "The task is close the door, is it completed?"
    question = make_question(prompt, frames_T, nframes=16, max_pixels=200704)
    replies = backend.generate([question], GenerationOptions(max_tokens=8))
    log_probs = backend.word_log_probs([question], (YES, NO))
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from guerdon.compute.generators import small_seed
from guerdon.errors import ConfigError
from guerdon.models.explained_score import Scale
from guerdon.models.frames import sample_frames
from guerdon.types import ByteArray, Failure

Slot = Literal["image", "first", "video", "last"]
Answer = Literal["completed", "number", "true", "trend", "preference", "rubric", "head"]

_PLACE = re.compile(r"\{task_instruction\}|\{task\}")
_MARK = re.compile(r"<(?=[|/!?\w])|\|(?=>)")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class PromptTemplate:
    """A question about pictures.

    Attributes:
        name: what callers choose it by.
        answer: kind of answer that it asks for.
        user: text of the user turn after the pictures, with `{task}` or `{task_instruction}`.
        slots: pictures of the user turn, in order: `image` is the scored frame, `first` and `last` those of the video.
        system: text of the system turn; empty: the chat template's own.
        scale: of an answer that is a number.
        max_tokens: default limit of the answer.
        chat: use the model's chat template; else plain text, which ends where the answer begins.
        open: with a chat template: the user turn is left open and the answer continues it.
        mark: token after each picture, of models that are read there and write nothing; then the text comes first.
    """

    name: str
    answer: Answer
    user: str
    slots: tuple[Slot, ...]
    system: str = ""
    scale: Scale = "percentage"
    max_tokens: int = 16
    chat: bool = True
    open: bool = False
    mark: str = ""

    def fill(self, task: str) -> FilledPrompt:
        """The question about this task; where the template has no place for the task, the task comes first."""
        plain = plain_words(task)
        user = self.user if _PLACE.search(self.user) else "Task info:\n{task}\n\n" + self.user
        return FilledPrompt(_PLACE.sub(lambda _: plain, user), _PLACE.sub(lambda _: plain, self.system), self, plain)

    @property
    def sees_video(self) -> bool:
        """Whether it shows more than one frame."""
        return self.slots != ("image",)


@dataclass(frozen=True)
class FilledPrompt:
    """A template with a task in it.

    Attributes:
        text: text of the user turn after the pictures.
        system: text of the system turn; empty for none.
        template: the template.
        task: the task.
    """

    text: str
    system: str
    template: PromptTemplate
    task: str = ""


def plain_words(text: str) -> str:
    """One line of text in which no tokenizer or parser finds a control token."""
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

_ROBOREWARD = """\
Given the task, assign a discrete progress score reward (1,2,3,4,5) for the robot in the video in the format: \
ANSWER: <score>
Rubric for end-of-episode progress (judge only the final state without time limits):
1 - No Success: Final state shows no goal-relevant change for the command.
2 - Minimal Progress: Final state shows a small but insufficient change toward the goal.
3 - Partial Completion: The final state shows good progress toward the goal but violates more than one requirement or \
a major requirement.
4 - Near Completion: Final state is correct in region and intent but misses a single minor requirement.
5 - Perfect Completion: Final state satisfies all requirements.

Task: {task}"""
RUBRIC = dict(re.findall(r"^(\d) - (.*)$", _ROBOREWARD.lower(), re.MULTILINE))
"""What each grade of the prompt means."""
_ROBOMETER = (
    "The task for the robot is '{task}'. Given the trajectory video, predict the task progress at each frame, how far "
    "along the robot is towards completing the task, a float between 0 and 1, where 0 is the starting state and 1 is "
    "when the task is completed. If the robot is not performing the same task, predict 0 progress."
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
        PromptTemplate("topreward_v1", "true", _TRUE, ("video",), open=True),  # the form of the published code
        PromptTemplate("true_logprob", "true", _TRUE, ("video",), chat=False),
        PromptTemplate("true_logprob_chat", "true", _TRUE, ("video",)),
        PromptTemplate("trend", "trend", _TREND, ("video",), max_tokens=32),
        PromptTemplate("preference", "preference", _PREFERENCE, ("first", "last"), max_tokens=8),
        PromptTemplate("roboreward", "rubric", _ROBOREWARD, ("video",), max_tokens=128),  # as both were trained with
        PromptTemplate("robometer", "head", _ROBOMETER, ("video",), mark="<|prog_token|>"),
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
        raise ConfigError(f"the prompt {name!r} {why}; choose one of {', '.join(fitting)}", key="prompt")
    return PROMPTS[name]


YES = ("yes", "true", "1")
NO = ("no", "false", "0")
TRUE = ("true",)
"""Words that the first token of an answer may be."""
TRUE_CONTINUATION = (" True",)
"""The token that continues a text ending in "The answer is:"."""


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture: (H, W, 3) uint8, and its pixel limit (None: that of the processor)."""

    pixels: ByteArray
    max_pixels: int | None = None


@dataclass(frozen=True, eq=False)
class Video:
    """Frames in order of time: (N, H, W, 3) uint8, frames per second, and the pixel limit of a frame."""

    frames: ByteArray
    fps: float
    max_pixels: int | None = None


@dataclass(frozen=True, eq=False)
class Question:
    """A filled prompt with its pictures.

    Attributes:
        prompt: the filled template.
        media: pictures and videos, placed before the text.
    """

    prompt: FilledPrompt
    media: tuple[Picture | Video, ...]

    @property
    def key(self) -> bytes:
        """Hash of the content; equal questions have equal keys."""
        digest = hashlib.blake2b(digest_size=16)
        for text in (self.prompt.template.name, self.prompt.system, self.prompt.text):
            digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
        for part in self.media:
            array = part.pixels if isinstance(part, Picture) else part.frames
            digest.update(f"{type(part).__name__}{array.shape}{part.max_pixels}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()


@dataclass(frozen=True)
class GenerationOptions:
    """Sampling parameters of answers.

    Attributes:
        max_tokens: limit of the answer.
        temperature: 0: the most likely token.
        top_p: with temperature above 0.
        seed: with temperature above 0.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def request(self) -> dict[str, Any]:
        """The parameters as vLLM and chat completions endpoints name them."""
        sampled = {"top_p": self.top_p, "seed": small_seed(self.seed)} if self.temperature > 0 else {}
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, **sampled}


@dataclass(frozen=True)
class VLMReply:
    """A generated answer.

    Attributes:
        text: the answer.
        tokens: input tokens; 0 where they were not counted.
        whole: it ended by itself, not at the length limit.
        stop: how it ended, in the backend's word.
    """

    text: str
    tokens: int = 0
    whole: bool = True
    stop: str = "max_tokens"


@dataclass(frozen=True, eq=False)
class WordLogProbs:
    """Log-probabilities that the first word of an answer is in each of several groups of words.

    Attributes:
        log_probs: (G,) float64, one for each group; minus infinity for an impossible group.
        tokens: input tokens; 0 where they were not counted.
    """

    log_probs: NDArray[np.float64]
    tokens: int = 0


class Backend(Protocol):
    """A vision-language model that answers questions."""

    def generate(self, questions: Sequence[Question], options: GenerationOptions) -> list[VLMReply | Failure]:
        """An answer to each question, in order."""
        ...

    def word_log_probs(
        self, questions: Sequence[Question], groups: Sequence[Sequence[str]]
    ) -> list[WordLogProbs | Failure]:
        """For each question, the log-probability that the answer begins with a word of each group."""
        ...


def make_question(
    prompt: FilledPrompt,
    frames_T: ByteArray,
    *,
    nframes: int,
    max_pixels: int,
    fps: float = 4.0,
    video_as: Literal["video", "images"] = "video",
) -> Question:
    """Fill the places of a template with the frames of an episode.

    Args:
        prompt: the filled template.
        frames_T: (T, H, W, 3) uint8 up to the moment that is judged, which is the last.
        nframes: frames of a video, the first and the last among them.
        max_pixels: pixels per frame above which the backend scales frames down.
        fps: frames of the video per second.
        video_as: one piece, or pictures one by one.
    """
    media: list[Picture | Video] = []
    rows = sample_frames(len(frames_T), nframes)
    marked = bool(prompt.template.mark)
    if marked and nframes > 1:  # always as many; rounded to the nearest, as in training
        rows = np.rint(np.linspace(0, len(frames_T) - 1, nframes)).astype(np.int64)
    for slot in prompt.template.slots:
        if slot == "video":
            frames = frames_T[rows]
            if video_as == "video" and not marked:
                media.append(Video(frames, fps, max_pixels))
            else:
                media += [Picture(frame, max_pixels) for frame in frames]
        else:
            which = frames_T[:1] if slot == "first" else frames_T[-1:]
            media.append(Picture(which[0], max_pixels))
    return Question(prompt, tuple(media))


def matches_word(token: str, words: Sequence[str]) -> bool:
    """Whether a token's text equals one of the words, as it is or in lower case without surrounding spaces."""
    return token in words or token.strip(" \t\n▁Ġ").casefold() in words
