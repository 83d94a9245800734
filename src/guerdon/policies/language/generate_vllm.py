"""Responses written by vLLM, with the policy's weights loaded into it after each update.

The engine of vLLM is in this process (it is when `VLLM_ENABLE_V1_MULTIPROCESSING` is 0, which is set here before it is
imported). One worker is in this process too and gets weights in memory. Several (`tensor_parallel_size`), or one where
this process already belongs to a group of learners, are processes of their own, which read them from files.

An adapter is loaded as an adapter: its weights are written as a peft folder, and requests name it. All weights, where
they are trained, replace those of vLLM in place. The log-probabilities are those of the distribution that was drawn
from, after `temperature`, `top_p` and `top_k`; what training computes is the learner's (`collect.text`).

    engine = VLLMEngine(policy, VLLMGenerationSettings())
    found = engine.generate(prompts, 8, max_new_tokens=64, rng=rng)
    engine.sync(version=1)      # after the policy's update
"""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.devices import visible_gpus
from guerdon.compute.finite import save_weights
from guerdon.compute.packaged import local_model
from guerdon.errors import ConfigError, GuerdonError, MissingDependencyError, boundary, needs
from guerdon.network.hub import ADAPTER, model_folder, quietly
from guerdon.policies.batches.precision import uses_bf16
from guerdon.policies.batches.tokens import pad_id, stop_ids, token_batch
from guerdon.policies.language.generate import Engine, Generation, LocalEngine
from guerdon.policies.language.text import VALUE_PREFIX, TextPolicy
from guerdon.policies.language.text_files import load_base, outline, write_policy
from guerdon.policies.pretrained.adapter_files import ADAPTER_WEIGHTS, PEFT_PREFIX
from guerdon.policies.pretrained.adapters import import_peft
from guerdon.processes.clock import counted
from guerdon.processes.cores import usable_cores
from guerdon.processes.progress import doing
from guerdon.settings.text_policy import GenerationSettings, TextPolicySettings, VLLMGenerationSettings
from guerdon.types import FloatArray, IntArray

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
_BUCKET = 2**30  # bytes of weights in one file for workers in other processes
_NEEDS = "generation.engine vllm needs vLLM: pip install vllm, or set generation.engine to local"


def build_engine(policy: TextPolicy, settings: GenerationSettings, *, max_length: int | None = None) -> Engine:
    """The engine that the settings name, in the process of the policy.

    Args:
        policy: the model.
        settings: the `generation` section.
        max_length: tokens of the longest prompt and response together; None: the positions of the model.

    Raises:
        ConfigError: as `check_vllm`, or as `Ropes.decide`.
        MissingDependencyError: vLLM is not installed.
    """
    if max_length is not None:
        policy.base.reach(max_length)
    if settings.engine == "local":
        return LocalEngine(policy, settings)
    return VLLMEngine(policy, settings, max_length=max_length)


@functools.lru_cache(maxsize=1)
def engine_of_process(policy: str, generation: str, seed: int, heads: int, max_length: int, sleeps: bool) -> VLLMEngine:
    """The one vLLM of a process that holds no policy: all collectors of a run that are in it share it.

    Args:
        policy, generation: the sections of the study as JSON.
        seed: of weights that are not on the disk.
        heads: value heads of the policy that learns, whose tensors come with the weights.
        max_length: tokens of the longest prompt and response together.
        sleeps: whether it shares its GPU with others, and gives the memory back while it has nothing to write.
    """
    own = outline(TextPolicySettings.model_validate_json(policy), value_heads=heads)
    settings = VLLMGenerationSettings.model_validate_json(generation)
    return VLLMEngine(own, settings, max_length=max_length, seed=seed, sleeps=sleeps)


