"""A classifier as TRL's `RewardTrainer` saves it, in `guerdon evaluate`, `guerdon serve` and `guerdon run` alike."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.types import Episode
from text_rl import letter_study, lines, start

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from chat_families import alone, assistant, folder_of, user
from processes import start_server

SYSTEM = {"role": "system", "content": "Answer with one digit."}
ROWS = [
    {"prompt": [SYSTEM, user(f"What is {k}+1?")], "chosen": [assistant(str(k + 1))],
     "rejected": [assistant(f"{k}, no")], "subset": "sums", "id": k}
    for k in range(8)
]  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("trl") / "reward", "chatml", "eos", dtype=torch.bfloat16)


def test_evaluate_gives_the_values_of_transformers(published, tmp_path):
    path, tokenizer = published
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    study = {
        "evaluate": {"models": {"theirs": path}, "aggregation": "last", "reps": 100,
                     "save_dir": str(tmp_path / "out"),
                     "pairs": str(tmp_path / "pairs.jsonl")},
        "policy": {"type": "text", "tiny": {}},
        "data": {"task": {"family": "chain", "steps": 2}},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "study.yaml")])
    assert done.exit_code == 0, (done.output, done.exception)
    (record,) = [json.loads(file.read_text()) for file in (tmp_path / "out").rglob("evaluation.json")]
    values = [[alone(path, tokenizer, [*row["prompt"], *row[key]]) for key in ("chosen", "rejected")] for row in ROWS]
    right = np.mean([chosen > rejected for chosen, rejected in values])
    assert 0 < right < 1
    assert record["pairs"]["subsets"]["sums"]["measured"]["estimate"] == right
    assert record["pairs"]["failures"] == {}
    assert (record["model"]["form"], record["model"]["granularity"]) == ("conversation", "total")


@pytest.mark.slow
def test_serve_gives_the_values_of_transformers(published, tmp_path):
    path, tokenizer = published
    running = start_server(tmp_path, models={"theirs": {"model_path": path}})
    told = [[*row["prompt"], *row["chosen"]] for row in ROWS[:3]]
    try:
        one_by_one = [running.post("/classify", {"messages": chat}).json()["data"][0]["probs"][0] for chat in told]
        items = [{"messages": chat} for chat in [*told, [SYSTEM, user("x"), assistant("y", tool_calls=[])]]]
        together = running.post("/v1/rewards", {"items": items}).json()["results"]
    finally:
        assert running.stop(60) == 0
    expected = [alone(path, tokenizer, chat) for chat in told]
    np.testing.assert_allclose(one_by_one, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([item["score"] for item in together[:3]], expected, rtol=1e-4, atol=1e-5)


def test_a_run_gives_the_values_of_transformers(published, tmp_path):
    path, tokenizer = published
    rows = [{"prompt": [{"role": "system", "content": "ab"}, user(q)], "answer": "1"} for q in ("ba", "bb", "aa", "ab")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"model": {"model_type": "text", "checkpoint_path": path}, "reward_mode": "terminal", "shaping": "raw"}
    study = letter_study(
        tmp_path, runner={"total_steps": 16}, data={"train_files": str(tmp_path / "rows.jsonl"), "val_size": 1},
        reward={"use_reward_model": True, "combine_mode": "add", "sources": {"theirs": source}},
    )  # fmt: skip
    loop = start(study)
    seen = []
    model = loop.sources["theirs"].model
    judge = type(model).score

    def watched(self, episodes):
        found = judge(self, episodes)
        seen.extend(zip(episodes, found, strict=True))
        return found

    type(model).score = watched
    try:
        loop.run()
    finally:
        type(model).score = judge
    assert not lines(study, "failures")
    assert seen
    for episode, score in seen[:6]:
        assert isinstance(episode, Episode)
        chat = [{"role": "system", "content": "ab"}, user(episode.task), assistant("".join(episode.texts))]
        assert score.total == pytest.approx(alone(path, tokenizer, chat), rel=1e-4, abs=1e-5)
