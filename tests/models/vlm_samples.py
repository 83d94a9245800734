"""Episodes, backends with given replies, and tiny models made once."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np

from guerdon.models.vlm.tiny_vlm import write_tiny_vlm
from guerdon.models.vlm.vlm_prompts import VLMReply, WordLogProbs
from guerdon.models.vlm.vlm_transformers import TransformersBackend, read_vlm
from guerdon.settings.vlm import TinyVLMSettings
from guerdon.types import Episode, Failure

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
_HOME = tempfile.TemporaryDirectory(prefix="tiny_vlm_")


@functools.cache
def tiny_folder(architecture="qwen2_5_vl"):
    """A tiny model on disk."""
    settings = TinyVLMSettings(architecture=architecture, hidden_size=32, intermediate=64)
    return write_tiny_vlm(settings, Path(_HOME.name) / architecture, seed=0)


@functools.cache
def batch_of(backend, question):
    """What the network of a backend reads for one question, where it computes."""
    return {name: tensor.to(backend.device) for name, tensor in backend.inputs.batch([question]).items()}


def tiny_backend(architecture="qwen2_5_vl"):
    """The same in memory, in float32."""
    return TransformersBackend(*read_vlm(tiny_folder(architecture)), bf16=False, batch_size=4)


def episode(rows=5, *, name="0", task="close the door", size=(20, 24), seed=0, **columns):
    """Frames of noise, each row another."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (rows, *size, 3), dtype=np.uint8)
    return Episode(id=name, task=task, frames=frames, **columns)


class Scripted:
    """A backend that answers from a script: replies by number of the question, and keeps what it was asked."""

    name = "scripted"

    def __init__(self, replies=(), choices=()):
        self.replies, self.choices = list(replies), list(choices)
        self.asked, self.how, self.groups = [], [], []

    def generate(self, questions, how):
        self.asked += questions
        self.how.append(how)
        found = [self.replies.pop(0) for _ in questions]
        return [VLMReply(f, tokens=7) if isinstance(f, str) else f for f in found]

    def word_log_probs(self, questions, groups):
        self.asked += questions
        self.groups.append(groups)
        found = [self.choices.pop(0) for _ in questions]
        with np.errstate(divide="ignore"):
            return [f if isinstance(f, Failure) else WordLogProbs(np.log(np.asarray(f, np.float64)), 7) for f in found]
