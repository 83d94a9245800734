"""What new users ran into: misspelt addresses, models that know where their steps end, scorers that return a number."""

import numpy as np
import pytest
import torch
import yaml
from processes import start_server
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.errors import ConfigError, DataError
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_heads import StepwiseModel
from guerdon.models.vlm.tiny_vlm import write_tiny_vlm
from guerdon.policies.language.text_files import load_policy
from guerdon.serve.backends import VideoScorer, model_loader
from guerdon.serve.client import RewardClient
from guerdon.settings.serve import ServedModelSettings
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.vlm import TinyVLMSettings
from guerdon.types import Episode

TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 128,
        "alphabet": "0123456789+-*=?;"}  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A text model whose steps end at `;` and a vision-language model, loaded by one server at the same time."""
    folder = tmp_path_factory.mktemp("two")
    policy = load_policy(TextPolicySettings(tiny=TINY, bf16=False), seed=0)
    model = StepwiseModel(policy, TextModelCard(kind="stepwise", form="chat", loss="bce", separator=";"))
    torch.manual_seed(0)
    torch.nn.init.normal_(model.head.weight)  # a fresh head says 0.5 of everything
    model.write(folder / "prm")
    write_tiny_vlm(TinyVLMSettings(), folder / "vlm", seed=0)
    models = {
        "v": {"backend": "qwen_vl", "options": {"vlm": {"path": str(folder / "vlm"), "question": "progress"}}},
        "t": {"model_path": str(folder / "prm")},
    }
    server = start_server(folder, models=models, default="t")
    yield server
    assert server.stop() == 0


def test_steps_end_where_the_model_was_taught_they_do(running):
    body = {"query": ["1+2=?3=3;4=4;"], "prompts": ["1+2=?"]}
    plain = running.post("/get_reward?aggregate=prod", body).json()["rewards"]
    said = running.post("/get_reward?aggregate=prod&separator=%3B", body).json()["rewards"]
    other = running.post("/get_reward?aggregate=prod&separator=%0A", body).json()["rewards"]
    assert plain == said != other


def test_a_misspelt_key_of_the_address_is_refused(running):
    answer = running.post("/get_reward?aggregat=min", {"query": ["1=1;"], "prompts": ["1=?"]})
    assert answer.status_code == 422
    assert "unknown key 'aggregat'; did you mean 'aggregate'?" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("answer", "total", "reason"),
    [
        ((0.25, "words"), 0.25, None),
        (0.5, 0.5, None),
        ("much", None, "bad_answer"),
        ("0.85", None, "bad_answer"),
        (True, None, "bad_answer"),
        (None, None, "bad_answer"),
    ],
)
def test_a_scorer_may_return_a_score_alone(answer, total, reason):
    class Scorer:
        def score_video(self, task, path, nframes, max_pixels, words):
            return answer

    episode = Episode(id="0", task="t", frames=np.zeros((2, 16, 16, 3), np.uint8))
    score = VideoScorer("mine", Scorer()).score([episode])[0]
    assert score.total == total
    assert (score.failure and score.failure.reason) == reason


def test_evaluate_knows_models_on_servers(tmp_path):
    file = tmp_path / "study.yaml"
    remote = {"vlm": {"endpoint": "http://127.0.0.1:9"}}
    file.write_text(yaml.safe_dump({"evaluate": {"data_path": "data", "remote": remote}}))
    shown = CliRunner().invoke(app, ["evaluate", str(file), "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "models: 1" in shown.output
    refused = CliRunner().invoke(app, ["evaluate", str(file), "--only", "other"])
    assert isinstance(refused.exception, ConfigError)
    assert "has the reward models vlm" in str(refused.exception)


def test_a_text_is_not_a_list_of_letters(running):
    with RewardClient(f"{running.url}/v1/rewards") as client, pytest.raises(DataError, match="are lists"):
        client.rewards("1+2=?", "3")


def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("runs/nope", "./nope", "other/nope/prm", str(tmp_path / "nope")):
        with pytest.raises(ConfigError, match="there is no such folder") as refused:
            model_loader("m", ServedModelSettings(model_path=path)).load()
        assert refused.value.key == "model_path"


def test_a_refused_token_is_not_shown():
    refused = CliRunner().invoke(app, ["serve", "--backend", "constant", "--token", "hunter2"])
    assert isinstance(refused.exception, ConfigError)
    assert "hunter2" not in str(refused.exception)
    assert "at least 8 characters" in str(refused.exception)
