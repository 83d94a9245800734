"""A task set of verifiers (`products_v1.py`), run by `vf-eval`, one task for each conversation. See docs/agents.md."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

row = json.loads(sys.stdin.readline())
here, programs = Path(__file__).resolve().parent, Path(sys.executable).parent
variables = {**os.environ, "PYTHONPATH": str(here), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}  # for uv
with tempfile.TemporaryDirectory() as folder:
    options = {
        "--model": os.environ["OPENAI_MODEL"],
        "--client.base-url": os.environ["OPENAI_BASE_URL"],
        "--client.api-key-var": "OPENAI_API_KEY",
        "--env.agent.harness.id": "null",
        "--env.agent.runtime.type": "subprocess",
        "--select.include.names": row["messages"][-1]["content"],
        "--output-dir": folder,
        "--run.dir": "run",
    }
    words = [word for pair in options.items() for word in pair]
    subprocess.run(
        [programs / "vf-eval", "products-v1", *words, "--no-push", "--no-rich"],
        env=variables, stdout=sys.stderr, check=True,
    )  # fmt: skip
    (episode,) = map(json.loads, (Path(folder) / "run" / "traces.jsonl").read_text().splitlines())
(trace,) = episode["traces"]
if trace["errors"]:
    print(json.dumps({"error": trace["errors"][-1]["message"]}))
else:
    print(json.dumps({"reward": sum(one["score"] * one["weight"] for one in trace["rewards"].values() if one)}))
