"""A vision-language model by vLLM inside this process: the same questions and answers as through an endpoint.

vLLM has to be installed where it is wanted; nothing else of guerdon needs it. This module does not know prompts or how
answers are read.

    backend = VLLMBackend("Qwen/Qwen2.5-VL-7B-Instruct", None, VLLMSettings(tensor_parallel_size=2))
    backend.write([question], Writing(max_tokens=64))
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guerdon.errors import CheckpointError, GuerdonError, MissingDependencyError, boundary
from guerdon.models.vlm_openai import TOP, chat_messages, choice_of
from guerdon.models.vlm_questions import ENDED, Choice, Question, Reply, Writing
from guerdon.settings.vlm import VLLMSettings
from guerdon.types import Failure

MOST_PICTURES = 128  # of one question


class VLLMBackend:
    """Answers by a vLLM engine of its own.

    Args:
        path: folder or hub id of the model.
        adapter: peft folder; None for the weights alone.
        settings: of the engine.

    Raises:
        MissingDependencyError: vLLM is not installed.
        GuerdonError: it does not start with this model.
    """

    def __init__(self, path: str, adapter: str | None, settings: VLLMSettings) -> None:
        self._vllm = _import_vllm()
        self._path = path
        self._lora: Any = None
        options: dict[str, Any] = {}
        if adapter is not None:
            with boundary(CheckpointError, f"the adapter {adapter} cannot be read"):
                rank = int(json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))["r"])
            options = {"enable_lora": True, "max_lora_rank": max(8, 1 << (rank - 1).bit_length())}
            request = importlib.import_module("vllm.lora.request")
            self._lora = request.LoRARequest("reward", 1, str(Path(adapter).resolve()))
        if settings.max_model_len is not None:
            options["max_model_len"] = settings.max_model_len
        with boundary(GuerdonError, "vLLM does not start with this model"):
            self._llm: Any = self._vllm.LLM(
                model=path,
                tensor_parallel_size=settings.tensor_parallel_size,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                limit_mm_per_prompt={"image": MOST_PICTURES, "video": 1},
                max_logprobs=TOP,
                **options,
            )

    @property
    def name(self) -> str:
        """Folder or hub id of the model."""
        return self._path

    def write(self, questions: Sequence[Question], how: Writing) -> list[Reply | Failure]:
        """An answer to each question, in order."""
        sampling: dict[str, Any] = {"max_tokens": how.max_tokens, "temperature": how.temperature}
        if how.temperature > 0:
            sampling |= {"top_p": how.top_p, "seed": how.seed}
        replies: list[Reply | Failure] = []
        for found in self._chat(questions, sampling):
            written = found.outputs[0]
            read = len(found.prompt_token_ids or ())
            replies.append(Reply(written.text, read, whole=written.finish_reason in ENDED))
        return replies

    def choose(self, questions: Sequence[Question], groups: Sequence[Sequence[str]]) -> list[Choice | Failure]:
        """For each question, how likely the answer begins with a word of each group."""
        choices: list[Choice | Failure] = []
        for found in self._chat(questions, {"max_tokens": 1, "temperature": 1.0, "logprobs": TOP}):
            first = found.outputs[0].logprobs[0]
            listed = [(str(entry.decoded_token), float(entry.logprob)) for entry in first.values()]
            choices.append(choice_of(listed, groups, len(found.prompt_token_ids or ())))
        return choices

    def _chat(self, questions: Sequence[Question], sampling: dict[str, Any]) -> list[Any]:
        if not questions:
            return []
        with boundary(GuerdonError, "vLLM failed to answer"):
            found: list[Any] = self._llm.chat(
                [chat_messages(question) for question in questions],
                self._vllm.SamplingParams(**sampling),
                lora_request=self._lora,
                use_tqdm=False,
            )
        return found


def _import_vllm() -> Any:
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise MissingDependencyError(
            "vlm.backend vllm needs vLLM: pip install vllm, or use backend transformers or openai"
        ) from error
