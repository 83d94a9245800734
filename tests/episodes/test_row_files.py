"""Solutions from everything that is read: files, folders of files, folders of `datasets`, and what these leave out."""

import json
from collections import Counter

import datasets
import huggingface_hub
import pytest

from guerdon.episodes.preferences import read_preferences
from guerdon.episodes.solution_files import published_solutions, write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.processes.progress import log_once
from guerdon.reading.containers import good_rows
from guerdon.reading.data_sets import RECORDS, data_parts
from guerdon.reading.fields import RowFields
from tables import refuses

SOLUTIONS = tuple(
    Solution(f"s{i}", f"{i}+1=?", (f"{i}+1={i + 1}\n", "so it is"), (1.0, float(i % 2)), separator="\n")
    for i in range(6)
)  # fmt: skip


def prm800k(finish, *steps):
    return {"question": {"problem": f"q {finish}"}, "label": {"finish_reason": finish, "steps": [
        {"completions": [{"text": text, "rating": rating}], "human_completion": human,
         "chosen_completion": None if human or rating == -1 else 0} for text, rating, human in steps]}}  # fmt: skip


@pytest.fixture
def rows(tmp_path):
    """Rows of TRL's form."""
    path = write_solutions(tmp_path / "rows.jsonl", SOLUTIONS, "trl").path
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(path):
    left_out = Counter()
    return [(s.question, s.steps, s.labels) for s in published_solutions([str(path)], left_out)], left_out


WANTED = [(s.question, s.steps, s.labels) for s in SOLUTIONS]


def test_a_folder_of_parquet_with_and_without_folders_in_it(tmp_path):
    write_solutions(tmp_path / "flat" / "a.parquet", SOLUTIONS[:3], "trl")
    write_solutions(tmp_path / "flat" / "b.parquet", SOLUTIONS[3:], "trl")
    write_solutions(tmp_path / "flat" / ".b.parquet", SOLUTIONS[3:], "trl")  # hidden files are none of the data
    assert read(tmp_path / "flat") == (WANTED, {})
    write_solutions(tmp_path / "deep" / "data" / "train-00000-of-00001.parquet", SOLUTIONS, "trl")
    assert read(tmp_path / "deep") == (WANTED, {})


@pytest.mark.parametrize("splits", [False, True])
def test_a_folder_that_datasets_saved(tmp_path, rows, splits):
    whole = datasets.Dataset.from_list(rows)
    saved = datasets.DatasetDict({"train": whole.select(range(4)), "test": whole.select(range(4, 6))})
    (saved if splits else whole).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved") == (WANTED, {})
    assert {one.split for one in data_parts(str(tmp_path / "saved"))} == ({"train", "test"} if splits else {"train"})


@pytest.fixture
def saved(tmp_path):
    """Three splits of pairs as `datasets` saves them."""
    pairs = [{"prompt": f"p{k}", "chosen": "good", "rejected": "bad"} for k in range(9)]
    whole, parts = datasets.Dataset.from_list(pairs), {"train": range(4), "test": range(4, 6), "extra": range(6, 9)}
    datasets.DatasetDict({name: whole.select(one) for name, one in parts.items()}).save_to_disk(str(tmp_path / "pairs"))
    return str(tmp_path / "pairs")


def asked(found):
    return [one.prompt for one in found.comparisons]


def test_of_several_splits_train_is_trained_on_and_the_others_are_named(saved, capfd):
    log_once.cache_clear()
    assert asked(read_preferences(saved)) == [f"p{k}" for k in range(9)]
    assert capfd.readouterr().err == ""
    for _ in range(2):
        assert asked(read_preferences(saved, train=True)) == ["p0", "p1", "p2", "p3"]
    said = f"{saved}: its split train is used, and not test, extra; {saved}:SPLIT names another one\n"
    assert capfd.readouterr().err == said


def test_a_split_is_named_behind_the_data_set(saved, tmp_path, capfd):
    for train in (False, True):
        assert asked(read_preferences(f"{saved}:extra", train=train)) == ["p6", "p7", "p8"]
    assert capfd.readouterr().err == ""
    for name in (f"{saved}:tests", f"{saved}:"):
        with pytest.raises(DataError, match=r"pairs has no split '(tests)?', only train, test, extra"):
            read_preferences(name)
    (tmp_path / "a:b.jsonl").write_text('{"prompt": "p", "chosen": "x", "rejected": "y"}\n')
    assert asked(read_preferences(str(tmp_path / "a:b.jsonl"))) == ["p"]  # a file of that name
    with pytest.raises(DataError, match="there is no such file"):
        read_preferences(str(tmp_path / "none:train"))


