"""A model that is evaluated on its own training file has seen it, whatever kind of model it is."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from guerdon.episodes.solution_files import write_solutions
from guerdon.errors import DataError
from guerdon.evaluation.suites.text_suite import evaluate_text_study
from guerdon.settings.study import Study
from guerdon.tasks.prompts import conversation_hash
from guerdon.tasks.trained_questions import trained_questions, write_questions
from guerdon.train.text import train_text_model

sys.path.append(str(Path(__file__).parents[1] / "train"))

from text_lessons import TINY, sums

from tables import sample

torch.set_num_threads(1)
LETTERS = {name: value for name, value in TINY.items() if name != "alphabet"}
KINDS = {
    "stepwise": {},
    "verdict": {"tiny": LETTERS},
    "outcome": {},
    "outcome in pairs": {"loss": "bradley_terry"},
    "implicit": {},
    "implicit in pairs": {"loss": "dpo"},
}
TURNS = [{"role": "system", "content": "Be Brief"}, {"role": "user", "content": "Hi"},
         {"role": "assistant", "content": "hello"}]  # fmt: skip


def study_for(path, kind, **more):
    usual = {"max_steps": 1, "batch_size": 8, "val_split": 0, "bf16": False, "tiny": TINY,
             "save_dir": str(path.parent / "rm"), "data_path": str(path)}  # fmt: skip
    section = {"type": kind.split()[0], **usual, **more}
    evaluate = {"aggregation": "min", "reps": 100, "attacks": None}
    return Study.model_validate(
        {"policy": {"type": "text", "tiny": TINY}, "train": {"rm": section}, "evaluate": {**evaluate, "pairs": "none"}}
    )


def seen(study, **sets):
    """Questions of a set that count as seen, and all of them."""
    section = {"aggregation": "min", "reps": 100, "models": {"same": study.train["rm"].save_dir}, **sets}
    found = evaluate_text_study(Study.model_validate({"policy": {"type": "text", "tiny": TINY}, "evaluate": section}))
    ((record, _),) = found.values()
    (counts,) = record["seen_in_training"].values()
    return counts["seen"], counts["questions"]


@pytest.mark.parametrize("kind", sample(KINDS, "outcome in pairs"))
def test_solutions_that_were_trained_on_are_seen(tmp_path, kind):
    known, new = sums(12), [replace(one, question=f"9+{one.question}") for one in sums(8)]
    path = tmp_path / "train.jsonl"
    write_solutions(path, known)
    study = study_for(path, kind, **KINDS[kind])
    train_text_model(study.train["rm"], study)
    for name, solutions, expected in (
        ("half", [*known[:12], *new[:12]], (6, 12)), ("new", new, (0, 8)), ("train", known, (12, 12)),
    ):  # fmt: skip
        write_solutions(tmp_path / f"{name}.jsonl", solutions)
        assert seen(study, process_bench=[str(tmp_path / f"{name}.jsonl")]) == expected, name


def in_messages(text, k):
    return [*TURNS, {"role": "user", "content": text}] if k % 2 else text


FORMS = {
    "pairs": lambda text, k: {"prompt": in_messages(text, k), "chosen": "1;", "rejected": "2;"},
    "lists": lambda text, k: {"prompt": in_messages(text, k), "responses": ["1;", "2;", "3;"], "ranks": [0, 2, 1]},
    "labels": lambda text, k: {"prompt": in_messages(text, k), "response": f"{k};", "label": bool(k % 3)},
    "ratings": lambda text, k: {"prompt": in_messages(text, k), "response": f"{k};", "helpfulness": k % 5},
}


@pytest.mark.parametrize("form", sample(FORMS, "lists"))
def test_preferences_that_were_trained_on_are_seen(tmp_path, form):
    """Also where a prompt is a conversation; pairs and labels of the same prompts have the same names."""

    def written(name, rows):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    texts = [f"What is {k}+{k * k}?" for k in range(16)]
    rows = {name: [FORMS[name](text, k) for k, text in enumerate(texts)] for name in FORMS}
    more = {"ratings": {"attributes": {"helpfulness": 1}}, "lists": {"ranking": "list"}}.get(form, {})
    study = study_for(written("train", rows[form][:8]), "preference", tiny=LETTERS, **more)
    train_text_model(study.train["rm"], study)
    for other in ("pairs", "labels"):
        key = "pairs" if other == "pairs" else "labels"
        for name, part, expected in (("own", slice(8), 8), ("half", slice(4, 12), 4), ("new", slice(8, 16), 0)):
            path = written(f"{other}-{name}", rows[other][part])
            assert seen(study, **{key: str(path)}) == (expected, 8), (other, name)


def test_lists_of_older_models_are_read(tmp_path):
    """Those of solutions had names; those of preferences what was asked, as text."""
    chat = (*TURNS, {"role": "user", "content": "2+2?"})
    asked = json.dumps(["2+2?", list(chat), []], sort_keys=True)
    names = [conversation_hash("1+1?"), conversation_hash("2+2?", chat), conversation_hash("3+3?")]
    (tmp_path / "questions.json").write_text(json.dumps({"train": [names[0], asked, " 3+3? \ud800"], "held_out": []}))
    found = trained_questions(tmp_path)
    assert set(names[:2]) <= found
    assert names[2] not in found
    assert conversation_hash("3+3? \ud800") in found
    write_questions(tmp_path, train=[names[1], names[0], names[1]], held_out=[names[2]])
    assert trained_questions(tmp_path) == set(names[:2])
    written = json.loads((tmp_path / "questions.json").read_text())
    assert written == {"key": "conversation_hash", "train": sorted(names[:2]), "held_out": [names[2]]}


def test_a_list_by_another_key_is_refused(tmp_path):
    (tmp_path / "questions.json").write_text('{"key": "sketch", "train": ["x"]}')
    with pytest.raises(DataError, match=r"questions\.json names questions by 'sketch'"):
        trained_questions(tmp_path)
    for broken in ("[]", '{"held_out": []}', '{"train": 3}'):
        (tmp_path / "questions.json").write_text(broken)
        with pytest.raises(DataError, match="cannot be read; train the model again"):
            trained_questions(tmp_path)
