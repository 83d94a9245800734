"""No secret is in any output of a command, whatever an endpoint repeats."""

import base64
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from judge_server import judgements, steps_asked
from label_studies import TINY

sys.path.append(str(Path(__file__).parents[1] / "serve"))

from processes import start_server

from echo_server import IN_BODY, KEY, PASSWORD, address, echoing, leaks
from guerdon import cli, secrets
from guerdon.episodes.solution_files import write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError
from guerdon.network.retry import Clock, Retry
from guerdon.serve.client import load_remote
from guerdon.settings.remote import RemoteSettings
from tables import first

pytestmark = pytest.mark.hostile("secrets")

EXTRA = {"api_key": IN_BODY, "headers": {"Authorization": f"Bearer {IN_BODY}"}}


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Run a command with a study: its status and output; nothing that it wrote has a secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        Retry, "next_pause", lambda self, made, attempt, left, rng: 0.0 if made < 3 and attempt.again else ""
    )
    monkeypatch.setenv("PLANTED", f" 'Bearer {KEY}'\n")
    monkeypatch.setenv("HTTPS_PROXY", f"http://proxy-user:{PASSWORD.replace('/', '%2F')}@127.0.0.1:1")
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.setattr(secrets, "_marks", ())

    def run(verb, study, *more):
        Path("study.json").write_text(json.dumps(study))
        monkeypatch.setattr(sys, "argv", ["guerdon", verb, "study.json", *more])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = "".join(capfd.readouterr())
        assert not leaks(said)
        for path in tmp_path.rglob("*"):
            if path.is_file() and path.name != "study.json":
                assert not leaks(path.read_bytes().decode("utf-8", "replace")), path
        return left.value.code or 0, said

    return run


def judgement(kind, sent, said):
    if kind == "refusal":
        return {"role": "assistant", "content": None, "refusal": f"no: {said}"}
    steps = steps_asked(sent["messages"][-1]["content"])
    text = judgements([1] * len(steps)).replace("because", json.dumps(f"because {said}")[1:-1])
    return {"role": "assistant", "content": text if kind == "good" else f"no JSON: {said}"}


KINDS = ["good", 500, "page", "no json", "drop", "good", "bad", "refusal", 400, 429, "good", 302, "good"]


@pytest.mark.parametrize(
    "kinds", first([KINDS, *([kind] for kind in (500, "page", "no json", "drop", "bad", 400, 401, 404))], 1)
)
def test_label(call, tmp_path, kinds):
    source = [Solution(str(n), f"{n}+1=?", (f"{n}+1={n + 1}", str(n + 1)), (1.0, 1.0)) for n in range(24)]
    path = write_solutions(tmp_path / "given.jsonl", source, "trl").path
    with echoing(judgement, kinds) as server:
        judge = {"api": "openai", "model": "m", "base_url": address(server), "api_key_env": "PLANTED",
                 "extra_body": EXTRA}  # fmt: skip
        study = {"policy": {"type": "text", "tiny": TINY},
                 "label": {"save_dir": "out", "solutions": {"data_path": str(path)}, "judge": judge,
                           "max_failure_rate": 0.8}}  # fmt: skip
        status, said = call("label", study, "label.judge.retries=2", f"label.judge.extra_body.token={KEY}")
        assert status == (2 if kinds[0] in (401, 404) else 0 if "good" in kinds else 3), said
        if "good" in kinds:
            rows = [json.loads(line) for line in next(tmp_path.rglob("records.jsonl")).read_text().splitlines()]
            assert len(rows) >= 6
            assert json.dumps(rows).count("because") >= 12
            call("label", study)


def looks(kind, sent, said):
    """An answer about a picture."""
    return {"role": "assistant", "content": "yes" if kind == "good" else f"maybe {said}"}


