"""The same metrics under the same names in TensorBoard, Weights & Biases and Trackio, of the real packages, offline."""

import json
from importlib.util import find_spec

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from guerdon.errors import MissingDependencyError
from guerdon.rl import log as log_sinks
from guerdon.settings.runner import LoggerSettings
from rl_clock import clock_study, start
from rl_killed import kill_at
from tables import refuses

torch.set_num_threads(1)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Nothing is sent, and nothing is written outside the folder."""
    for name, value in {
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DISABLE_CODE": "true", "HF_HUB_OFFLINE": "1",
        "TRACKIO_DIR": str(tmp_path / "trackio"), "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_CONFIG_DIR": str(tmp_path / "config"), "WANDB_DATA_DIR": str(tmp_path / "data"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return tmp_path


def logged(folder):
    """(step, name) to value, as in the record of the run."""
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        kind, step = row.pop("kind"), row.pop("step")
        found |= {(step, f"{kind}/{k}"): v for k, v in row.items() if isinstance(v, int | float)}
    return found


def in_tensorboard(folder):
    events = EventAccumulator(str(folder / "tb"), size_guidance={"scalars": 0}).Reload()
    return {(e.step, name): e.value for name in events.Tags()["scalars"] for e in events.Scalars(name)}


def records(data):
    """The records of a LevelDB log: blocks of 32 KiB, in them checksum (4 bytes), length (2), kind (1), bytes."""
    place, parts = 7, b""  # behind the head of the file
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts = data[place + 7 : place + 7 + length] if kind in (1, 2) else parts + data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts


def in_wandb(folder):
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # ends the process that writes the file
    found = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            step = record.history.step.num
            add(found, {(step, k): v for k, v in row.items() if not k.startswith("_")})
    return found


def in_trackio(project, name):
    from trackio.sqlite_storage import SQLiteStorage

    found = {}
    for row in SQLiteStorage.get_logs(project, name):
        add(found, {(row["step"], k): v for k, v in row.items() if "/" in k})
    return found


def add(found, new):
    """No step is there twice."""
    assert not found.keys() & new.keys()
    found |= new


def close_to(found, expected):
    assert found.keys() == expected.keys()
    assert [found[key] for key in expected] == pytest.approx(list(expected.values()), rel=1e-6, abs=1e-7)


def given(folder, name, **logger):
    study = clock_study(folder, name=name)
    settings = LoggerSettings(log_path=str(folder), experiment_name=name, **logger)
    return study.model_copy(update={"runner": study.runner.model_copy(update={"logger": settings})})


def test_wandb_has_the_metrics_of_the_record(offline):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install guerdon[wandb]")
    study = given(offline, "whole", tensorboard=True, wandb=True, project="clocks")
    start(study).run()
    record = logged(offline / "whole")
    assert {name for _, name in record} >= {"train/success", "eval/success"}
    close_to(in_tensorboard(offline / "whole"), record)
    close_to(in_wandb(offline / "whole"), record)


def test_a_resumed_run_continues_in_the_same_wandb_run(offline):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install guerdon[wandb]")
    study = given(offline, "again", tensorboard=False, wandb=True)
    kill_at(start(study), "_evaluate", 2)
    before = (offline / "again" / "wandb" / "guerdon_run_id").read_text()
    start(study, resume=True).run()
    assert (offline / "again" / "wandb" / "guerdon_run_id").read_text() == before
    assert {path.name.rpartition("-")[2] for path in (offline / "again" / "wandb").glob("offline-run-*")} == {before}
    close_to(in_wandb(offline / "again"), logged(offline / "again"))


def test_trackio_has_the_metrics_of_the_record(offline):
    pytest.importorskip("trackio", reason="trackio is not installed: pip install guerdon[trackio]")
    study = given(offline, "whole", tensorboard=True, trackio=True, project="clocks")
    start(study).run()
    record = logged(offline / "whole")
    close_to(in_trackio("clocks", "whole"), record)
    close_to(in_tensorboard(offline / "whole"), record)


def test_a_resumed_run_continues_in_the_same_trackio_run(offline):
    pytest.importorskip("trackio", reason="trackio is not installed: pip install guerdon[trackio]")
    study = given(offline, "again", tensorboard=False, trackio=True, project="clocks")
    kill_at(start(study), "_evaluate", 2)
    start(study, resume=True).run()
    close_to(in_trackio("clocks", "again"), logged(offline / "again"))


def test_steps_that_are_computed_again_are_given_once(tmp_path):
    path = tmp_path / "given.json"
    first = log_sinks._Given(path, None)
    assert first.new(10, {"train/a": 1.0}) == {"train/a": 1.0}
    assert first.new(20, {"train/a": 2.0}) == {"train/a": 2.0}
    again = log_sinks._Given(path, 0)  # killed between the two rows of step 20
    assert again.new(10, {"train/a": 1.0}) == {}
    assert again.new(20, {"train/a": 2.0}) == {}
    assert again.new(20, {"eval/b": 3.0}) == {"eval/b": 3.0}
    assert again.new(30, {"train/a": 4.0}) == {"train/a": 4.0}
    assert log_sinks._Given(path, None).new(10, {"train/a": 1.0}) == {"train/a": 1.0}  # another run


def test_a_resumed_run_keeps_its_name_and_another_one_gets_a_new_one(tmp_path):
    path = tmp_path / "wandb" / "guerdon_run_id"
    first = log_sinks._run_id(path, 40)  # resumed, but its sink is new
    assert len(first) == 8
    assert log_sinks._run_id(path, 40) == first
    assert log_sinks._run_id(path, None) != first


def test_a_project_without_a_sink_that_has_projects_is_refused():
    with refuses("project"):
        LoggerSettings(project="mine")


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setattr(log_sinks, "find_spec", lambda package: None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'guerdon\[{name}\]'"):
        start(given(tmp_path, "run", **{name: True}))


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: pip install guerdon[wandb]")
def test_a_sink_that_cannot_start_is_one_line(offline, monkeypatch):
    import wandb

    def fails(**_):
        raise wandb.errors.UsageError("api_key not configured (no-tty)")

    monkeypatch.setattr(wandb, "init", fails)
    with refuses("runner.logger.wandb", r"wandb cannot start .*api_key not configured"):
        start(given(offline, "run", wandb=True))


@pytest.mark.parametrize(("known", "shown"), [(True, "success"), (False, "return/env")])
def test_tensorboard_shows_the_return_first_where_success_is_unknown(tmp_path, known, shown):
    from tensorboard.plugins.custom_scalar import layout_pb2

    sink = log_sinks.TensorBoardSink(tmp_path, None)
    sink.log(5, {"train/return/env": 0.5})
    for step in (10, 20):
        sink.log(step, {"eval/return/env": 2.5, "eval/length": 7.0, **({"eval/success": 0.25} if known else {})})
    sink.close()
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    (tensor,) = events.Tensors("custom_scalars__config__")
    found = layout_pb2.Layout.FromString(tensor.tensor_proto.string_val[0])
    assert [chart.title for category in found.category for chart in category.chart] == [shown]
    assert list(found.category[0].chart[0].multiline.tag) == [f"eval/{shown}$", f"train/{shown}$"]
