"""mini-swe-agent, which runs the model's shell commands. See docs/agents.md.

It runs them on this machine, as you, in an empty folder. Replace `LocalEnvironment` by mini-swe-agent's
`DockerEnvironment` for any model that you do not trust.
"""

import json
import os
import sys
import tempfile

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

row = json.loads(sys.stdin.readline())
config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
model = LitellmModel(model_name=f"openai/{os.environ['OPENAI_MODEL']}", cost_tracking="ignore_errors")
with tempfile.TemporaryDirectory() as folder:
    agent = DefaultAgent(model, LocalEnvironment(cwd=folder), **{**config["agent"], "step_limit": 4})
    answer = agent.run(row["messages"][-1]["content"]).get("submission", "")
print(json.dumps({"reward": float(row["extra_info"]["answer"] in answer)}))
