"""`guerdon train` of a language study, from labelled data on disk to a model that scores."""

import json

import pytest
import torch
import yaml
from text_lessons import TINY, sums
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.episodes.solution_files import write_solutions
from guerdon.labels.data_set import write
from guerdon.models.text.text_load import load_text_model
from guerdon.settings.label import LabelSettings

torch.set_num_threads(1)


@pytest.fixture
def call(tmp_path):
    """The verb, called on a study with labels of both rewards; returns its exit status and what it said."""
    model = {
        "type": "stepwise", "save_dir": str(tmp_path / "prm"), "max_steps": 4, "batch_size": 8, "bf16": False,
        "learning_rate": 1e-2, "val_split": 0.2, "lr_scheduler": "constant",
    }  # fmt: skip
    study = {
        "policy": {"type": "text", "tiny": TINY},
        "data": {"type": "generated", "task": {"family": "chain", "steps": 2}},
        "label": {"save_dir": str(tmp_path / "data"), "labeler": "exact"},
        "train": {"prm": model, "other": {**model, "data_path": str(tmp_path / "elsewhere"), "type": "verdict"}},
    }
    for reward in ("HE", "SE"):
        settings = LabelSettings(save_dir=str(tmp_path / "data"), labeler="exact", reward=reward)
        card = {"method": 1, "reward": reward, "labeler": "exact"}
        write(tmp_path / "data" / settings.dataset, sums(reward=reward), card, settings)
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study))

    def run(*words):
        result = CliRunner().invoke(app, ["train", str(file), *words])
        return result.exit_code, result.output + str(result.exception or "")

    return run


def weights(folder):
    return load_text_model(str(folder)).tensors()


def test_each_reward_gets_a_model_of_its_own_and_its_size_counts(call, tmp_path):
    for reward in ("HE", "SE"):
        status, said = call("--only", "prm", "--method", "1", "--reward", reward)
        assert status == 0, said
        assert f"wrote prm to {tmp_path / 'prm' / f'method1_{reward}' / 'final_checkpoint'}" in said
    he, se = (weights(tmp_path / "prm" / f"method1_{reward}") for reward in ("HE", "SE"))
    assert any(not torch.equal(a, b) for a, b in zip(he.values(), se.values(), strict=True))
    metrics = json.loads((tmp_path / "prm" / "method1_SE" / "metrics.json").read_text())
    assert metrics["steps"] == 4


def test_the_guides_flag_goes_on_from_a_checkpoint(call, tmp_path):
    assert call("--only", "prm")[0] == 0
    folder = tmp_path / "prm" / "method1_HE" / "final_checkpoint"
    made = folder.stat().st_mtime_ns
    status, said = call("--only", "prm", "--skip_generation")
    assert (status, folder.stat().st_mtime_ns) == (0, made), said
    status, said = call("--only", "prm", "--resume", "train.prm.seed=1")
    assert status != 0
    assert "settings.seed" in said
    assert "or choose another save_dir" in said
    for words in ((), ("train.prm.seed=1",), ("train.prm.resume=false",)):  # never replaced in silence
        status, said = call("--only", "prm", *words)
        assert status != 0
        assert f"{folder.parent} already holds a training; go on with it by --resume" in said
    assert folder.stat().st_mtime_ns == made
    assert call("--only", "prm", "train.prm.resume=true")[0] == 0
    assert call("--only", "prm", f"train.prm.save_dir={tmp_path / 'second'}")[0] == 0


def test_a_flag_that_would_do_nothing_is_refused(call):
    status, said = call("--only", "other", "--reward", "SE")
    assert status != 0
    assert "train.other.data_path already names the data" in said


def test_a_dry_run_writes_nothing(call, tmp_path):
    status, said = call("--only", "prm", "--dry-run")
    assert status == 0, said
    assert "gradient steps: 4" in said
    status, said = call("--dry-run")  # the verdict model asks with letters that this tokenizer lacks
    assert status != 0
    assert "the tokenizer does not know" in said
    assert not (tmp_path / "prm").exists()


def test_the_guides_flag_names_the_model_to_start_from(call, tmp_path):
    status, said = call("--only", "prm", "--sft_model", str(tmp_path / "nowhere"))
    assert status != 0
    assert str(tmp_path / "nowhere") in said


def test_prm800k_and_a_folder_of_parquet_are_trained_on(call, tmp_path):
    rows = [json.loads(line) for line in
            write_solutions(tmp_path / "rows.jsonl", sums(), "prm800k").path.read_text().splitlines()]  # fmt: skip
    bad = {"question": {"problem": "0"}, "label": {"finish_reason": "bad_problem", "steps": []}}
    (tmp_path / "prm800k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [bad, *rows[:20], bad]))
    write_solutions(tmp_path / "parquet" / "train.parquet", sums(), "trl")
    for name, dropped in (("prm800k.jsonl", {"bad_problem": 2}), ("parquet", {})):
        more = [f"train.prm.data_path={tmp_path / name}", f"train.prm.save_dir={tmp_path / name}_prm"]
        status, said = call("--only", "prm", *more)
        assert status == 0, said
        assert json.loads((tmp_path / f"{name}_prm" / "metrics.json").read_text())["rows_left_out"] == dropped
        assert ("left out rows without a rated step: 2 bad_problem" in said) == bool(dropped)
