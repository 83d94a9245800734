"""All of `evaluate_text` at its smallest, from files and from generated problems, to a folder."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from text_models import Scripted, exact, noisy

from guerdon.episodes.row_files import rows_by_split
from guerdon.episodes.solution_files import published_solutions, write_solutions
from guerdon.errors import DataError
from guerdon.evaluate.generated_bench import generated_bench, right_and_wrong
from guerdon.evaluate.run_text import attacks_that_fooled, evaluate_text, segmentation
from guerdon.settings.data import ChainSettings, SwapSettings
from guerdon.settings.evaluate_text import EvaluateTextSettings
from guerdon.types import Failure

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
    evaluate_text(Scripted(say), settings(**GENERATED), tmp_path, taken=trained)
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
    assert record["pairs"]["benchmark"] == "RewardBench"
    assert record["pairs"]["sections"]["Reasoning"]["measured"]["estimate"] == 1
    assert record["prm_bench"]["measured"]["prm_score"]["estimate"] == 1
    assert "attacks" not in record
    four = [{**rows[0], "chosen": ["good"], "rejected": ["bad", "bad", "good"], "subset": "Math"}]
    (tmp_path / "rb2.json").write_text(json.dumps(four))
    second = evaluate_text(model, settings(pairs=str(tmp_path / "rb2.json")), tmp_path / "out2")
    assert second["pairs"]["benchmark"] == "RewardBench 2"
    assert second["pairs"]["subsets"]["Math"]["measured"]["estimate"] == 0.5


def test_files_that_cannot_be_read_are_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="no such file"):
        rows_by_split(str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no row"):
        rows_by_split(str(tmp_path / "empty.jsonl"))
    (tmp_path / "odd.json").write_text("3")
    with pytest.raises(DataError, match="list of rows"):
        rows_by_split(str(tmp_path / "odd.json"))
    (tmp_path / "odd.parquet").write_text("3")
    with pytest.raises(DataError, match="cannot be read"):
        rows_by_split(str(tmp_path / "odd.parquet"))
    assert rows_by_split(str(write_rows(tmp_path / "split" / "a.jsonl").parent)) == {"a": [{"x": 1}]}


def write_rows(path):
    path.parent.mkdir()
    path.write_text('{"x": 1}\n')
    return path


def test_segmentation_is_said():
    bench = generated_bench([ChainSettings(steps=2)], 2, 0)
    assert segmentation(bench) == {"separator ';'": 2}


def test_a_bad_combination_is_refused():
    for given, words in (
        ({}, "name what to judge on"),
        ({**GENERATED, "threshold": 0.5, "tune_on": "chain"}, "remove one"),
        ({"prm_bench": "x", "threshold": 0.4}, "threshold would do nothing"),
        ({**GENERATED, "ties": "half"}, "ties would do nothing"),
        ({"best_of_n": {"samples": "x", "ns": [0]}}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            EvaluateTextSettings.model_validate({"aggregation": "min", **given})
    with pytest.raises(ValueError, match="aggregation"):
        EvaluateTextSettings.model_validate(GENERATED)
