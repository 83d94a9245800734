"""The forecast from the command line to the run: the card, `--gate` with exit status 5, warnings, the server's list."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gate_tables import made_rows

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from synthetic import square_episodes

from guerdon import cli
from guerdon.config.loading import load
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError, HarmError
from guerdon.evaluation.gate.gate_card import (
    card_folders,
    check_gate,
    forecast_lines,
    harm_warning,
    read_forecast,
)
from guerdon.evaluation.gate.gate_features import text_features
from guerdon.evaluation.gate.gate_table import read_gate_table
from guerdon.evaluation.suites.image_suite import evaluate_study
from guerdon.rl.reward_warnings import reward_warnings
from guerdon.settings.evaluate import GateSettings
from guerdon.settings.study import Study
from guerdon.train.images import train_image_model

pytestmark = pytest.mark.usefixtures("narrow_resnets")

TEXT = """\
name: gate
work_dir: work
env: {type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 2, max_episode_steps: 10, frame_size: 32}
policy: {type: mlp, hidden: [8]}
algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}
runner:
  {total_steps: 20, eval_every: 20, eval_episodes: 2, checkpoint_every: 20,
   logger: {log_path: runs, experiment_name: one, tensorboard: false}}
reward: {use_reward_model: true, model: {model_type: resnet, checkpoint_path: models/done}}
train:
  done: {type: resnet, data_path: data, save_dir: models/done, image_size: 32, hidden_dim: 8, max_epochs: 1,
         max_steps: 4, batch_size: 16, val_split: 0.25, tensorboard: false, augment: false}
evaluate: {reps: 100, data_path: data}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A study with a trained reward model, and two tables: one says that models like it harm, one that they help."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("gate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with EpisodeWriter("data", fps=10) as writer:
            for episode in square_episodes(16):
                writer.add(episode)
        Path("study.yaml").write_text(TEXT)
        study = load(Study, Path("study.yaml"))
        train_image_model(study.train["done"])
        measured = evaluate_study(study)["done"][0].forecast.features
        for name, own in (("harms", -0.7), ("helps", 0.7)):
            rows = made_rows()
            for row in rows:
                quality = row["feature.bon16"] - own  # 0 at the reward model's own value
                for old in ("feature.epic", "feature.idle", "feature.rare"):
                    del row[old]
                row["feature.bon16"] = measured["bon16"] + 0.1 * quality
            Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path("small.jsonl").write_text(json.dumps(made_rows(1, 1)[0]) + "\n")
        yield folder


