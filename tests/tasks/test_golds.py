"""Rows whose true answer is missing or unreadable: skipped and counted; above 5 % the unreadable ones are refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from guerdon.errors import DataError
from guerdon.settings.data import FilesDataSettings, GSM8KDataSettings
from guerdon.tasks import prompt_files
from guerdon.tasks.prompt_files import load_prompts, read_gsm8k, read_prompts
from guerdon.tasks.prompts import UnreadableGoldError
from guerdon.tasks.verifier import Verifier, VerifierResult
from memory_rows import prompt_from_row
from tables import refuses

NULL = [None, "", " \n", float("nan"), "NaN", "null"]
MISSING = [*NULL, float("inf"), float("-inf"), "####", "\\boxed{}", "so #### "]
BROKEN = ["\\frac{1", "((3", "!!", "\\sqrt{2}{"]  # math-verify reads none of them


def write(path, golds_of_rows, **more):
    rows = [{"question": f"Question {k}?", "answer": gold, **more} for k, gold in enumerate(golds_of_rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path, **settings):
    return load_prompts(FilesDataSettings(train_files=(str(path),), val_size=0, **settings))[0]


@pytest.mark.parametrize("gold", MISSING)
def test_a_missing_gold_is_skipped_and_counted_in_one_line(tmp_path, capsys, gold):
    path = write(tmp_path / "train.jsonl", [*range(19), gold])  # 1 of 20: 5 %
    assert [p.ground_truth for p in load(path)] == list(map(str, range(19)))
    line, *read_as = capsys.readouterr().err.splitlines()
    assert read_as[0] == f"{path}: question is the prompt (for example 'Question 0?')"
    assert read_as[-1] == f"{path}: 20 rows read, 19 used, 1 left out (1 no_true_answer)"
    assert "train.jsonl: skipped 1 of 20 rows whose true answer cannot be read (rows 20); the first: " in line
    load(path)
    assert capsys.readouterr().err == ""  # said once
    write(path, [*range(18), gold])
    if gold in NULL or gold != gold:  # nothing is there, and nothing is lost
        assert len(load(path)) == 18
    else:
        with pytest.raises(DataError, match="; 1 of 19 rows have no true answer") as refused:
            load(path)
        assert (refused.value.where, refused.value.field) == (f"{path}:19", "answer")
    with pytest.raises(UnreadableGoldError) as refused:
        prompt_from_row({"question": "q", "answer": gold}, "f:1", "s")
    assert refused.value.field == ("reference" if gold in NULL or gold != gold else "answer")


@pytest.mark.parametrize("gold", ["None", "0", 0, 0.5, "no solution", "\\infty", "nano", "-1", "\\emptyset"])
def test_golds_that_only_look_missing_are_kept(tmp_path, gold):
    (prompt,) = load(write(tmp_path / "train.jsonl", [gold]))
    assert prompt.ground_truth == str(gold)


def test_an_empty_gold_leaves_the_next_column_and_the_solution_to_answer():
    nan = float("nan")
    row = {"question": "q", "ground_truth": nan, "answer": "", "target": "7", "ability": nan, "data_source": nan}
    prompt = prompt_from_row({**row, "extra_info": nan}, "f:1", "mine")
    assert (prompt.ground_truth, prompt.data_source, prompt.ability) == ("7", "mine", "")
    assert (
        prompt_from_row({"question": "q", "answer": nan, "solution": "So \\boxed{8}."}, "f:1", "s").ground_truth == "8"
    )
    with pytest.raises(DataError, match="f:1: no question") as refused:
        prompt_from_row({"question": nan, "answer": "1"}, "f:1", "s")
    assert refused.value.field == "prompt"


def test_parquet_with_gaps_and_chat_prompts_of_verl(tmp_path, capsys):
    rows = [
        {"prompt": [{"role": "user", "content": f"q{k}"}], "reward_model": {"ground_truth": gold, "style": "rule"}}
        for k, gold in enumerate([None, *map(str, range(30))])
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert len(load(tmp_path / "p.parquet")) == 30
    assert "skipped 1 of 31 rows" in capsys.readouterr().err
    pq.write_table(pa.table({"question": ["a", "b"], "answer": [1.5, float("nan")]}), tmp_path / "gap.parquet")
    assert [one.ground_truth for one in load(tmp_path / "gap.parquet")] == ["1.5"]
    assert "skipped 1 of 2 rows" in capsys.readouterr().err


def test_a_file_without_any_true_answer_is_refused_with_what_is_expected(tmp_path):
    with pytest.raises(
        DataError, match=r"bad\.jsonl:1: no true answer; expected .* no row has a true answer"
    ) as refused:
        load(write(tmp_path / "bad.jsonl", [None, None]))
    assert refused.value.field == "reference"


def test_a_file_is_refused_by_its_own_share_not_by_that_of_all_files(tmp_path):
    good, bad = write(tmp_path / "good.jsonl", range(100)), write(tmp_path / "bad.jsonl", ["####", 1, 2])
    with refuses("answer") as refused:
        load_prompts(FilesDataSettings(train_files=(str(good),), val_files=(str(bad),)))
    assert refused.value.where == f"{bad}:1"


def test_mathematics_that_the_verifier_cannot_read_is_skipped(tmp_path, capsys):
    readable = [f"{k}\\sqrt{{2}}" for k in range(2, 40)] + ["Paris", "B", "(2, 5]", "3:4", "x+1", "90\\degree"]
    path = write(tmp_path / "math.jsonl", [*readable[:10], "\\frac{1", *readable[10:], "((3"])
    assert [p.ground_truth for p in load(path)] == readable
    assert "skipped 2 of 46 rows whose true answer cannot be read (rows 11, 46); the first: " in capsys.readouterr().err
    with pytest.raises(DataError, match=r"math\.jsonl:1: the true answer '.*frac\{1' cannot be read \(math\); 4 of 48"):
        load(write(path, [*BROKEN, *readable]))
    assert len(read_prompts(path)) == 48  # no verifier is named


def test_numbers_for_the_numeric_verifier_and_gsm8k(tmp_path, capsys):
    path = write(tmp_path / "n.jsonl", [*range(40), "1/2", "five"])
    assert len(load(path, verifier="numeric")) == 41
    assert "the true answer 'five' cannot be read (numeric)" in capsys.readouterr().err
    assert len(load(path, verifier="exact")) == 42
    write(tmp_path / "train.jsonl", [*(f"So #### {k}" for k in range(40)), None, "#### many"])
    train, _ = load_prompts(GSM8KDataSettings(path=str(tmp_path), val_size=0))
    assert [p.ground_truth for p in train] == list(map(str, range(40)))
    assert len(read_gsm8k(tmp_path)) == 41  # no verifier is named
    with pytest.raises(DataError, match=r"n\.jsonl:1: the true answer 'B' cannot be read \(numeric\)"):
        load(write(path, "BABCD"), verifier="numeric")


def test_programs_whose_tests_cannot_be_read_are_skipped(tmp_path, capsys):
    tests = [json.dumps({"inputs": [str(k)], "outputs": [str(k)]}) for k in range(30)]
    path = write(tmp_path / "code.jsonl", [*tests, "nothing to run"], ability="code")
    assert len(load(path)) == 30
    assert "code.jsonl:31: it is a programming task, but its tests cannot be read" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"code\.jsonl:2: it is a programming task, .*1 of 2 rows"):
        load(write(path, [tests[0], "nothing to run"], ability="code"))


def test_of_many_symbolic_golds_some_are_parsed_once_and_stand_for_the_rest(tmp_path, monkeypatch):
    tried = []
    check_batch = Verifier.check_batch

    def counted(self, responses, prompts):
        tried.extend(prompt.ground_truth for prompt in prompts)
        return check_batch(self, responses, prompts)

    monkeypatch.setattr(Verifier, "check_batch", counted)
    monkeypatch.setattr(prompt_files, "MOST_PARSED", 20)
    answers = [f"\\sqrt{{{k}}}+1" for k in range(1000, 1200)]
    path = write(tmp_path / "many.jsonl", [*answers, *answers[:50], *range(1000)])
    assert len(load(path)) == 1250
    assert tried == answers[::10]
    load(path)
    assert len(tried) == 20  # once per content
    # half of those that were tried cannot be read: of the whole about 100 / 300
    broken = [f"\\frac{{{k}" if k % 20 < 10 else f"\\sqrt{{{k}}}-1" for k in range(1000, 1200)]
    with pytest.raises(DataError, match=r"cannot be read \(math\); 10 of 300 rows"):
        load(write(path, [*broken, *range(100)]))
    assert len(load(write(path, [*broken, *range(9000)]))) == 9190  # about 1 %; the 10 that were tried are skipped


@pytest.mark.hostile("verdicts")
def test_a_parser_that_does_not_end_is_no_unreadable_gold_and_is_not_waited_for_again_and_again(monkeypatch):
    tried = []

    def slow(self, responses, prompts):
        tried.extend(prompts)
        return [VerifierResult("timeout") for _ in prompts]

    monkeypatch.setattr(Verifier, "check_batch", slow)
    many = tuple(f"\\sqrt{{{k}}}" for k in range(100))
    assert prompt_files._unparsable(many, 1.0, 1, 0.0) == ()
    assert len(tried) == 8


def test_a_verifier_of_ones_own_is_not_asked(tmp_path):
    path = write(tmp_path / "own.jsonl", BROKEN)
    found = prompt_files.unreadable_golds(
        read_prompts(path), FilesDataSettings(train_files=(str(path),), verifier="tests.tasks.test_golds:never")
    )
    assert found == ({}, 0.0)


def never():
    """A factory that must not be called."""
    raise AssertionError
