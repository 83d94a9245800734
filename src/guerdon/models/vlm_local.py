"""A vision-language model in this process, through transformers.

Answers do not depend on how questions are batched (float32). An adapter is kept beside the weights, never merged. This
module does not know prompts or how answers are read.

    backend = TransformersBackend(*read_vlm("runs/tiny"), batch_size=8)
    backend.choose([question], (YES, NO))[0].log_probs
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from guerdon.atomic import COMPLETE, verify_folder
from guerdon.errors import CheckpointError, boundary
from guerdon.finite import load_weights, refuse_to_read
from guerdon.hub import check_model
from guerdon.models.vlm_inputs import VisionInputs
from guerdon.models.vlm_questions import Choice, Question, Reply, Writing, says
from guerdon.policies.precision import uses_bf16
from guerdon.policies.shared_base import import_peft
from guerdon.policies.text_files import read_tokenizer
from guerdon.types import Failure, IntArray


class LoadedVLM(NamedTuple):
    """A model in evaluation mode and what makes its inputs."""

    model: Any
    inputs: VisionInputs
    name: str


def read_vlm(path: str | Path, adapter: str | Path | None = None, *, dtype: torch.dtype = torch.float32) -> LoadedVLM:
    """Read a model of the Qwen-VL families, strictly, and put an adapter on it.

    Args:
        path: folder or hub id.
        adapter: peft folder; every weight of it must fit.
        dtype: of the weights.

    Raises:
        CheckpointError: it cannot be read, lacks weights, was altered, or is of another family.
        MissingDependencyError: an adapter without peft.
    """
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    folder = Path(path)
    if (folder / COMPLETE).is_file():
        verify_folder(folder)
    check_model(CheckpointError, "the vision-language model", str(path))
    with quietly(), boundary(CheckpointError, f"the vision-language model {str(path)!r} cannot be read"):
        model, report = AutoModelForImageTextToText.from_pretrained(str(path), dtype=dtype, output_loading_info=True)
        tokenizer = read_tokenizer(str(path))
        if not tokenizer.chat_template:  # older folders keep it for their processor only
            tokenizer.chat_template = _processor_template(str(path))
        processor = AutoImageProcessor.from_pretrained(str(path))
    missing = sorted({*report["missing_keys"], *(str(k) for k in report["mismatched_keys"])})
    if missing:
        raise CheckpointError(f"{path} lacks {len(missing)} weights, such as {missing[0]}: it is incomplete")
    refuse_to_read(model.named_parameters(), f"the vision-language model {str(path)!r}")
    inputs = VisionInputs(tokenizer, processor, model.config.model_type)
    if adapter is not None:
        model = _with_adapter(model, Path(adapter))
    return LoadedVLM(model.eval(), inputs, str(path))


class TransformersBackend:
    """Answers by a model in memory.

    Args:
        model: of the Qwen-VL families, perhaps with an adapter.
        inputs: what makes its tensors.
        name: for logs.
        batch_size: questions per forward pass.
        bf16: compute in bfloat16; `auto`: where the hardware has it; False: answers do not depend on batches.
        device: None for the GPU when there is one.
    """

    def __init__(
        self,
        model: Any,
        inputs: VisionInputs,
        name: str = "vlm",
        *,
        batch_size: int = 8,
        bf16: bool | Literal["auto"] = "auto",
        device: str | torch.device | None = None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = model.to(self.device)
        self.inputs = inputs
        self._name = name
        self.batch_size = batch_size
        self.bf16 = uses_bf16(bf16, self.device)
        self._words: dict[tuple[str, ...], list[int]] = {}
        self._texts: list[str] | None = None

    @property
    def name(self) -> str:
        """Folder or hub id of the model."""
        return self._name

    def write(self, questions: Sequence[Question], how: Writing) -> list[Reply | Failure]:
        """An answer to each question, in order; the same questions get the same answers."""
        sampling: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if how.temperature > 0:
            sampling = {"do_sample": True, "temperature": how.temperature, "top_p": how.top_p, "top_k": 0}
        out: list[Reply | Failure] = []
        for chunk in self._chunks(questions):
            tensors = self._tensors(chunk)
            start = tensors["input_ids"].shape[1]
            devices = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices=devices), torch.inference_mode(), self._precision(), quietly():
                torch.manual_seed(how.seed)
                sampling |= {"max_new_tokens": how.max_tokens, "pad_token_id": self._pad, "eos_token_id": self._ends}
                written = self.model.generate(**tensors, **sampling)
            for row, read in zip(written[:, start:].tolist(), tensors["attention_mask"].sum(1).tolist(), strict=True):
                stop = next((n for n, i in enumerate(row) if i in self._ends), None)
                text = self.inputs.tokenizer.decode(row[:stop], skip_special_tokens=True)
                out.append(Reply(text, int(read), whole=stop is not None))
        return out

    def choose(self, questions: Sequence[Question], groups: Sequence[Sequence[str]]) -> list[Choice | Failure]:
        """For each question, how likely the answer begins with a word of each group."""
        ids = [torch.tensor(self.word_ids(words), device=self.device) for words in groups]
        out: list[Choice | Failure] = []
        for chunk in self._chunks(questions):
            tensors = self._tensors(chunk)
            with torch.inference_mode(), self._precision():
                logits_B_V = self.model(**tensors, use_cache=False, logits_to_keep=1).logits[:, -1]
            log_probs_B_V = logits_B_V.double().log_softmax(-1)
            found = torch.stack([log_probs_B_V[:, i].logsumexp(-1) for i in ids], dim=1).cpu().numpy()
            for row, read in zip(found, tensors["attention_mask"].sum(1).tolist(), strict=True):
                if np.isnan(row).any() or np.isposinf(row).any():
                    out.append(Failure("non_finite", "the model's logits are not finite"))
                else:
                    out.append(Choice(row, int(read)))
        return out

    def word_ids(self, words: Sequence[str]) -> list[int]:
        """Tokens that say one of these words; where there is none, the first token of each."""
        key = tuple(words)
        if key not in self._words:
            tokenizer = self.inputs.tokenizer
            if self._texts is None:
                self._texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
            found = [i for i, text in enumerate(self._texts) if says(text, words)]
            self._words[key] = found or sorted({int(self.inputs.answer_ids(word.title())[0]) for word in words})
        return self._words[key]

    @property
    def _pad(self) -> int:
        pad = self.inputs.tokenizer.pad_token_id
        return self._ends[0] if pad is None else int(pad)

    @property
    def _ends(self) -> list[int]:
        """Tokens that end an answer."""
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        known = ends if isinstance(ends, list) else [] if ends is None else [ends]
        return sorted({int(i) for i in [*known, self.inputs.tokenizer.eos_token_id] if i is not None})

    def _chunks(self, questions: Sequence[Question]) -> Iterator[Sequence[Question]]:
        for start in range(0, len(questions), self.batch_size):
            yield questions[start : start + self.batch_size]

    def _tensors(self, questions: Sequence[Question]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device) for name, tensor in self.inputs.batch(questions).items()}

    def _precision(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def answer_ids(self, text: str) -> IntArray:
        """Ids of an answer and its end, as this model writes it."""
        return self.inputs.answer_ids(text)


def _processor_template(path: str) -> str | None:
    from transformers.utils import cached_file

    found = cached_file(path, "chat_template.json", _raise_exceptions_for_missing_entries=False)
    if found is None:
        return None
    template: str = json.loads(Path(found).read_text(encoding="utf-8"))["chat_template"]
    return template


def _with_adapter(model: Any, folder: Path) -> Any:
    peft = import_peft()
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise CheckpointError(f"no adapter at {folder}: expected adapter_config.json and {weights.name}")
    if (folder / COMPLETE).is_file():
        verify_folder(folder)
    with quietly(), boundary(CheckpointError, f"the adapter {folder} does not fit its model"):
        stored = set(load_weights(weights))
        adapted = peft.PeftModel.from_pretrained(model, str(folder))
        wanted = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=False))
    if stored != wanted:
        wrong = sorted(stored ^ wanted)
        raise CheckpointError(f"the adapter {folder} does not fit its model: {len(wrong)} weights, such as {wrong[0]}")
    return adapted


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' progress bars and warnings about what is checked here anyway."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft calls transformers by older names
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
