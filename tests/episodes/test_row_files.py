"""Solutions from everything that is read: files, folders of files, folders of `datasets`, and what these leave out."""

import json
from collections import Counter

import datasets
import huggingface_hub
import pytest

from guerdon.episodes.row_files import rows_by_split
from guerdon.episodes.solution_files import RECORDS, published_solutions, write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError

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
    assert set(rows_by_split(str(tmp_path / "saved"))) == ({"train", "test"} if splits else {"train"})


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
    with pytest.raises(DataError, match=r"phase2\.jsonl:1: label: steps must be a list of steps"):
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
    assert rows_by_split("nobody/SomeThing") == {"train": [{"question": "1+1?"}]}
    with pytest.raises(DataError, match=r"'nobody/other' cannot be read: .* cannot be reached: ConnectionError"):
        rows_by_split("nobody/other")
