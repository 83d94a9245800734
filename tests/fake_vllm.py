"""A stand-in for vLLM that answers by a rule and records what it is told: weights, versions, adapters, sleep."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

from safetensors.torch import load_file

EOS = 2


class FakeLLM:
    """Answers prompt [p, ...] with tokens p, p + 1, ... and a stop after three."""

    vocabulary = 103

    def __init__(self, **options):
        self.options, self.calls, self.loras, self.requests = options, [], [], []
        self.llm_engine, self.version = self, "default"

    def generate(self, prompts, parameters, *, use_tqdm, lora_request):
        self.requests += [] if lora_request is None else [lora_request.name]
        outputs = []
        for prompt, wanted in zip(prompts, parameters, strict=True):
            ids = [(prompt["prompt_token_ids"][0] + i) % self.vocabulary for i in range(wanted.max_tokens)]
            ids = [*ids[:3], EOS] if wanted.max_tokens > 3 else ids
            sample = [
                SimpleNamespace(
                    index=i, token_ids=ids, finish_reason="stop" if ids[-1] == EOS else "length",
                    logprobs=[{t: SimpleNamespace(logprob=-0.5)} for t in ids],
                    weight_versions=[SimpleNamespace(version=self.version)],
                )
                for i in reversed(range(wanted.n))
            ]  # fmt: skip
            outputs.append(SimpleNamespace(outputs=sample))
        self.calls.append(parameters)
        return outputs

    def collective_rpc(self, method, *, kwargs=None, args=()):
        if isinstance(method, str):
            self.calls.append((method, {name: tensor.cpu().clone() for name, tensor in kwargs["weights_iterator"]}))
            return
        worker = SimpleNamespace(reload_weights=lambda weights_iterator: found.update(weights_iterator))
        found, files = {}, len(list(Path(args[0]).iterdir()))
        method(worker, *args)
        self.calls.append((method.__name__, files, found))

    def add_lora(self, request):
        self.loras.append(request.number)
        self.calls.append(("add_lora", load_file(Path(request.path) / "adapter_model.safetensors")))

    def set_weight_version(self, version):
        self.version = version
        self.calls.append(f"version {version}")

    def reset_prefix_cache(self):
        self.calls.append("reset")

    def sleep(self, *, level):
        self.calls.append(f"sleep {level}")

    def wake_up(self, *, tags):
        self.calls += [f"wake {tag}" for tag in tags]


def install(monkeypatch):
    """Let `import vllm` find the stand-in."""
    module, request = ModuleType("vllm"), ModuleType("vllm.lora.request")
    module.__spec__ = ModuleSpec("vllm", None)
    request.LoRARequest = lambda name, number, path: SimpleNamespace(name=name, number=number, path=path)
    module.LLM, module.SamplingParams = FakeLLM, SimpleNamespace
    module.lora = SimpleNamespace(request=request)
    for name, one in (("vllm", module), ("vllm.lora", ModuleType("vllm.lora")), (request.__name__, request)):
        monkeypatch.setitem(sys.modules, name, one)
