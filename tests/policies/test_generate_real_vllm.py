"""A real vLLM writes the policy's responses, before and after its weights change.

GUERDON_VLLM=/path/to/vllm pytest -m slow tests/policies/test_generate_real_vllm.py
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

VLLM = os.environ.get("GUERDON_VLLM")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(VLLM is None, reason="set GUERDON_VLLM to a vllm executable"),
]
SCRIPT = """
import json, os, sys
import numpy as np, torch
from guerdon.policies.language.generate_vllm import VLLMEngine
from guerdon.policies.language.text_files import load_policy
from guerdon.policies.batches.tokens import prompt_ids
from guerdon.settings.text_policy import VLLMGenerationSettings, TextPolicySettings, TinyModelSettings

if __name__ == "__main__":
    lora, size, distribution = json.loads(sys.argv[1])
    tiny = TinyModelSettings(alphabet="0123456789+-*=?;", max_positions=256)
    policy = load_policy(TextPolicySettings(tiny=tiny, bf16=False, lora=lora), seed=0)
    policy.temperature = distribution.get("temperature", 1.0)
    settings = VLLMGenerationSettings(
        tensor_parallel_size=size, engine_kwargs={"enforce_eager": True}, **distribution
    )
    engine = VLLMEngine(policy, settings, max_length=64)
    ids = [prompt_ids(policy.tokenizer, [{"role": "user", "content": text}]) for text in ("1+2=?", "3+4=?;")]
    gaps, versions, masses = [], [], []
    for turn in range(3):
        engine.sync(version=turn)
        found = engine.generate(ids, 4, max_new_tokens=16, rng=np.random.default_rng(turn))
        versions += found.versions_B.tolist()
        with torch.no_grad():
            own = policy.log_probs(found.batch).numpy()
            apart = (own - found.log_probs_B_T)[found.batch.mask_B_T]
            gaps.append(float(np.abs(apart).max()))
            masses += np.exp(apart).tolist()
            for parameter in policy.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    print("FOUND", json.dumps({"gaps": gaps, "versions": versions, "masses": masses}))
"""


def written(tmp_path, *, lora=None, size=1, bind=None, **distribution):
    script = tmp_path / "write.py"
    script.write_text(SCRIPT)
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": bind} if bind else {}
    environment.pop("TORCHDYNAMO_DISABLE", None)
    command = [str(Path(VLLM).with_name("python")), str(script), json.dumps([lora, size, distribution])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return json.loads(line.removeprefix("FOUND "))


CASES = {
    "all weights": {},
    "an adapter": {"lora": {"r": 4, "alpha": 8}},
    "all weights, two processes": {"size": 2, "bind": "0|1"},
    "an adapter, two processes": {"lora": {"r": 4, "alpha": 8}, "size": 2, "bind": "0|1"},
}


@pytest.mark.parametrize("case", CASES)
def test_log_probs_are_the_policys_also_after_updates(case, tmp_path):
    found = written(tmp_path, **CASES[case])
    assert len(found["gaps"]) == 3
    assert max(found["gaps"]) < 1e-4
    assert found["versions"] == [0] * 8 + [1] * 8 + [2] * 8


def test_log_probs_are_those_of_the_tokens_that_could_be_drawn(tmp_path):
    found = written(tmp_path, temperature=0.8, top_p=0.7)
    masses = found["masses"]  # p / q: the mass of the tokens that top_p keeps
    assert 0.7 - 1e-4 <= min(masses) < 0.9
    assert max(masses) <= 1 + 1e-4
