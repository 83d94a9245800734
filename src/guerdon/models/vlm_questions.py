"""A question to a vision-language model, and who answers it: what all backends share.

A `Question` is a filled prompt with its pictures. A `Backend` writes answers, or says how likely the first word of the
answer is to be one of a few. Words count by what they say: every token that reads `yes` without its spaces and capitals
is yes. This module does not know models, HTTP or how answers are read.

    question = make_question(PROMPTS["completed"].fill("close the door"), frames_T, nframes=16, max_pixels=200704)
    replies = backend.write([question], Writing(max_tokens=8))
    log_probs = backend.choose([question], (YES, NO))
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from guerdon.models.vlm_frames import sample_frames
from guerdon.models.vlm_prompts import Asked
from guerdon.types import ByteArray, Failure

YES, NO, TRUE = ("yes", "true", "1"), ("no", "false", "0"), ("true",)
"""Words that the first token of an answer may say."""


ENDED = ("stop", "eos_token", "stop_sequence", "end_turn")
"""What engines say of an answer that ended by itself; one that was aborted, or of which nothing is said, is cut off."""


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture: (H, W, 3) uint8."""

    pixels: ByteArray


@dataclass(frozen=True, eq=False)
class Video:
    """Frames in order of time: (N, H, W, 3) uint8, and how many of them make a second."""

    frames: ByteArray
    fps: float


@dataclass(frozen=True, eq=False)
class Question:
    """What a model is asked.

    Attributes:
        asked: the words.
        media: pictures and videos, which stand before the words.
    """

    asked: Asked
    media: tuple[Picture | Video, ...]

    @property
    def key(self) -> bytes:
        """The same for questions that are the same."""
        digest = hashlib.blake2b(digest_size=16)
        for text in (self.asked.template.name, self.asked.system, self.asked.text):
            digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
        for part in self.media:
            array = part.pixels if isinstance(part, Picture) else part.frames
            digest.update(f"{type(part).__name__}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()


@dataclass(frozen=True)
class Writing:
    """How answers are written.

    Attributes:
        max_tokens: longest answer.
        temperature: 0 takes the likeliest token.
        top_p: with temperature above 0.
        seed: with temperature above 0.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Reply:
    """What a model wrote.

    Attributes:
        text: its answer.
        tokens: that it read; 0 where nobody counted.
        whole: it ended by itself, not at the length limit.
    """

    text: str
    tokens: int = 0
    whole: bool = True


@dataclass(frozen=True, eq=False)
class Choice:
    """How likely the first word of an answer is to be one of several groups of words.

    Attributes:
        log_probs: (G,) float64, one for each group; minus infinity for a group that cannot be.
        tokens: that the model read; 0 where nobody counted.
    """

    log_probs: NDArray[np.float64]
    tokens: int = 0


class Backend(Protocol):
    """Anything that answers questions."""

    @property
    def name(self) -> str:
        """The model, for logs."""
        ...

    def write(self, questions: Sequence[Question], how: Writing) -> list[Reply | Failure]:
        """An answer to each question, in order."""
        ...

    def choose(self, questions: Sequence[Question], groups: Sequence[Sequence[str]]) -> list[Choice | Failure]:
        """For each question, how likely the answer begins with a word of each group."""
        ...


def make_question(
    asked: Asked,
    frames_T: ByteArray,
    *,
    nframes: int,
    max_pixels: int,
    fps: float = 4.0,
    video_as: Literal["video", "images"] = "video",
) -> Question:
    """Fill the places of a template with the frames of an episode.

    Args:
        asked: the words.
        frames_T: (T, H, W, 3) uint8 up to the moment that is judged, which is the last.
        nframes: frames of a video, the first and the last among them.
        max_pixels: pixels per frame above which frames are made smaller.
        fps: frames of the video per second.
        video_as: one piece, or pictures one by one.
    """
    media: list[Picture | Video] = []
    rows = sample_frames(len(frames_T), nframes)
    for slot in asked.template.slots:
        if slot == "video":
            frames = limit_pixels(frames_T[rows], max_pixels)
            media += [Video(frames, fps)] if video_as == "video" else [Picture(frame) for frame in frames]
        else:
            which = frames_T[:1] if slot == "first" else frames_T[-1:]
            media.append(Picture(limit_pixels(which, max_pixels)[0]))
    return Question(asked, tuple(media))


def limit_pixels(frames_N_H_W_3: ByteArray, max_pixels: int) -> ByteArray:
    """The same pictures, made smaller (bicubic) where they have more than `max_pixels` each; proportions stay."""
    _, height, width, _ = frames_N_H_W_3.shape
    if height * width <= max_pixels:
        return frames_N_H_W_3
    scale = (max_pixels / (height * width)) ** 0.5
    size = (max(int(width * scale), 1), max(int(height * scale), 1))
    small = [np.asarray(Image.fromarray(f).resize(size, Image.Resampling.BICUBIC)) for f in frames_N_H_W_3]
    return np.stack(small)


def says(token: str, words: Sequence[str]) -> bool:
    """Whether a token's text is one of these (lower case) words, spaces and capitals aside."""
    return token.strip(" \t\n▁Ġ").casefold() in words


def pictures(question: Question) -> Iterator[ByteArray]:
    """All pictures of a question, (H, W, 3) each, those of videos one by one."""
    for part in question.media:
        if isinstance(part, Picture):
            yield part.pixels
        else:
            yield from part.frames