ROBOT = {
    "name": "secret", "work_dir": "work",
    "env": {"type": "gymnasium", "task": "tiny_world:Dot-v1", "num_envs": 2, "max_episode_steps": 10, "frame_size": 32},
    "policy": {"type": "mlp", "hidden": [8]},
    "algorithm": {"rollout_steps": 10, "minibatch_size": 10, "num_epochs": 1},
    "runner": {"total_steps": 20, "eval_every": 20, "eval_episodes": 2, "checkpoint_every": 20,
               "logger": {"log_path": "runs", "experiment_name": "one", "tensorboard": True}},
}  # fmt: skip


@pytest.mark.parametrize(
    "kinds", first([["good", 500, "page", "good", "bad", 400, "good"], ["bad"], [401], ["no json"]], 1)
)
def test_run_with_a_reward_model_behind_an_endpoint(call, kinds):
    with echoing(looks, kinds) as server:
        endpoint = {"base_url": address(server), "model": "m", "api_key_env": "PLANTED", "retries": 2}
        vlm = {"backend": "openai", "answer": "hard", "openai": endpoint}
        source = {"model": {"model_type": "qwen_vl", "vlm": vlm}, "reward_mode": "per_step", "shaping": "raw"}
        reward = {"use_reward_model": True, "max_failure_rate": 0.9, "sources": {"rm": source}}
        status, said = call("run", {**ROBOT, "reward": reward})
        assert status == (0 if "good" in kinds else 2 if kinds == [401] else 3), said
        assert Path("runs/one/config.yaml").read_text().count("(hidden)") >= 2
        if status == 0:
            assert call("run", {**ROBOT, "reward": reward}, "--resume")[0] == 0  # it is the same configuration


def test_compare_writes_no_secret_into_the_files_of_its_jobs(call):
    endpoint = {"base_url": f"http://me:{IN_BODY}@127.0.0.1:9/v1", "model": "m"}
    source = {"model": {"model_type": "qwen_vl", "vlm": {"backend": "openai", "openai": endpoint}}}
    used = {
        "reward": {"use_reward_model": True, "sources": {"rm": {**source, "reward_mode": "per_step", "shaping": "raw"}}}
    }
    arms = {"A": {"label": "a"}, "B": {"label": "b", "config": used}}
    study = {key: value for key, value in ROBOT.items() if key != "runner"}
    status, said = call("compare", {**study, "compare": {"baseline": "A", "seeds": [0], "arms": arms}})
    assert status == 2
    assert "put the key into an environment variable" in said
    assert not Path("work").exists()


def test_the_client_of_a_reward_server(call, tmp_path):
    for kinds in ([401], [500, "page", "no json"], ["drop"], [400], ["good"]):
        with echoing(looks, kinds) as server:
            settings = RemoteSettings(endpoint=f"http://127.0.0.1:{server.server_port}", token_env="PLANTED", tries=3)
            with pytest.raises(ConfigError) as refused:
                load_remote(settings, clock=Clock(sleep_async=at_once))
            assert not leaks(str(refused.value))


async def at_once(seconds):
    """A pause that takes no time."""


def test_a_server_of_a_model_behind_an_endpoint(tmp_path):
    """Neither an answer to a client, nor the log, nor the metrics have the key of the endpoint."""
    with echoing(looks, ["good", "bad", 400, "no json", 500]) as server:
        endpoint = {"base_url": address(server), "model": "m", "api_key_env": "PLANTED", "retries": 0}
        options = {"vlm": {"backend": "openai", "answer": "hard", "openai": endpoint}}
        running = start_server(tmp_path, models={"v": {"backend": "qwen_vl", "options": options}}, env={"PLANTED": KEY},
                               token=IN_BODY)  # fmt: skip
        try:
            np.save(frames := io.BytesIO(), np.zeros((5, 32, 32, 3), np.uint8))
            item = {"task": "reach the edge", "npy_base64": base64.b64encode(frames.getvalue()).decode()}
            answer = running.post("/v1/rewards", {"items": [item]})
            said = [answer.text, running.get("/metrics").text, running.get("/v1/rewards").text]
            assert server.asked >= 1, said
        finally:
            running.stop()
        assert not leaks("".join([*said, running.log])), said