@pytest.fixture
def call(trained, monkeypatch, capsys):
    """Run the command line in the folder of the study: status, output and errors."""
    monkeypatch.chdir(trained)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["guerdon", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


def test_a_model_that_likely_harms_leaves_with_status_5(call):
    status, out, err = call("evaluate", "study.yaml", "evaluate.gate.table=harms.jsonl", "--gate")
    assert status == 5
    assert "done harms with probability" in err
    assert "above evaluate.gate.max_harm 0.5" in err
    assert "forecast: likely HARMS RL" in out
    record = json.loads(Path("models/done/evaluation.json").read_text())
    assert next(iter(record)) == "forecast"
    assert record["forecast"]["answer"] == "harms"
    assert record["forecast"]["gain"]["high"] < 0
    assert len(record["forecast"]["reasons"]) == 1
    assert record["forecast"]["validated"]["tasks"] == 6
    first = Path("models/done/evaluation.txt").read_text().splitlines()
    assert first[0].startswith("forecast: likely HARMS RL (probabilities: helps ")
    assert "lowers the expected gain" in first[2]


def test_without_the_option_the_forecast_is_only_said(call):
    status, out, _ = call("evaluate", "study.yaml", "evaluate.gate.table=harms.jsonl")
    assert status == 0
    assert "likely HARMS" in out


def test_the_limit_is_a_key(call):
    forecast = {"table": "harms.jsonl", "max_harm": "0.9999"}
    status, _, err = call("evaluate", "study.yaml", "--gate", *(f"evaluate.gate.{k}={v}" for k, v in forecast.items()))
    assert status == 0, err


def test_a_model_that_likely_helps_passes(call):
    status, out, err = call("evaluate", "study.yaml", "evaluate.gate.table=helps.jsonl", "--gate")
    assert status == 0, err
    assert "forecast: likely helps RL" in out


def test_unknown_passes_with_a_warning_or_fails(call):
    words = ("evaluate", "study.yaml", "--gate", "evaluate.gate.table=small.jsonl")
    status, out, err = call(*words)
    assert status == 0
    assert "WARNING: done has no forecast: the table has 1 reward models" in err
    assert "forecast: unknown whether it helps RL" in out
    status, _, err = call(*words, "evaluate.gate.unknown=fail")
    assert status == 5
    assert "done has no forecast" in err


def test_a_table_that_is_not_there(call):
    status, _, err = call("evaluate", "study.yaml", "evaluate.gate.table=none.parquet")
    assert status == 2
    assert "none.parquet" in err


def test_a_run_warns_of_a_model_that_likely_harms(call):
    call("evaluate", "study.yaml", "evaluate.gate.table=harms.jsonl")
    study = load(Study, Path("study.yaml"))
    (line,) = reward_warnings(study)
    assert "its card says that it likely harms: probability" in line
    assert "(models/done)" in line
    status, _, err = call("run", "study.yaml")
    assert status == 0
    assert line in err
    assert json.loads(Path("runs/one/run.json").read_text())["warnings"] == [line]
    assert reward_warnings(load(Study, Path("study.yaml"), ["evaluate.gate.max_harm=0.9999"])) == []
    native = load(Study, Path("study.yaml"), ["reward={}"])
    assert reward_warnings(native) == []


@pytest.mark.slow
def test_a_study_warns_once_of_a_model_that_likely_harms(call):
    rewards = "reward: {use_reward_model: true, model: {model_type: resnet, checkpoint_path: "
    arms = f"{{native: {{label: native}}, rm: {{label: model, config: {{{rewards}arms/models/tiny/done}}}}}}}}}}"
    study = "".join(line for line in TEXT.splitlines(keepends=True) if not line.startswith("reward:"))
    study = study.replace("name: gate", "name: arms").replace("work_dir: work", "work_dir: arms")
    study = study.replace(
        "evaluate: {reps: 100, data_path: data}", "evaluate: {reps: 100, data_path: data, gate: {table: harms.jsonl}}"
    )
    study = study.replace("models/done", "arms/models/tiny/done")
    Path("arms.yaml").write_text(study + f"compare: {{baseline: native, seeds: [0, 1], arms: {arms}}}\n")
    status, out, err = call("compare", "arms.yaml", "--parallel", "1")
    assert status == 0, err
    assert (out + err).count("its card says that it likely harms") == 1
    for seed in (0, 1):
        card = json.loads(next(Path("arms/runs").glob(f"*/rm/seed{seed}/run.json")).read_text())
        assert "likely harms" in card["warnings"][0]
    assert "forecast: likely HARMS RL" in Path("arms/report.html").read_text()
    own = read_gate_table("arms/gate.jsonl")
    assert own.families_N.tolist() == ["rm"]
    assert own.gains_N_S.shape == (1, 2)
    assert np.isfinite(own.columns(["bon16"])).all()


def test_no_warning_of_a_model_that_likely_helps(call):
    call("evaluate", "study.yaml", "evaluate.gate.table=helps.jsonl")
    assert reward_warnings(load(Study, Path("study.yaml"))) == []


@pytest.mark.slow
def test_a_server_lists_the_forecast_of_its_models(call):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from guerdon.serve.app import build_app
    from guerdon.serve.backends import model_loader
    from guerdon.serve.served_models import ServedModels
    from guerdon.settings.serve import ServedModelSettings, ServeSettings

    call("evaluate", "study.yaml", "evaluate.gate.table=harms.jsonl")
    settings = {
        "done": ServedModelSettings(backend="resnet", model_path="models/done", processes=None),
        "constant": ServedModelSettings(backend="constant"),
    }
    models = ServedModels({name: model_loader(name, one) for name, one in settings.items()})
    with TestClient(build_app(models, ServeSettings(models=settings)), base_url="http://localhost") as client:
        client.portal.call(models.loaded)
        listed = {one["id"]: one["forecast"] for one in client.get("/v1/models").json()["data"]}
        assert listed["constant"] is None
        record = json.loads(Path("models/done/evaluation.json").read_text())["forecast"]
        assert listed["done"]["answer"] == "harms"
        assert listed["done"]["probabilities"] == record["probabilities"]
        assert listed["done"]["reasons"] == record["reasons"]
        assert listed["done"]["gain"]["estimate"] == record["gain"]["estimate"]
        call("evaluate", "study.yaml", "evaluate.gate.table=helps.jsonl")
        assert client.post("/v1/reload", json={"model": "done"}).status_code == 200
        listed = {one["id"]: one["forecast"] for one in client.get("/v1/models").json()["data"]}
        assert listed["done"]["answer"] == "helps"


FORECAST = {
    "answer": "harms",
    "probabilities": {"harms": 0.7, "no effect": 0.2, "helps": 0.1},
    "gain": {"estimate": -0.2, "low": -0.3, "high": 0.01},
    "reasons": ["it looks at the arm"],
}


def card(folder, forecast):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.json").write_text(json.dumps({"forecast": forecast}))
    return folder


def test_a_card_lies_in_the_folder_of_a_model_or_above_its_final_checkpoint(tmp_path):
    card(tmp_path / "prm", FORECAST)
    final = tmp_path / "prm" / "final_checkpoint"
    final.mkdir()
    (final / "reward_model.json").write_text("{}")
    assert read_forecast(*card_folders(str(tmp_path / "prm"))) == FORECAST
    assert read_forecast(*card_folders(str(final))) == FORECAST
    assert read_forecast(*card_folders(str(tmp_path / "prm" / "samples"))) is None
    card(tmp_path / "other" / "method1_HE", FORECAST)
    assert read_forecast(*card_folders(str(tmp_path / "other"))) == FORECAST
    assert read_forecast(*card_folders("someone/prm")) is None


def test_a_model_on_a_server_has_its_card_where_the_study_evaluates_it(tmp_path):
    address = {"endpoint": "http://127.0.0.1:18080/v1/rewards", "backend": "done"}
    study = Study.model_validate({
        "work_dir": str(tmp_path),
        "env": {"type": "gymnasium", "task": "Dot-v1"},
        "reward": {"use_reward_model": True, "model": {"model_type": "remote", "remote": address}},
        "evaluate": {"data_path": "data", "remote": {"far": address, "near": {**address, "backend": "other"}}},
    })  # fmt: skip
    card(tmp_path / "models" / study.task_name / "near", FORECAST)
    assert reward_warnings(study) == []
    card(tmp_path / "models" / study.task_name / "far", FORECAST)
    (line,) = reward_warnings(study)
    assert "(http://127.0.0.1:18080/v1/rewards?model=done)" in line


def test_a_card_without_a_forecast_and_one_that_is_none(tmp_path):
    assert read_forecast(card(tmp_path / "old", None)) is None
    assert harm_warning([tmp_path / "old"], 0.5) is None
    for broken in ({"answer": "harms"}, FORECAST | {"answer": "maybe"}, FORECAST | {"probabilities": None}):
        with pytest.raises(DataError, match="not JSON of an evaluation"):
            read_forecast(card(tmp_path / "broken", broken))


def test_the_warning_needs_harm_above_the_limit(tmp_path):
    folder = card(tmp_path, FORECAST)
    assert "probability 0.70, expected change of true success -0.20 [-0.30, +0.01]; it looks at the arm" in (
        harm_warning([folder], 0.5) or ""
    )
    assert harm_warning([folder], 0.7) is None


def test_the_gate_names_all_that_it_refuses():
    gate, fine = GateSettings(), FORECAST | {"probabilities": {"harms": 0.1, "no effect": 0.1, "helps": 0.8}}
    assert check_gate({"a": fine}, gate) == []
    with pytest.raises(HarmError, match=r"a harms with probability 0\.70.*c harms") as caught:
        check_gate({"a": FORECAST, "b": fine, "c": FORECAST}, gate)
    assert caught.value.exit_code == 5


def test_lines_of_a_forecast():
    validated = {
        "models": 48, "tasks": 6,
        "correlation": {"estimate": 0.7, "low": 0.5, "high": 0.8}, "false_passes": {"estimate": 0.1},
    }  # fmt: skip
    lines = forecast_lines(FORECAST | {"validated": validated})
    assert lines[0] == "forecast: likely HARMS RL (probabilities: helps 0.10, no effect 0.20, harms 0.70)"
    assert lines[1].startswith("expected change of true success: -0.20 [-0.30, +0.01]")
    assert lines[2] == "  it looks at the arm"
    assert "48 reward models, 6 tasks" in lines[3]
    assert "+0.70 [+0.50, +0.80]" in lines[3]
    assert "10% passed" in lines[3]
    assert lines[4].startswith("a forecast for tasks and policies like those of the table")
    chances = {"harms": 0.44, "no effect": 0.42, "helps": 0.14}
    said = forecast_lines(FORECAST | {"probabilities": chances})[0]
    assert said.startswith("forecast: undecided, none has a probability above 0.5 (probabilities: helps 0.14")


def test_features_of_a_model_for_text():
    record = {
        "process_bench": {
            "answers": {"auroc": {"estimate": 0.8}},
            "steps": {"auroc": {"estimate": 0.7}, "ece": {"estimate": None}},
        },
        "samples": {"answers": {"auroc": {"estimate": 0.1}}},
    }
    assert text_features(record) == {"row_auroc": 0.7, "auroc": 0.8}
    assert text_features(record | {"generated": {"answers": {}}}) == {"row_auroc": None, "auroc": None}
    assert set(text_features({"attacks": None}).values()) == {None}
