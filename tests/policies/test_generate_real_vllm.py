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
    pytest.mark.timeout(600),
    pytest.mark.skipif(VLLM is None, reason="set GUERDON_VLLM to a vllm executable"),
]
SCRIPT = """
import json
import numpy as np, torch
from guerdon.policies.generate_vllm import VLLMEngine
from guerdon.policies.text_files import load_policy
from guerdon.policies.tokens import prompt_ids
from guerdon.settings.text_policy import VLLMGenerationSettings, TextPolicySettings, TinyModelSettings

if __name__ == "__main__":
    tiny = TinyModelSettings(alphabet="0123456789+-*=?;", max_positions=256)
    policy = load_policy(TextPolicySettings(tiny=tiny, bf16=False), seed=0)
    engine = VLLMEngine(policy, VLLMGenerationSettings())
    ids = [prompt_ids(policy.tokenizer, [{"role": "user", "content": text}]) for text in ("1+2=?", "3+4=?;")]
    gaps = []
    for turn in range(2):
        found = engine.generate(ids, 4, max_new_tokens=16, rng=np.random.default_rng(turn))
        with torch.no_grad():
            own = policy.log_probs(found.batch).numpy()
            gaps.append(float(np.abs(own - found.log_probs_B_T)[found.batch.mask_B_T].max()))
            for parameter in policy.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        engine.sync()
    print("GAPS", json.dumps(gaps))
"""


def test_log_probs_are_the_policys_also_after_an_update(tmp_path):
    script = tmp_path / "write.py"
    script.write_text(SCRIPT)
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("TORCHDYNAMO_DISABLE", None)
    done = subprocess.run(
        [str(Path(VLLM).with_name("python")), str(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("GAPS ")]
    first, after_an_update = json.loads(line.removeprefix("GAPS "))
    assert first < 1e-4
    assert after_an_update < 1e-4
