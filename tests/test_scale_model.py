"""The model of large runs: its simulation in closed form, its check against measured runs, its page."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import scale_model as model


def test_workers_share_cores_evenly():
    assert model.finish_times([[2.0], [1.0, 1.0]], cores=2) == [2.0, 2.0]
    assert model.finish_times([[2.0], [2.0]], cores=1) == [4.0, 4.0]
    assert model.finish_times([[1.0], [3.0]], cores=1) == [2.0, 4.0], "the second is alone from 2 s on"
    assert model.finish_times([[], [1.0]], cores=1) == [0.0, 1.0]


@pytest.mark.parametrize(("collectors", "seconds"), [(1, 4.5), (2, 2.5), (3, 3.0), (4, 2.5)])
def test_four_shards_on_two_cores(collectors, seconds):
    """Three collectors share two cores for 1.5 s, until those with one shard are done; the other needs 1 s more."""
    found = model.iteration_seconds([1.0] * 4, collectors, after=0.5, cores=2)
    assert found == pytest.approx(seconds)
    assert model.iteration_seconds([1.0] * 4, collectors, after=0.5, cores=4) == pytest.approx(
        {1: 4.5, 2: 2.5, 3: 2.5, 4: 1.5}[collectors]
    )
    assert model.iteration_seconds([1.0, 1.0, 3.0, 1.0], 4, after=0.0, cores=4) == 3.0, "the slowest one counts"


def test_finished_responses_make_room():
    free = (1.0, 0.0)  # a step takes as long as the weights
    assert model.decode_seconds([3, 5], at_once=2, read=free, compute=0.0) == 5.0
    assert model.decode_seconds([3, 5], at_once=1, read=free, compute=0.0) == 8.0
    assert model.decode_seconds([2, 2, 2], at_once=2, read=free, compute=0.0) == 4.0
    assert model.decode_seconds([3, 5], at_once=2, read=(1.0, 0.5), compute=0.0) == 3 * 2.0 + 2 * 1.5
    assert model.decode_seconds([3, 5], at_once=2, read=free, compute=2.0) == 3 * 4.0 + 2 * 2.0


def measured(seconds):
    """A measurement of two cores in which the parts say 2.2 s for one collector."""
    part = {"shards": [0.5] * 4, "update": 0.2}
    rounds = [{"load": 0.0, "alone": [part], "both": [part, part], "runs": {str(n): s for n, s in seconds.items()}}] * 3
    return {"when": "2026-01-01", "cores": 2, "shards": 4, "seam": 0.0, "put": 0.0, "rounds": rounds}


def test_nothing_is_shown_beyond_runs_that_it_misses():
    good = {1: 2.2, 2: 1.2, 4: 1.2}
    rows = model.check(measured(good))
    assert [row["predicted"] for row in rows] == [pytest.approx(s) for s in good.values()]
    assert [row["error"] for row in rows] == [pytest.approx(0.0)] * 3
    assert "512" in model.tables(measured(good))
    with pytest.raises(SystemExit, match="nothing larger is shown"):
        model.tables(measured({**good, 4: 1.6}))


def test_more_gpus_take_no_longer_and_the_worst_inputs_no_less():
    for function in (model.language, model.robots):
        for end in (0, 1):
            few, many = function(8, end), function(512, end)
            assert all(many[name] <= few[name] for name in few if name != "weights")
        best, worst = function(64, 0), function(64, 1)
        assert all(best[name] <= worst[name] for name in best)


def test_collectors_on_gpus_of_their_own_get_a_broadcast():
    def expected(end):
        given = {name: model.INPUTS[name].at(end) for name in ("parameters", "sent", "pcie", "nvlink", "network")}
        size = given["sent"] * given["parameters"]
        return [2 * size / given["pcie"] + size / given[link] for link in ("nvlink", "network")]

    for end in (0, 1):
        within, between = expected(end)
        assert model.language(4, end, writers=4)["weights"] == pytest.approx(within)
        assert model.language(32, end, writers=32)["weights"] == pytest.approx(between)
        assert model.robots(32, end, separate=True)["weights"] == pytest.approx(between)
        assert model.robots(64, end)["weights"] > 10 * between, "through the object store"


def test_keys_and_values_take_what_responses_need_or_what_is_left():
    response = model.CACHED * (model.PROMPT_TOKENS + model.MOST)
    for gpus in (64, 512):
        assert model.memory(gpus, kind="language")["keys and values"] == response * 1024 / gpus, "all have room"
    full = model.memory(8, kind="language")
    assert full["keys and values"] == 29 * response, "docs/scale.md says so"
    assert 0.9 * model.MEMORY - response < sum(full.values()) - full["activations and logits"] <= 0.9 * model.MEMORY
    assert model.together(full) == sum(full.values()) - full["activations and logits"], "the larger of the two"
    assert model.responses_at_once({"other": model.MEMORY}) == 1
    assert "keys and values" not in model.memory(8, kind="robots")


def test_speeds_of_libero_come_from_its_page():
    for name in ("simulator", "picture"):
        assert model.INPUTS[name].low > model.INPUTS[name].high > 0


def test_the_page_is_up_to_date_and_its_model_checked():
    page = model.PAGE.read_text()
    found = model.tables(json.loads(model.MEASURED.read_text()))
    assert page.partition(model.BEGIN)[2].partition(model.END)[0].strip() == found.strip(), (
        "run: python benchmarks/scale_model.py --write"
    )
