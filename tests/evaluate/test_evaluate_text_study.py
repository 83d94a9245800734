"""`guerdon evaluate` of language studies: a real model on disk, judged where it lies, through the command line."""

import json

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.episodes.solution_files import write_solutions
from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.evaluate.generated_bench import generated_bench
from guerdon.evaluate.text_study import candidates, evaluate_text_study, how
from guerdon.models.outcome import OutcomeModel
from guerdon.models.stepwise import StepwiseModel
from guerdon.models.text_card import TextModelCard
from guerdon.policies.text_files import load_policy
from guerdon.settings.data import ChainSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.worlds.prompt_files import load_prompts
from guerdon.worlds.prompts import question_hash

TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 128,
        "alphabet": "0123456789+-*=?;"}  # fmt: skip
FAMILY = {"family": "chain", "steps": 2}
EVALUATE = {"aggregation": "min", "reps": 100, "generated": {"families": [FAMILY], "size": 12},
            "attacks": {"questions": 6}}  # fmt: skip


def write_model(folder, kind=StepwiseModel):
    policy = load_policy(TextPolicySettings(tiny=TINY, bf16=False), seed=0)
    name = "outcome" if kind is OutcomeModel else "stepwise"
    return kind(policy, TextModelCard(kind=name, form="chat", loss="bce")).write(folder)


@pytest.fixture
def file(tmp_path):
    """A study file with a trained judge, the solutions it learnt from, and a judge of somebody else's."""
    write_model(tmp_path / "models" / "chain" / "prm" / "final_checkpoint")
    write_model(tmp_path / "theirs", OutcomeModel)
    learnt = generated_bench([ChainSettings(steps=2)], 6, 0)
    write_solutions(tmp_path / "learnt.jsonl", learnt)
    study = {
        "work_dir": str(tmp_path), "policy": {"type": "text", "tiny": TINY}, "data": {"task": FAMILY},
        "train": {"prm": {"type": "stepwise", "save_dir": str(tmp_path / "models" / "chain" / "prm"),
                          "data_path": str(tmp_path / "learnt.jsonl")}},
        "evaluate": {**EVALUATE, "models": {"theirs": str(tmp_path / "theirs")}},
    }  # fmt: skip
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def study_of(file, **changes):
    return Study.model_validate({**yaml.safe_load(file.read_text()), **changes})


def test_every_model_is_judged_beside_its_weights(file, tmp_path):
    done = CliRunner().invoke(app, ["evaluate", str(file)])
    assert done.exit_code == 0, (done.output, done.exception)
    for folder in (tmp_path / "models" / "chain" / "prm", tmp_path / "models" / "chain" / "theirs"):
        record = json.loads((folder / "evaluation.json").read_text())
        assert record["generated"]["solutions"] == 12
        assert set(record["generated"]["answers"]) == {"auroc", "auprc"}
        assert (folder / "evaluation.txt").read_text() in done.output
        assert all((folder / name).is_file() for name in record["pictures"].values())
    assert record["model"]["granularity"] == "total"  # of theirs, an outcome model
    assert record["generated"]["process_bench"]["average_f1"]["measured"]["estimate"] is None
    assert record["generated"]["answers"]["auroc"]["n_undefined"] == 0
    assert f"wrote {tmp_path}/models/chain/prm/evaluation.json" in done.output.replace("\n", "")


def test_one_model_or_none(file, tmp_path):
    done = CliRunner().invoke(app, ["evaluate", str(file), "--only", "theirs"])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "models" / "chain" / "prm" / "evaluation.json").exists()
    dry = CliRunner().invoke(app, ["evaluate", str(file), "--dry-run"])
    assert "models: prm, theirs" in dry.output
    assert "generated solutions: 72" in dry.output
    for flags in (["--only", "other"], ["--only", "other", "--dry-run"]):
        refused = CliRunner().invoke(app, ["evaluate", str(file), *flags])
        assert isinstance(refused.exception, ConfigError)
        assert "this study has prm, theirs" in str(refused.exception)


def test_questions_it_learnt_from_are_not_asked(file):
    study = study_of(file)
    (own, theirs) = candidates(study)
    learnt = {s.question for s in generated_bench([ChainSettings(steps=2)], 6, 0)}
    trained = {prompt.question for prompt in load_prompts(study.data)[0]}  # a policy it started from may know them
    assert own.taken == learnt | trained
    assert theirs.taken == trained
    asked = {s.question for s in generated_bench([ChainSettings(steps=2)], 12, 0)}
    assert learnt < asked  # the set of the same seed would have held them all
    record, folder = evaluate_text_study(study, only=["prm"])["prm"]
    assert record["generated"]["solutions"] == 12
    assert folder == own.folder


