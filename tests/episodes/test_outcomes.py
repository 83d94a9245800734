"""Outcomes of recordings that do not say them, from a file with the columns episode and success."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.episodes.outcomes import read_outcomes
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.types import Episode
from tables import cases, refuses

COUNT = 6


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Episodes without outcomes; the last rows of every other one are bright."""
    folder = tmp_path_factory.mktemp("recordings") / "data"
    with EpisodeWriter(folder, fps=10, camera="top") as writer:
        for number in range(COUNT):
            frames = np.zeros((5, 16, 16, 3), np.uint8)
            frames[:] = np.arange(5).reshape(5, 1, 1, 1) * (50 if number % 2 == 0 else 5)
            writer.add(Episode(id=str(number), task="light", frames=frames, actions=np.zeros((5, 1), np.float32)))
    return folder


def written(folder, rows, name="outcomes.csv"):
    lines = ["episode,success", *(f"{episode},{success}" for episode, success in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def alternating(*words):
    """Rows for all episodes, of which every other one succeeded."""
    return [(number, words[number % 2]) for number in range(COUNT)]


@cases("words", [("yes", "no"), ("1", "0"), ("true", "false"), ("Success", "failure")])
def test_words_are_read_as_the_reader_reads_them(words, recordings, tmp_path):
    outcomes = read_outcomes(written(tmp_path, alternating(*words)))
    found = list(read_episodes(recordings, outcomes=outcomes))
    assert [episode.outcome for episode in found] == [True, False] * 3
    assert all(episode.success is None for episode in found)
    assert [e.id for e in read_episodes(recordings, outcomes=outcomes, only_success=True)] == ["0", "2", "4"]


def test_the_end_of_a_success_is_marked_where_that_is_asked_for(recordings, tmp_path):
    path = written(tmp_path, alternating("yes", "no"))
    marked = list(read_episodes(recordings, outcomes=read_outcomes(path, at_end=True)))
    assert [episode.success.tolist() for episode in marked[:2]] == [[False] * 4 + [True], [False] * 5]
    hashes = [dataset_hash(recordings)]
    hashes += [dataset_hash(recordings, read_outcomes(path, at_end=end)) for end in (False, True)]
    assert len(set(hashes)) == 3


@cases(
    ("rows", "field", "said"),
    [
        (alternating("yes", "no")[:-2], "success", "the success of episode 4, 5 of .* is missing"),
        ([*alternating("yes", "no"), (9, "yes"), (12, "no")], "episode", "has no episode 9, 12"),
        ([*alternating("yes", "no"), (3, "yes")], "episode", "episode 3 is there twice"),
        ([*alternating("yes", "no")[:-1], (5, "")], "success", "the success of episode 5 is empty"),
        (
            [*alternating("yes", "no")[:-1], (5, "perhaps")],
            "success",
            "the success of episode 5 is empty or not true/false",
        ),
        ([*alternating("yes", "no"), ("", "yes")], "episode", "names no episode"),
        (alternating("2", "1"), "success", "which may mean 2/1 or 1/2"),
        (alternating("red", "blue"), "success", "write true and false"),
    ],
)
def test_what_is_missing_doubled_or_unknown_is_refused_by_number(rows, field, said, recordings, tmp_path):
    with refuses(field, said):
        list(read_episodes(recordings, outcomes=read_outcomes(written(tmp_path, rows))))


def test_a_file_that_contradicts_the_data_is_refused(recordings, tmp_path):
    known = tmp_path / "known"
    with EpisodeWriter(known, fps=10, camera="top") as writer:
        for episode in read_episodes(recordings, outcomes=read_outcomes(written(tmp_path, alternating("1", "0")))):
            writer.add(episode)
    assert len(list(read_episodes(known, outcomes=read_outcomes(written(tmp_path, alternating("1", "0")))))) == COUNT
    with refuses("success", "itself says otherwise of episode 0, 1, 2, 3, 4, 5"):
        list(read_episodes(known, outcomes=read_outcomes(written(tmp_path, alternating("0", "1")))))
    (tmp_path / "other.csv").write_text("number,done\n1,yes\n")
    with refuses("episode", "lacks the column episode and success; it has number, done"):
        read_outcomes(str(tmp_path / "other.csv"))


def test_rows_that_are_marked_agree_with_the_file(recordings, tmp_path):
    """Marks of rows whose outcome the index of the data set does not repeat."""
    marked = tmp_path / "marked"
    at_end = read_outcomes(written(tmp_path, alternating("1", "0")), at_end=True)
    with EpisodeWriter(marked, fps=10, camera="top") as writer:
        for episode in read_episodes(recordings, outcomes=at_end):
            writer.add(episode)
    index = marked / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(index)
    pq.write_table(table.drop_columns([name for name in table.column_names if "outcome" in name]), index)
    again = read_outcomes(written(tmp_path, alternating("1", "0")))
    assert [episode.success.any() for episode in read_episodes(marked, outcomes=again)] == [True, False] * 3
    with refuses("success", "itself says otherwise of episode 0"):
        list(read_episodes(marked, outcomes=read_outcomes(written(tmp_path, alternating("0", "1")))))


def test_a_success_that_ended_again_or_lies_between_rows_agrees_with_the_file(recordings, tmp_path):
    """A button that springs back: success is in the middle, and the last row is none."""
    kept = {"whole": ([False, True, False, False, False], {}), "some": ([False] * 5, {"frame_every": 3})}
    for name, (success, meta) in kept.items():
        with EpisodeWriter(tmp_path / name, fps=10, camera="top") as writer:
            for episode in read_episodes(recordings):
                writer.add(replace(episode, success=np.array(success), outcome=True, meta=meta))
        agrees = read_outcomes(written(tmp_path, alternating("1", "1")))
        found = list(read_episodes(tmp_path / name, outcomes=agrees))
        assert [(episode.outcome, episode.success.tolist()) for episode in found] == [(True, success)] * COUNT


def test_a_model_is_trained_and_evaluated_with_them(recordings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = {"data_path": str(recordings), "image_size": 16, "max_steps": 2, "batch_size": 4, "val_split": 0.4}
    kinds = {"way": "progress", "end": "resnet"}
    models = json.dumps({"train": {name: {"type": kind, "save_dir": name, **common} for name, kind in kinds.items()}})
    (tmp_path / "study.yaml").write_text(models)
    outcomes = written(tmp_path, alternating("yes", "no"))

    def ended(*words):
        done = CliRunner().invoke(app, [*words])
        return done.output, done.exception

    assert "--outcomes FILE" in str(ended("train", "study.yaml")[1])
    refused = ended("train", "study.yaml", "--only", "end", "--outcomes", outcomes)[1]
    assert "train.NAME.success_at_end=true" in str(refused)
    at_end = "train.end.success_at_end=true"
    assert ended("train", "study.yaml", at_end, "--outcomes", outcomes)[1] is None
    assert ended("evaluate", "study.yaml", "--only", "way", "evaluate.reps=100", "--outcomes", outcomes)[1] is None
    unmarked = ended("evaluate", "study.yaml", "--only", "end", "--outcomes", outcomes)[1]
    assert "pass the same outcomes, and success_at_end: true" in str(unmarked)
    assert json.loads((tmp_path / "way" / "evaluation.json").read_text())["data"]
    by_path = ("evaluate", "--model", "way", "--data", str(recordings), "--dry-run")
    said, error = ended(*by_path, "--outcomes", outcomes)
    assert error is None
    assert f"outcomes: {outcomes}" in said
    with refuses("--outcomes", "would do nothing with policy=bc"):
        raise ended("train", "study.yaml", "policy=bc", "--outcomes", outcomes)[1]
