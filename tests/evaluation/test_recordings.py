"""Episodes for the Rerun viewer: written with the real package, and read back with its own reader."""

import io
from datetime import timedelta

import numpy as np
import pytest
from PIL import Image

from guerdon.episodes.progress_files import write_progress
from guerdon.episodes.read import dataset_hash
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError, DataError, MissingDependencyError
from guerdon.evaluation.recordings import reward_curve, write_recordings
from guerdon.types import Episode, Failure, RewardInfo, Score

ROWS = 6


def episode(number, **changes):
    rng = np.random.default_rng(number)
    frames = rng.integers(0, 255, (ROWS, 16, 24, 3), dtype=np.uint8)
    actions, rewards = rng.normal(size=(ROWS, 2)).astype(np.float32), rng.normal(size=ROWS).astype(np.float32)
    actions[0] = rewards[0] = 0
    fields = {
        "id": f"expert-0/{number}",
        "task": "close the door",
        "frames": frames,
        "views": {"wrist": 255 - frames[:, :8]},
        "states": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "actions": actions,
        "rewards": rewards,
        "success": np.arange(ROWS) == ROWS - 1,
        "outcome": True,
        "meta": {"seed": number},
    }
    return Episode(**(fields | changes))


@pytest.fixture
def rerun():
    return pytest.importorskip("rerun", reason="the package is an extra: guerdon[rerun]")


@pytest.fixture
def data(tmp_path):
    with EpisodeWriter(tmp_path / "data", camera="top", fps=10) as writer:
        for number in range(2):
            writer.add(episode(number))
    return tmp_path / "data"


class FailsAt:
    """A model of single frames that cannot measure the frames at some rows of an episode."""

    info = RewardInfo(name="brightness", range=(0.0, 1.0))

    def __init__(self, rows):
        self.failing = [episode(n).frames[row].tobytes() for n in range(2) for row in rows]

    def score(self, episodes):
        return [
            Score(failure=Failure("timeout", "no answer after 30 s"))
            if one.frames[0].tobytes() in self.failing
            else Score.from_values(one.frames.mean(axis=(1, 2, 3)) / 255)
            for one in episodes
        ]


class Judgement:
    """A model that judges whole episodes, and cannot judge some."""

    def __init__(self, fails=False):
        self.info = RewardInfo(name="judgement", range=(0.0, 1.0), granularity="total", frames_needed=0)
        self.fails = fails

    def score(self, episodes):
        return [Score(failure=Failure("no_judgement")) if self.fails else Score(total=0.75) for _ in episodes]


def contents(path):
    """Entity to (frame_index, seconds, component to values) of each row, as Rerun reads the file."""
    from rerun.chunk import RrdReader

    found = {}
    for chunk in RrdReader(str(path)).stream():
        batch = chunk.to_record_batch()
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if "RowId" not in name}
        rows = found.setdefault(chunk.entity_path, [])
        rows += [{name: column[i] for name, column in columns.items()} for i in range(batch.num_rows)]
    return found


def numbers(rows):
    """Row of the episode to the numbers of an entity there."""
    return {row["frame_index"]: row["Scalars:scalars"] for row in rows}


def as_float(values_T):
    return {t: [float(v) for v in np.atleast_1d(value)] for t, value in enumerate(values_T)}


def test_the_numbers_are_those_of_the_episodes(rerun, data):
    paths = write_recordings(data)
    assert [path.relative_to(data).as_posix() for path in paths] == [
        "rerun/episode_000000.rrd",
        "rerun/episode_000001.rrd",
    ]
    for number, path in enumerate(paths):
        true, found = episode(number), contents(path)
        assert numbers(found["/state"]) == as_float(true.states)
        assert numbers(found["/action"]) == as_float(true.actions[1:])
        assert numbers(found["/next.reward"]) == as_float(true.rewards[1:])
        assert numbers(found["/next.success"]) == as_float(true.success[1:])
        assert numbers(found["/next.done"]) == as_float([False] * (ROWS - 2) + [True])
        assert found["/task"][0]["TextDocument:text"] == ["close the door"]
        properties = found["/__properties/episode"][0]
        assert (properties["task"], properties["outcome"]) == (["close the door"], ["success"])
        assert properties["meta.seed"] == [str(number)]
        for camera, frames in {"top": true.frames, "wrist": true.views["wrist"]}.items():
            pictures = found[f"/observation.images.{camera}"]
            assert len(pictures) == ROWS
            for t, row in enumerate(pictures):
                png = Image.open(io.BytesIO(bytes(row["EncodedImage:blob"][0])))
                assert (np.asarray(png) == frames[t]).all()
                assert row["timestamp"] == timedelta(seconds=t / 10)
                assert row["frame_index"] == t
        assert not any(entity.startswith("/reward") for entity in found)