def test_questions_it_was_trained_on_are_counted_and_said(file, tmp_path, capfd):
    """`questions.json` beside the model decides, not where the questions come from."""
    bench = generated_bench([ChainSettings(steps=2)], 8, 3)
    write_solutions(tmp_path / "bench.jsonl", bench)
    questions = list(dict.fromkeys(s.question for s in bench))
    hashes = [question_hash([{"role": "user", "content": f" {q} "}]) for q in questions[:3]]
    beside = tmp_path / "models" / "chain" / "prm" / "questions.json"
    beside.write_text(json.dumps({"train": [*hashes, "0" * 16], "held_out": []}))
    section = {"aggregation": "min", "reps": 100, "process_bench": [str(tmp_path / "bench.jsonl")]}
    study = study_of(file, evaluate={**section, "models": {"theirs": str(tmp_path / "theirs")}})
    results = evaluate_text_study(study)
    record, folder = results["prm"]
    assert record["seen_in_training"] == {"process_bench": {"seen": 3, "questions": len(questions)}}
    said = f"WARNING: process_bench: 3 of {len(questions)} questions are among those that the model was trained on"
    assert said in capfd.readouterr().err
    assert said in (folder / "evaluation.txt").read_text()
    assert "seen_in_training" not in results["theirs"][0]  # nobody knows
    beside.write_text(json.dumps({"train": ["0" * 16], "held_out": hashes}))
    record, folder = evaluate_text_study(study, only=["prm"])["prm"]
    assert record["seen_in_training"]["process_bench"]["seen"] == 0
    assert "WARNING" not in capfd.readouterr().err + (folder / "evaluation.txt").read_text()
    beside.write_text("[")
    with pytest.raises(DataError, match=r"questions\.json cannot be read"):
        candidates(study)


def test_without_an_evaluate_section_the_own_family_is_asked(file):
    study = study_of(file, evaluate=None)
    assert how(study).generated.families[0].steps == 2
    assert how(study).aggregation == "min"
    files = {"type": "files", "train_files": "x.jsonl"}
    with pytest.raises(ConfigError, match="does not say what its reward models are judged on"):
        how(study_of(file, evaluate=None, data=files))


def test_a_model_that_is_not_trained_is_one_clear_line(file, tmp_path):
    train = {"prm": {"type": "stepwise", "save_dir": str(tmp_path / "none"), "data_path": "x"}}
    with pytest.raises(CheckpointError, match="train it first: guerdon train STUDY --only prm"):
        candidates(study_of(file, train=train))
    with pytest.raises(ConfigError, match="no reward model to judge"):
        candidates(study_of(file, train={}, evaluate=None))


def test_the_labels_of_the_study_name_the_model_among_several(file, tmp_path):
    root = tmp_path / "models" / "chain" / "both"
    for name in ("method1_HE", "method1_SE"):
        write_model(root / name / "final_checkpoint")
    train = {"prm": {"type": "stepwise", "save_dir": str(root), "data_path": str(tmp_path / "learnt.jsonl")}}
    label = {"labeler": "exact", "reward": "SE"}
    (found, _) = candidates(study_of(file, train=train, label=label))
    assert found.folder == root / "method1_SE"
    with pytest.raises(CheckpointError, match="several"):
        candidates(study_of(file, train=train))


def test_the_policy_writes_the_samples_where_no_file_is_named(file, tmp_path):
    chosen = {"aggregation": "min", "reps": 100, "best_of_n": {"questions": 3, "n": 4, "aggregations": ["min"]}}
    data = {"task": FAMILY, "train_size": 8, "val_size": 5, "max_response_length": 6,
            "filter_accuracy": False, "filter_truncated": False}  # fmt: skip
    record, folder = evaluate_text_study(study_of(file, evaluate=chosen, data=data), only=["prm"])["prm"]
    assert record["best_of_n"]["n"] == [1, 2, 4]
    assert record["best_of_n"]["questions"] == 3
    assert 0 < record["samples"]["solutions"] <= 12  # a random policy: their first errors are known too
    assert (folder / "samples" / "completions.jsonl").is_file()
    with pytest.raises(ValidationError, match="questions would do nothing beside samples"):
        study_of(file, evaluate={"aggregation": "min", "best_of_n": {"samples": "x.jsonl", "questions": 3}})