def check_vllm(policy: TextPolicy, settings: VLLMGenerationSettings, *, here: bool) -> None:
    """Refuse what vLLM would refuse later.

    Args:
        policy: the model, with or without its weights.
        settings: the `generation` section.
        here: whether it will be in this process, so that its package and its devices must be here.

    Raises:
        ConfigError: the number of attention heads is not divisible, or there are too few devices.
        MissingDependencyError: vLLM is not installed.
    """
    size, heads = settings.tensor_parallel_size, policy.base.model.config.get_text_config().num_attention_heads
    if heads % size:
        raise ConfigError.about(
            "generation.tensor_parallel_size",
            f"{size} does not divide the {heads} attention heads of the model: set it to a divisor of {heads}",
        )
    if not here:
        return
    gpus = len(visible_gpus())
    there, what = (gpus, "GPU(s)") if gpus else (usable_cores(), "core(s)")
    if size > there:
        raise ConfigError.about(
            "generation.tensor_parallel_size",
            f"{size} starts {size} processes, and this process has {there} {what}: "
            "set it lower, or let collectors of engine: ray generate, with cluster.collector_gpus GPUs each",
        )
    if find_spec("vllm") is None:
        raise MissingDependencyError(_NEEDS)


class VLLMEngine:
    """Generation by vLLM.

    Args:
        policy: the model; one without weights (`outline`) where they come with every `sync`.
        settings: temperature, truncation, share of the GPU's memory, processes.
        max_length: tokens of the longest prompt and response together; None: the positions of the model.
        seed: of weights that are not on the disk, where the policy has none.
        sleeps: whether to give the memory of a GPU back in `rest`; None: where the policy is on a GPU, too.

    Raises:
        ConfigError: as `check_vllm`.
        GuerdonError: vLLM does not start with this model.
        MissingDependencyError: vLLM is not installed.
    """

    @doing("starting vLLM")
    def __init__(
        self,
        policy: TextPolicy,
        settings: VLLMGenerationSettings,
        *,
        max_length: int | None = None,
        seed: int = 0,
        sleeps: bool | None = None,
    ) -> None:
        check_vllm(policy, settings, here=True)
        self.policy, self.settings = policy, settings
        base, outlined = policy.base, policy.device.type == "meta"
        self._sleeps = policy.device.type == "cuda"
        if sleeps is not None:
            self._sleeps = sleeps and torch.cuda.is_available()
        self._asleep = False
        self._version: int | None = None
        self._vllm = _import_vllm()
        self._stops = stop_ids(policy.tokenizer, base.model.generation_config).tolist()
        self._bf16 = uses_bf16(base.settings.bf16, _own_device()) if outlined else base.bf16
        self._apart = settings.tensor_parallel_size > 1 or distributed.launched() > 1
        self._folder = tempfile.TemporaryDirectory(prefix="guerdon-vllm-")
        self._adapter: Any = None  # what requests name
        self._loaded = 0  # weights up to now
        self._fixed: dict[str, Tensor] = {}  # what belongs to the weights and is not trained
        room = [n for n in (max_length, base.positions) if n is not None]
        if room:  # vLLM, too, has the long frequencies of longrope where `max_model_len` is beyond the switch
            base.reach(min(room))
        with boundary(GuerdonError, "vLLM does not start with this model"), distributed.unnoticed():
            where = self._lora(seed) if policy.adapter else self._whole(seed)
            if room:
                where["max_model_len"] = min(room)
            self._llm: Any = self._vllm.LLM(
                skip_tokenizer_init=True,
                trust_remote_code=False,
                dtype="bfloat16" if self._bf16 else "float32",
                gpu_memory_utilization=settings.gpu_memory_utilization,
                tensor_parallel_size=settings.tensor_parallel_size,
                distributed_executor_backend="mp" if self._apart else "uni",
                logprobs_mode="processed_logprobs",
                enable_sleep_mode=self._sleeps,
                **where,
                **settings.engine_kwargs,
            )

    @counted("weights")
    def sync(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> None:
        """Load weights, and forget what was cached under the old ones; nothing where it has this version already.

        Args:
            weights: `TextPolicy.tensors`; None: those of the policy in this process.
            version: of the weights; None: they are always loaded.

        Raises:
            GuerdonError: vLLM does not take them.
        """
        if version is not None and version == self._version and not self._asleep:
            return
        self._version = None
        if weights is None:
            weights = self.policy.tensors() if self.policy.sharded else self.policy.named_parameters()
        given = {name: tensor.detach() for name, tensor in weights.items() if not name.startswith(VALUE_PREFIX)}
        with boundary(GuerdonError, "vLLM does not take the policy's weights (versions from 0.32 on are known to)"):
            if self._asleep:
                self._llm.wake_up(tags=["weights"])
            self._loaded += 1
            self._load_adapter(given) if self.policy.adapter else self._load(given)
            if self._asleep:
                self._llm.wake_up(tags=["kv_cache"])
            self._llm.reset_prefix_cache()
            self._llm.llm_engine.set_weight_version(str(self._loaded if version is None else version))
        self._asleep, self._version = False, version

    def rest(self) -> None:
        """Give the GPU's memory back until the next `sync`, which brings all weights, or an adapter for those kept."""
        if self._sleeps and not self._asleep:
            with boundary(GuerdonError, "vLLM does not give its memory back"):
                self._llm.sleep(level=1 if self.policy.adapter else 2)
            self._asleep = True

    def generate(
        self,
        prompts: Sequence[IntArray],
        n_per_prompt: int,
        *,
        max_new_tokens: int,
        rng: np.random.Generator | Sequence[np.random.Generator] | None = None,
        greedy: bool = False,
        keys: Sequence[Any] | None = None,
    ) -> Generation:
        """Write responses; see `generate.Engine`. One number of `rng` seeds each prompt; `keys` change nothing."""
        if (rng is None) != greedy:
            raise ValueError("give a generator to sample with, or greedy=True")
        if not self._loaded:
            self.sync()
        sampling = self._sampling(n_per_prompt, max_new_tokens, greedy)
        asked = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
        with boundary(GuerdonError, "vLLM failed to generate"):
            outputs = self._llm.generate(
                [{"prompt_token_ids": prompt.tolist()} for prompt in asked],
                [self._vllm.SamplingParams(**sampling, seed=seed) for seed in _seeds(rng, len(prompts))],
                use_tqdm=False,
                lora_request=self._adapter,
            )
            samples = []
            for output in outputs:
                samples += sorted(output.outputs, key=lambda one: one.index)
            wrote = None
            if self._version is not None:
                wrote = np.array([int(one.weight_versions[0].version) for one in samples], dtype=np.int64)
        batch = token_batch(
            [prompt for prompt in asked for _ in range(n_per_prompt)],
            [np.asarray(sample.token_ids, dtype=np.int64) for sample in samples],
            np.array([sample.finish_reason == "stop" for sample in samples]),
            pad_id=pad_id(self.policy.tokenizer),
        )
        log_probs = np.zeros(batch.mask_B_T.shape, dtype=np.float32)
        log_probs[batch.mask_B_T] = np.concatenate([_drawn_log_probs(sample) for sample in samples])
        return Generation(batch, log_probs, wrote)

    def _sampling(self, n_per_prompt: int, max_new_tokens: int, greedy: bool) -> dict[str, Any]:
        """Parameters of vLLM's sampling, but for the seed."""
        sampling = {
            "n": n_per_prompt,
            "max_tokens": max_new_tokens,
            "stop_token_ids": self._stops,
            "logprobs": 0,  # of the token that was drawn
            "detokenize": False,
            "skip_special_tokens": False,
        }
        if greedy:
            return {**sampling, "temperature": 0.0}
        settings = self.settings
        drawn = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
        return {**sampling, **drawn}

    # How it starts.

    def _whole(self, seed: int) -> dict[str, Any]:
        """Arguments of vLLM without weights, which come with `sync`.

        Its output matrix is its own where the policy shares it: vLLM reloads a shared one into one place.
        """
        base = self.policy.base
        self._tied = bool(base.model.config.tie_word_embeddings)
        self._head = next(p for p, m in base.model.named_modules() if m is base.model.get_output_embeddings())
        if any(not isinstance(getattr(o, leaf), nn.Parameter) for o, names in base.weights.items() for leaf in names):
            base = self._read(seed)
            self._fixed = {
                name: tensor.detach()
                for owner, names in base.weights.items()
                for leaf, name in names.items()
                if not isinstance(tensor := getattr(owner, leaf), nn.Parameter)
            }
        base.model.config.save_pretrained(self._folder.name)
        named = {"architectures": [type(base.model).__name__], "tie_word_embeddings": False}
        return {"model": self._folder.name, "load_format": "dummy", "hf_overrides": named}

    def _lora(self, seed: int) -> dict[str, Any]:
        """Arguments of vLLM with the weights under the adapter, from their own folder where they have one."""
        settings = self.policy.base.settings
        rank = self.policy.base.peft.peft_config[self.policy.adapter].r
        room = next((one for one in _RANKS if one >= rank), None)
        if room is None:
            raise ConfigError.about("policy.lora.r", f"{rank} is more than vLLM takes: at most {_RANKS[-1]}")
        found = None if settings.path is None else model_folder(local_model(settings.path))
        if found is None or (found / ADAPTER).is_file():
            found, base = Path(self._folder.name), self._read(seed)
            with base.whole():
                write_policy(TextPolicy(base, trainable=False), found)
        return {"model": str(found), "enable_lora": True, "max_loras": 1, "max_lora_rank": room}

    def _read(self, seed: int) -> Any:
        """The weights without adapters: the policy's own, or read for this moment where it has none."""
        base = self.policy.base
        if self.policy.device.type != "meta":
            return base
        return load_base(base.settings.model_copy(update={"lora": None}), seed=seed, device="cpu")

    # How it gets weights.

    def _load_adapter(self, weights: Mapping[str, Tensor]) -> None:
        """Write the adapter as a peft folder, and load it in place of the one before."""
        name, folder = str(self.policy.adapter), Path(self._folder.name) / "adapter"
        folder.mkdir(exist_ok=True)
        peft = self.policy.base.peft
        with quietly():
            stored = import_peft().get_peft_model_state_dict(
                peft,
                state_dict={PEFT_PREFIX + n: t.cpu() for n, t in weights.items()},
                adapter_name=name,
                save_embedding_layers=False,
            )
            peft.peft_config[name].save_pretrained(str(folder))
        save_weights(stored, folder / ADAPTER_WEIGHTS)
        self._adapter = self._vllm.lora.request.LoRARequest(f"{name} {self._loaded}", self._loaded, str(folder))
        self._llm.llm_engine.add_lora(self._adapter)

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace all weights."""
        if not self._apart:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._named(weights)})
            return
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            bucket: dict[str, Tensor] = {}
            files = 0
            for name, tensor in self._named(weights):
                bucket[name] = tensor.cpu().contiguous()
                if sum(t.nbytes for t in bucket.values()) >= _BUCKET:
                    save_file(bucket, Path(folder) / f"{files:05d}.safetensors")
                    bucket, files = {}, files + 1
            save_file(bucket, Path(folder) / f"{files:05d}.safetensors")
            self._llm.collective_rpc(reload_from, args=(folder,))

    def _named(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """One weight after the other in the dtype that vLLM computes in, by the names of files, which vLLM reads.

        Each expert has its own there.
        """
        from transformers.core_model_loading import revert_weight_conversion

        model, dtype = self.policy.base.model, torch.bfloat16 if self._bf16 else torch.float32
        shared = {}
        if self._tied and (head := f"{self._head}.weight") not in weights:
            embedding = model.get_input_embeddings()
            path = next(path for path, layer in model.named_modules() if layer is embedding)
            shared[head] = weights[f"{path}.weight"].clone()  # files hold no tensor twice
        for name, weight in {**weights, **self._fixed, **shared}.items():
            yield from revert_weight_conversion(model, {name: weight.to(dtype)}).items()


def _seeds(rng: np.random.Generator | Sequence[np.random.Generator] | None, prompts: int) -> list[int]:
    """A seed for each prompt: all from one generator, each from its own, or 0 where nothing is sampled."""
    if rng is None:
        return [0] * prompts
    if isinstance(rng, np.random.Generator):
        return [int(seed) for seed in rng.integers(2**31, size=prompts)]
    return [int(own.integers(2**31)) for own in rng]


def _drawn_log_probs(sample: Any) -> FloatArray:
    """(T,) log-probabilities of the tokens of a response, from the table of each."""
    tables = zip(sample.logprobs, sample.token_ids, strict=True)
    return np.asarray([table[int(token)].logprob for table, token in tables], dtype=np.float32)


def reload_from(worker: Any, folder: str) -> None:
    """Replace the weights of one worker of vLLM, in its process, by those of the safetensors files of a folder."""
    files = sorted(Path(folder).iterdir())
    worker.reload_weights(weights_iterator=(pair for file in files for pair in load_file(file).items()))


def _own_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _import_vllm() -> Any:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with needs(_NEEDS):
        importlib.import_module("vllm.lora.request")
        return importlib.import_module("vllm")