def test_a_failed_measurement_is_a_missing_value_with_its_reason(rerun, data, monkeypatch):
    monkeypatch.setattr("guerdon.evaluation.recordings.load_reward_model", lambda **given: FailsAt((1, 4)))
    for number, path in enumerate(write_recordings(data, [{"model_type": "parts:Brightness"}], camera="top")):
        found = contents(path)
        means = episode(number).frames.mean(axis=(1, 2, 3)) / 255
        wanted = {t: [] if t in (1, 4) else [float(np.float32(means[t]))] for t in range(ROWS)}
        assert numbers(found["/reward/Brightness"]) == wanted
        reasons = {row["frame_index"]: row["TextLog:text"] for row in found["/reward/Brightness/failure"]}
        assert reasons == {t: ["timeout: no answer after 30 s"] for t in (1, 4)}
        assert {row["TextLog:level"][0] for row in found["/reward/Brightness/failure"]} == {"WARN"}


def test_a_model_of_whole_episodes_says_it_in_the_last_row(rerun, data, monkeypatch):
    monkeypatch.setattr("guerdon.evaluation.recordings.load_reward_model", lambda **given: Judgement())
    (path,) = write_recordings(data, [{"model_type": "judgement"}], camera="wrist", limit=1)
    assert numbers(contents(path)["/reward/judgement"]) == {ROWS - 1: [0.75]}
    curve = reward_curve(Judgement(fails=True), episode(0))
    assert np.isnan(curve.values).all()
    assert curve.reasons == [None] * (ROWS - 1) + ["no_judgement"]


def test_unknown_success_and_missing_rewards_stay_unknown(rerun, tmp_path):
    rewards = np.array([0, 1, np.nan, 2, 3, 4], np.float32)
    with EpisodeWriter(tmp_path, camera="top") as writer:
        writer.add(episode(0, success=None, outcome=None, rewards=rewards, views={}))
    (path,) = write_recordings(tmp_path)
    found = contents(path)
    assert "/next.success" not in found
    assert found["/__properties/episode"][0]["outcome"] == ["unknown"]
    assert numbers(found["/next.reward"]) == {0: [1.0], 1: [], 2: [2.0], 3: [3.0], 4: [4.0]}
    assert [row["TextLog:text"] for row in found["/next.reward/failure"]] == [["non_finite"]]


def test_values_in_a_file_beside_the_data_are_shown(rerun, data):
    values = {f"expert-0/{n}": np.array([0.1, 0.2, np.nan, 0.4, 0.5, 0.6], np.float32) for n in range(2)}
    reasons = {"expert-0/0": [None, None, "busy", None, None, None]}
    of = {"data": dataset_hash(data), "model": "x"}
    write_progress(data / "sarm_progress.parquet", data, values, reasons, origin="runs/x", made_of=of)
    first, _ = (contents(path) for path in write_recordings(data))
    shown = numbers(first["/reward/sarm"])
    assert shown == {t: [float(v)] if np.isfinite(v) else [] for t, v in enumerate(values["expert-0/0"])}
    assert [row["TextLog:text"] for row in first["/reward/sarm/failure"]] == [["busy"]]
    write_progress(data / "sarm_progress.parquet", data, values, {}, origin="x", made_of=of | {"data": "other"})
    with pytest.raises(DataError, match="made from other episodes"):
        write_recordings(data)


def test_what_cannot_be_shown_is_refused(rerun, data):
    with pytest.raises(ConfigError, match="several cameras"):
        write_recordings(data, [{"model_type": "progress"}])
    with pytest.raises(ConfigError, match=r"keys of reward\.model"):
        write_recordings(data, ["progress"], camera="top")
    with pytest.raises(DataError, match="no camera 'left'"):
        write_recordings(data, camera="left")


def test_the_extra_is_named_where_it_is_missing(data, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rerun", None)
    with pytest.raises(MissingDependencyError, match=r"guerdon\[rerun\]"):
        write_recordings(data)


def test_the_command_scores_and_writes(rerun, tmp_path):
    from typer.testing import CliRunner

    from guerdon.cli import app

    with EpisodeWriter(tmp_path, camera="top") as writer:
        writer.add(episode(0, views={}))
    model = "{model_type: constant, value: 0.25}"
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--model", model])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "wrote 1 recordings" in done.output
    found = contents(tmp_path / "rerun" / "episode_000000.rrd")
    assert numbers(found["/reward/constant"]) == {t: [0.25] for t in range(ROWS)}