def test_splits_of_other_names_are_all_trained_on(tmp_path, rows):
    whole = datasets.Dataset.from_list(rows)
    parts = datasets.DatasetDict({"gsm8k": whole.select(range(4)), "math": whole.select(range(4, 6))})
    parts.save_to_disk(str(tmp_path / "bench"))
    assert len(published_solutions([str(tmp_path / "bench")], Counter(), train=True)) == len(WANTED)
    datasets.DatasetDict({"train": whole.select(range(4)), "test": whole.select(range(4, 6))}).save_to_disk(
        str(tmp_path / "two")
    )
    assert len(published_solutions([str(tmp_path / "two")], Counter(), train=True)) == 4


def test_of_a_folder_that_guerdon_label_wrote_the_records_are_read(tmp_path):
    write_solutions(tmp_path / RECORDS, SOLUTIONS)
    write_solutions(tmp_path / "trl.jsonl", SOLUTIONS, "trl")
    (tmp_path / "card.json").write_text("{}")
    assert published_solutions([str(tmp_path)], Counter()) == list(SOLUTIONS)


def test_rows_of_prm800k_without_a_rated_step_are_counted_and_human_completions_are_right(tmp_path):
    given = [
        prm800k("bad_problem"),
        prm800k("found_error", ("fine", 1, None), ("off", -1, {"text": "by hand", "rating": None, "source": "human"}),
                ("wrong", -1, None)),
        prm800k("bad_problem"),
        prm800k("give_up"),
        {"question": {"problem": "x"}, "label": {"finish_reason": "give_up", "steps": [
            {"completions": [], "human_completion": None, "chosen_completion": None}]}},
    ]  # fmt: skip
    path = tmp_path / "phase2.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    found, left_out = read(path)
    assert found == [("q found_error", ("fine\n", "by hand\n", "wrong"), (1.0, 1.0, 0.0))]
    assert left_out == {"bad_problem": 2, "give_up": 1, "no_completion": 1}
    path.write_text(json.dumps(given[0]))
    with pytest.raises(DataError, match=r"phase2\.jsonl: there is no solution in it; left out: 1 bad_problem"):
        read(path)
    path.write_text(json.dumps({**given[1], "label": {"steps": 3}}))
    with refuses("steps", r"phase2\.jsonl:1: label: steps must be a list of steps"):
        read(path)


@pytest.mark.parametrize("name", ["/nowhere/at all", "runs/labels/prm_dataset_method1_HE", "none.jsonl"])
def test_what_is_no_hub_id_is_not_looked_for_there(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(DataError, match="there is no such file"):
        published_solutions([name], Counter())
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match="data/prm_dataset_method1_HE: there is no such file or folder; make it first"):
        published_solutions(["data/prm_dataset_method1_HE"], Counter())


def test_a_data_set_in_the_cache_of_datasets_is_read_without_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1?"}\n')
    datasets.load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), cache_dir=str(tmp_path))
    (tmp_path / "nobody___some_thing").mkdir()  # as if it came from the hub
    next(tmp_path.glob("json/default-*")).rename(tmp_path / "nobody___some_thing" / "default")
    for file in tmp_path.glob("nobody___some_thing/*/*/*/json-*"):
        file.rename(file.with_name(file.name.replace("json-", "some_thing-")))

    def no_network(*_args, **_options):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "repo_exists", no_network)
    assert rows_by_part("nobody/SomeThing") == {"train": [{"question": "1+1?"}]}
    with pytest.raises(DataError, match=r"'nobody/other' cannot be read: .* cannot be reached: ConnectionError"):
        rows_by_part("nobody/other")


def rows_by_part(data):
    return {part.name: [row for _, row in part.good_rows()] for part in data_parts(str(data))}


def read_fields(file):
    for where, row in good_rows(file):
        fields = RowFields(row, where)
        fields.texts("steps")
        fields.meta()
        fields.messages("conversation")


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("{}", "steps", "no steps; found "),
        ('{"steps": "a"}', "steps", "steps must be a list of texts, this is 'a'"),
        ('{"steps": [1]}', "steps", "steps must hold texts only, this is [1]"),
        ('{"steps": ["a"], "meta": "{"}', "meta", "meta is not JSON: "),
        ('{"steps": ["a"], "conversation": [1]}', "conversation", "conversation: "),
        ("[1]", None, "a row must be a map of keys, this is list"),
        ("{", None, "not JSON: "),
    ],
)
def test_an_error_of_a_row_has_its_place_and_its_column(tmp_path, line, field, words):
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{line}\n")
    with pytest.raises(DataError) as refused:
        read_fields(file)
    assert (refused.value.where, refused.value.field) == (f"{file}:2", field)
    assert str(refused.value).startswith(f"{file}:2: {words}")
