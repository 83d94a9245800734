"""`evaluate_text` at its smallest, from files and generated problems, and `guerdon evaluate` of language studies."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import yaml
from text_models import Scripted, exact, noisy
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.episodes.solution_files import published_solutions, write_solutions
from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.evaluation.benchmarks.reward_bench import read_choices
from guerdon.evaluation.benchmarks.step_benchmarks import generated_bench, right_and_wrong
from guerdon.evaluation.suites.text_candidates import candidates
from guerdon.evaluation.suites.text_suite import (
    attacks_that_fooled,
    evaluate_text,
    evaluate_text_study,
    segmentation,
    text_settings,
)
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_heads import OutcomeModel, StepwiseModel
from guerdon.policies.language.text_files import load_policy
from guerdon.reading.data_sets import data_parts
from guerdon.settings.data import ChainSettings, SwapSettings
from guerdon.settings.evaluate import EvaluateTextSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.tasks.prompt_files import load_prompts
from guerdon.tasks.prompts import question_hash
from guerdon.types import Failure
from tables import refuses

FAMILIES = ({"family": "chain", "steps": 4}, {"family": "swap", "steps": 4})


def settings(**given):
    base = {"aggregation": "min", "reps": 100}
    return EvaluateTextSettings.model_validate({**base, **given})


ATTACKS = {"attacks": {"questions": 8}}
GENERATED = {"generated": {"families": FAMILIES, "size": 30}, **ATTACKS}


def test_a_generated_set_to_the_end(tmp_path):
    record = evaluate_text(noisy(0.2), settings(**GENERATED), tmp_path)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == json.loads(json.dumps(record))
    bench = record["generated"]["process_bench"]
    assert set(bench["subsets"]) == {"chain", "swap"}
    assert 0.3 < bench["average_f1"]["measured"]["estimate"] <= 1
    assert record["generated"]["steps"]["auroc"]["estimate"] > 0.8
    assert record["generated"]["segmentation"] == {"separator ';'": 60}
    assert set(record["pictures"]) == {"generated_first_error", "generated_steps", "generated_reliability"}
    assert all((tmp_path / name).read_text().startswith("<svg") for name in record["pictures"].values())
    text = (tmp_path / "evaluation.txt").read_text()
    assert "average f1" in text
    assert "attacks on 8 questions" in text
    assert record["attacks"]["threshold"] == 0.5


def test_the_exact_truth_is_perfect_and_withstands(tmp_path):
    assert attacks_that_fooled(tmp_path) is None
    record = evaluate_text(exact(), settings(**GENERATED), tmp_path)
    assert record["generated"]["process_bench"]["average_f1"]["measured"]["estimate"] == 1.0
    assert attacks_that_fooled(tmp_path) == []
    evaluate_text(Scripted(lambda e: np.ones(len(e.texts))), settings(**GENERATED), tmp_path)
    assert "empty" in attacks_that_fooled(tmp_path)
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        attacks_that_fooled(tmp_path)


def test_a_model_that_measures_nothing_is_reported(tmp_path):
    record = evaluate_text(Scripted(lambda e: Failure("late")), settings(**GENERATED), tmp_path)
    assert record["generated"]["failures"] == {"late": 60}
    assert record["generated"]["process_bench"]["average_f1"]["measured"]["estimate"] is None
    assert record["generated"]["process_bench"]["average_f1"]["failures_wrong"]["estimate"] == 0
    assert attacks_that_fooled(tmp_path) == []


def test_questions_that_were_trained_on_are_avoided(tmp_path):
    seen = []

    def say(episode):
        seen.append(episode.task)
        return np.ones(len(episode.texts))

    evaluate_text(Scripted(say), settings(**GENERATED), tmp_path)
    trained, seen[:] = set(seen), []
    evaluate_text(Scripted(say), settings(**GENERATED), tmp_path, exclude=trained)
    assert seen
    assert not trained & set(seen)


def test_published_files_are_subsets_by_their_names(tmp_path):
    for name, seed in (("gsm8k", 0), ("math", 1)):
        bench = generated_bench([ChainSettings(steps=4)], 20, seed)
        bare = [replace(s, id=f"{name}-{s.id}", meta={}) for s in bench]
        write_solutions(tmp_path / f"{name}.jsonl", bare, "process_bench")
    files = (str(tmp_path / "gsm8k.jsonl"), str(tmp_path / "math.jsonl"))
    assert {s.meta["subset"] for s in published_solutions(files, Counter())} == {"gsm8k", "math"}
    model = Scripted(lambda e: np.linspace(0.9, 0.3, len(e.texts)))
    record = evaluate_text(model, settings(process_bench=files, tune_on="gsm8k"), tmp_path / "out")
    assert record["process_bench"]["process_bench"]["threshold_source"] == "best F1 on gsm8k"
    assert len(record["process_bench"]["process_bench"]["subsets"]) == 2


def test_best_of_n_from_a_file(tmp_path):
    solutions = right_and_wrong([SwapSettings(steps=3)], 10, 0)
    write_solutions(tmp_path / "samples.jsonl", solutions)
    given = {"best_of_n": {"samples": str(tmp_path / "samples.jsonl"), "aggregations": ["min", "last"]}, **ATTACKS}
    record = evaluate_text(exact(), settings(**given), tmp_path / "out")
    found = record["best_of_n"]
    assert found["n"] == [1, 2]
    assert found["failures_wrong"]["bon_min"]["accuracy"][-1]["estimate"] == 1.0
    assert found["failures_wrong"]["majority"]["accuracy"][-1]["estimate"] == 0.5
    assert record["forecast"]["features"] == {"row_auroc": 1.0, "auroc": 1.0}
    # the samples say where their first errors are, so the model is asked about those too
    seen = {"samples_first_error", "samples_steps", "samples_reliability"}
    assert set(record["pictures"]) == {"n_bon", "n_weighted"} | seen
    assert record["samples"]["process_bench"]["average_f1"]["measured"]["estimate"] == 1.0
    assert record["attacks"]["questions"] == 8
    assert "minus majority" in (tmp_path / "out" / "evaluation.txt").read_text()


def test_pairs_and_prm_bench_from_files(tmp_path):
    rows = [{"prompt": "p", "chosen": "good", "rejected": "bad", "subset": "hep-go", "id": k} for k in range(4)]
    (tmp_path / "rb.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = {
        "idx": "c1", "question": "q", "modified_question": "q", "modified_process": ["a", "b"], "error_steps": [2],
        "classification": "circular",
    }  # fmt: skip
    (tmp_path / "prm.jsonl").write_text(json.dumps(row) + "\n")
    model = Scripted(lambda e: [0.1 if "b" in text else 0.9 for text in e.texts])
    given = settings(pairs=str(tmp_path / "rb.jsonl"), prm_bench=str(tmp_path / "prm.jsonl"))
    record = evaluate_text(model, given, tmp_path / "out")
    assert record["pairs"]["benchmark"] == "preferences, by the rules of RewardBench"
    assert record["pairs"]["sections"]["Reasoning"]["measured"]["estimate"] == 1
    assert record["prm_bench"]["measured"]["prm_score"]["estimate"] == 1
    assert "attacks" not in record
    four = [{**rows[0], "chosen": ["good"], "rejected": ["bad", "bad", "good"], "subset": "Math"}]
    (tmp_path / "rb2.json").write_text(json.dumps(four))
    second = evaluate_text(model, settings(pairs=str(tmp_path / "rb2.json")), tmp_path / "out2")
    assert second["pairs"]["benchmark"] == "preferences, by the rules of RewardBench 2"
    assert second["pairs"]["subsets"]["Math"]["measured"]["estimate"] == 0.5


def test_pairs_of_other_layouts_are_evaluated_and_what_is_left_out_is_shown(tmp_path):
    row = {"pair_id": "1", "source": "livebench-math", "question": "q", "response_A": "bad", "response_B": "good"}
    (tmp_path / "judge.jsonl").write_text(json.dumps({**row, "label": "B>A"}) + "\n")
    model = Scripted(lambda e: [0.1 if "bad" in text else 0.9 for text in e.texts])
    record = evaluate_text(model, settings(pairs=str(tmp_path / "judge.jsonl")), tmp_path / "out")
    assert record["pairs"]["benchmark"] == "JudgeBench"
    assert record["pairs"]["sections"]["livebench-math"]["measured"]["estimate"] == 1
    votes = [{"prompt": "q", "response_1": "good", "response_2": "bad", "winner": w} for w in ("model_a", "tie")]
    (tmp_path / "votes.json").write_text(json.dumps(votes))
    second = evaluate_text(model, settings(pairs=str(tmp_path / "votes.json")), tmp_path / "out2")
    assert second["pairs"]["left_out"] == {"tie": 1}
    assert "rows left out: 1 tie" in (tmp_path / "out2" / "evaluation.txt").read_text()
    (tmp_path / "none.json").write_text(json.dumps(votes[1:]))
    with pytest.raises(DataError, match="no comparison that can be used: 1 tie"):
        evaluate_text(model, settings(pairs=str(tmp_path / "none.json")), tmp_path / "out3")


def rows_by_part(data):
    return {part.name: [row for _, row in part.good_rows()] for part in data_parts(str(data))}


def test_files_that_cannot_be_read_are_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="no such file"):
        rows_by_part(str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no row"):
        read_choices(str(tmp_path / "empty.jsonl"))
    (tmp_path / "odd.json").write_text("3")
    with pytest.raises(DataError, match="holds rows, this holds int"):
        rows_by_part(str(tmp_path / "odd.json"))
    (tmp_path / "odd.parquet").write_text("3")
    with pytest.raises(DataError, match="cannot be read"):
        rows_by_part(str(tmp_path / "odd.parquet"))
    assert rows_by_part(str(write_rows(tmp_path / "split" / "a.jsonl").parent)) == {"a": [{"x": 1}]}


def write_rows(path):
    path.parent.mkdir()
    path.write_text('{"x": 1}\n')
    return path


def test_segmentation_is_said():
    bench = generated_bench([ChainSettings(steps=2)], 2, 0)
    assert segmentation(bench) == {"separator ';'": 2}


def test_a_bad_combination_is_refused():
    with pytest.raises(ValueError, match="name what to evaluate on"):
        EvaluateTextSettings(aggregation="min")
    for given, key, words in (
        ({**GENERATED, "threshold": 0.5, "tune_on": "chain"}, "threshold", "with tune_on, which chooses it"),
        ({"prm_bench": "x", "threshold": 0.4}, "threshold", "without generated or process_bench"),
        ({**GENERATED, "ties": "half"}, "ties", ""),
        ({"best_of_n": {"samples": "x", "ns": [0]}}, "ns", "at least 1"),
        ({"best_of_n": {"ns": [4, 17]}}, "ns", "ns asks for 17 samples of a question, and n is 16"),
    ):
        with refuses(key) as refused:
            EvaluateTextSettings.model_validate({"aggregation": "min", **given})
        assert words in str(refused.value)
    with refuses("aggregation"):
        EvaluateTextSettings.model_validate(GENERATED)


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
    """A study file with a trained judge, the solutions it learned from, and a judge of somebody else's."""
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
    assert own.exclude == learnt | trained
    assert theirs.exclude == trained
    asked = {s.question for s in generated_bench([ChainSettings(steps=2)], 12, 0)}
    assert learnt < asked  # the set of the same seed would have held them all
    record, folder = evaluate_text_study(study, only=["prm"])["prm"]
    assert next(iter(record)) == "forecast"
    assert (folder / "evaluation.txt").read_text().startswith("forecast: ")
    features = record["forecast"]["features"]
    sections = {"row_auroc": "steps", "auroc": "answers"}
    assert features == {n: record["generated"][part]["auroc"]["estimate"] for n, part in sections.items()}
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
    settings = text_settings(study.text_evaluate, study.data)
    assert settings.generated.families[0].steps == 2
    assert settings.aggregation == "min"
    files = {"type": "files", "train_files": "x.jsonl"}
    with pytest.raises(ConfigError, match="there is nothing to evaluate the reward models on") as refused:
        text_settings(None, study_of(file, evaluate=None, data=files).data)
    assert refused.value.key == "evaluate"


