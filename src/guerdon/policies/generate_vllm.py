"""Responses written by vLLM inside this process, with the policy's weights loaded into it after each update.

vLLM must run in this process (it does when `VLLM_ENABLE_V1_MULTIPROCESSING` is 0, which is set here before it is
imported), so that weights are handed over in memory. The log-probabilities are those that `generate` promises: at
the sampling temperature and before `top_p` and `top_k`; where vLLM measures something else, the policy computes them.

    engine = VLLMEngine(policy, VLLMGenerationSettings())
    found = engine.generate(prompts, 8, max_new_tokens=64, rng=rng)
    engine.sync()      # after the policy's update
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import GuerdonError, boundary, needs
from guerdon.policies.generate import Engine, Generation, LocalEngine
from guerdon.policies.text import TextPolicy
from guerdon.policies.tokens import pad_id, stop_ids, token_batch
from guerdon.progress import doing
from guerdon.settings.text_policy import GenerationSettings, VLLMGenerationSettings
from guerdon.types import IntArray


@doing("starting vLLM")
def build_engine(policy: TextPolicy, settings: GenerationSettings, *, max_length: int | None = None) -> Engine:
    """The engine that the settings name.

    Args:
        policy: the model.
        settings: the `generation` section.
        max_length: tokens of the longest prompt and response together; None: the positions of the model.

    Raises:
        MissingDependencyError: vLLM is not installed.
    """
    if settings.engine == "local":
        return LocalEngine(policy, settings)
    return VLLMEngine(policy, settings, max_length=max_length)


class VLLMEngine:
    """Generation by vLLM.

    Args:
        policy: the model.
        settings: temperature, truncation, share of the GPU's memory.
        max_length: tokens of the longest prompt and response together; None: the positions of the model.

    Raises:
        MissingDependencyError: vLLM is not installed.
    """

    def __init__(self, policy: TextPolicy, settings: VLLMGenerationSettings, *, max_length: int | None = None) -> None:
        self.policy, self.settings = policy, settings
        self._sleeps = policy.device.type == "cuda"  # vLLM has it on GPUs only
        self._asleep = False
        self._vllm = _import_vllm()
        self._stops = stop_ids(policy.tokenizer, policy.base.model.generation_config).tolist()
        model = policy.base.model
        self._tied = bool(model.config.tie_word_embeddings)
        head = model.get_output_embeddings()
        path = next(path for path, layer in model.named_modules() if layer is head)
        self._head_name = f"{path}.weight"
        with tempfile.TemporaryDirectory() as folder, boundary(GuerdonError, "vLLM does not start with this model"):
            self._write(folder)
            self._llm: Any = self._vllm.LLM(
                model=folder,
                trust_remote_code=False,
                dtype="bfloat16" if policy.base.bf16 else "float32",
                gpu_memory_utilization=settings.gpu_memory_utilization,
                logprobs_mode="processed_logprobs",
                enable_sleep_mode=self._sleeps,
                **({} if max_length is None else {"max_model_len": max_length}),
            )

    def sync(self) -> None:
        """Load the policy's present weights, adapter included, and forget what was cached under the old ones."""
        with boundary(GuerdonError, "vLLM does not take the policy's weights (versions from 0.32 on are known to)"):
            if self._asleep:
                self._llm.wake_up(tags=["weights"])
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._weights()})
            if self._asleep:
                self._llm.wake_up(tags=["kv_cache"])
            self._llm.reset_prefix_cache()
        self._asleep = False

    def rest(self) -> None:
        """Give the GPU's memory back until the next `sync`, which brings the weights: sleep level 2 keeps none."""
        if self._sleeps and not self._asleep:
            with boundary(GuerdonError, "vLLM does not give its memory back"):
                self._llm.sleep(level=2)
            self._asleep = True

    def generate(
        self,
        prompts: Sequence[IntArray],
        n_per_prompt: int,
        *,
        max_new_tokens: int,
        rng: np.random.Generator | None = None,
        greedy: bool = False,
    ) -> Generation:
        """Write responses; see `generate.Engine`. One number of `rng` seeds each prompt."""
        if (rng is None) != greedy:
            raise ValueError("give a generator to sample with, or greedy=True")
        s = self.settings
        seeds = np.zeros(len(prompts), dtype=np.int64) if rng is None else rng.integers(2**31, size=len(prompts))
        common = {
            "n": n_per_prompt,
            "max_tokens": max_new_tokens,
            "stop_token_ids": self._stops,
            "logprobs": 0,  # of the token that was drawn
            "detokenize": False,
            "skip_special_tokens": False,
        }
        how = {"temperature": 0.0} if greedy else {"temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k}
        parameters = [self._vllm.SamplingParams(**common, **how, seed=int(seed)) for seed in seeds]
        with boundary(GuerdonError, "vLLM failed to generate"):
            outputs = self._llm.generate(
                [{"prompt_token_ids": [int(i) for i in p]} for p in prompts], parameters, use_tqdm=False
            )
        samples = [sample for output in outputs for sample in sorted(output.outputs, key=lambda o: o.index)]
        responses = [np.asarray(sample.token_ids, dtype=np.int64) for sample in samples]
        batch = token_batch(
            [np.asarray(p, dtype=np.int64) for p in prompts for _ in range(n_per_prompt)],
            responses,
            np.array([sample.finish_reason == "stop" for sample in samples]),
            pad_id=pad_id(self.policy.tokenizer),
        )
        if greedy or s.top_p < 1.0 or s.top_k > 0:
            with torch.no_grad():
                found = self.policy.log_probs(batch, temperature=s.temperature).cpu().numpy()
            return Generation(batch, found)
        log_probs = np.zeros(batch.mask_B_T.shape, dtype=np.float32)
        drawn = [[d[int(i)].logprob for d, i in zip(o.logprobs, o.token_ids, strict=True)] for o in samples]
        log_probs[batch.mask_B_T] = np.concatenate([np.asarray(row, dtype=np.float32) for row in drawn])
        return Generation(batch, log_probs)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """One weight after the other, by the names of files, which vLLM reads (each expert has its own there)."""
        from transformers.core_model_loading import revert_weight_conversion

        for name, weight in self._merged():
            yield from revert_weight_conversion(self.policy.base.model, {name: weight}).items()

    def _merged(self) -> Iterator[tuple[str, Tensor]]:
        """One weight after the other in the dtype that vLLM computes in, so that a merged one is there at a time."""
        dtype = torch.bfloat16 if self.policy.base.bf16 else torch.float32
        sent = set()
        for name, weight in self.policy.merged_weights():
            sent.add(name)
            yield name, weight.to(dtype)
        if self._tied and self._head_name not in sent:
            yield self._head_name, self.policy.merged(self.policy.base.model.get_output_embeddings()).to(dtype)

    def _write(self, folder: str) -> None:
        """The model as vLLM gets it: with an output matrix of its own, as vLLM reloads a shared one into one place."""
        model = self.policy.base.model
        model.config.tie_word_embeddings = False
        try:
            model.save_pretrained(folder, state_dict={name: w.cpu().clone() for name, w in self._merged()})
        finally:
            model.config.tie_word_embeddings = self._tied
        self.policy.tokenizer.save_pretrained(folder)


def _import_vllm() -> Any:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with needs("generation.engine vllm needs vLLM: pip install vllm, or set generation.engine to local"):
        return importlib.import_module("vllm")
