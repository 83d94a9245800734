"""A study of words whose responses a real vLLM writes; what a test in vLLM's own environment carries out.

    python vllm_study.py FOLDER '{"policy": {"lora": {}}}' [kill]

Prints the metrics of its updates and the versions in its answers as JSON.
"""

import json
import sys

from ray_studies import words

from guerdon.compute import distributed
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from scripted import SHAPE

ALGORITHM = {  # the entropy bonus moves the weights, whatever is right
    "adv_estimator": "grpo", "learning_rate": 1e-2, "minibatch_size": 4, "entropy_coef": 0.1,
    "rollout_is_threshold": 2.0,
}  # fmt: skip


def study(folder, *, policy=None, generation=None, runner=None, **more):
    tiny = {**SHAPE, "hidden_size": 64, "alphabet": "0123456789+-*=?;"}  # heads of 32, the smallest of vLLM's on a CPU
    return words(
        folder, "run", policy={"type": "text", "tiny": tiny, "bf16": False, **(policy or {})}, algorithm=ALGORITHM,
        generation={"engine": "vllm", "engine_kwargs": {"enforce_eager": True}, **(generation or {})},
        runner={"total_steps": 24, "eval_every": 100, "checkpoint_every": 100, **(runner or {})}, **more,
    )  # fmt: skip


def work(given, kill):
    folder = run_folder(given)
    loop = Loop(given, folder)
    if kill:
        loop.iterate()
        loop.collector.collector._actors.ray.kill(next(iter(loop.collector.collector._actors)).handle)
    loop.run()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    answers = json.loads(sorted(folder.glob("films/*.json"))[-1].read_text())["responses"]
    versions = [one["version"] for one in answers]
    print("FOUND", json.dumps({"rows": [r for r in rows if r["kind"] == "train"], "versions": versions}), flush=True)


if __name__ == "__main__":
    given = study(sys.argv[1], **json.loads(sys.argv[2]))
    if given.cluster.learners > 1:
        from guerdon.engines.ray_learners import lead

        lead(given.cluster, 1, lambda again: work(given, "kill" in sys.argv), lambda: None)
    else:
        with distributed.joined():
            distributed.led(lambda: work(given, "kill" in sys.argv))