def test_a_model_that_is_not_trained_is_one_clear_line(file, tmp_path):
    train = {"prm": {"type": "stepwise", "save_dir": str(tmp_path / "none"), "data_path": "x"}}
    with pytest.raises(CheckpointError, match="train it first: guerdon train STUDY --only prm"):
        candidates(study_of(file, train=train))
    with refuses("evaluate.models"):
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
    with refuses("questions"):
        study_of(file, evaluate={"aggregation": "min", "best_of_n": {"samples": "x.jsonl", "questions": 3}})


@pytest.mark.parametrize("section", [
    {"pairs": "absent.jsonl"}, {"prm_bench": "absent.jsonl"}, {"process_bench": ["here.jsonl", "absent.jsonl"]},
    {"best_of_n": {"samples": "absent.jsonl"}}, {"gate": {"table": "absent.json"}}, {"tune_on": "absent"},
])  # fmt: skip
def test_what_is_read_after_scoring_is_looked_at_before(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = generated_bench((ChainSettings(steps=4),), 4, 0, 0.5)
    write_solutions(tmp_path / "here.jsonl", [replace(s, meta={}) for s in written], "process_bench")
    scored = []
    model = Scripted(lambda episode: scored.append(episode) or np.ones(len(episode.texts)))
    given = settings(**{"process_bench": ["here.jsonl"], "attacks": None, **section})
    with pytest.raises(DataError, match="absent"):
        evaluate_text(model, given, tmp_path / "out")
    given = settings(attacks=None, best_of_n={"samples": "here.jsonl", "ns": [1, 64]}, process_bench=["here.jsonl"])
    with pytest.raises(
        DataError, match="best-of-64 needs 64 samples of a question; the largest number is 1"
    ) as refused:
        evaluate_text(model, given, tmp_path / "out")
    assert refused.value.field == "ns"
    assert not scored
