"""SARM, Robometer and RoboReward where reward models are used: `evaluate`, a server, `run`, and weighted cloning."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import start_server

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))

import published_robots as published  # noqa: E402

from guerdon import cli  # noqa: E402
from guerdon.collect.observed_frames import ObservedRow, cut_into_segments  # noqa: E402
from guerdon.episodes.write import EpisodeWriter  # noqa: E402
from guerdon.errors import ConfigError  # noqa: E402
from guerdon.integrations.lerobot import write_progress_file  # noqa: E402
from guerdon.models.load import load_reward_model  # noqa: E402
from guerdon.rewards.control_sources import ControlReward  # noqa: E402
from guerdon.rewards.source import SourceTerms  # noqa: E402
from guerdon.serve.client import load_remote  # noqa: E402
from guerdon.settings.remote import RemoteSettings  # noqa: E402
from guerdon.settings.reward_source import RobotSource  # noqa: E402
from guerdon.train.rabc import read_progress  # noqa: E402
from guerdon.types import Episode  # noqa: E402
from rl_clock import clock_study, lines, result, start  # noqa: E402
from rl_killed import kill_at  # noqa: E402
from tables import first  # noqa: E402

torch.set_num_threads(1)
TASK = "lift the cube"
EXACT = {"bf16": False}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The checkpoints, each as it would be downloaded, and episodes by two cameras."""
    folder = tmp_path_factory.mktemp("used")
    base = published.write_base(folder / "base")
    published.write_robometer(folder / "robometer", base)
    (published.write_base(folder / "RoboReward-4B") / "README.md").write_text("# RoboReward 4B\n")
    for name, states in (("sarm", published.STATES), ("clock", 2)):
        published.write_sarm(folder / name, states=states)
        published.write_clip(folder / name / "clip")
    with EpisodeWriter(folder / "data", camera="top") as writer:
        for episode in episodes():
            writer.add(episode)
    return folder


def episodes():
    """Six of them, half of which succeed; the camera `wrist` shows something else."""
    for n in range(6):
        frames, states = published.recording(7, size=(32, 32), seed=n)
        other, _ = published.recording(7, size=(32, 32), seed=50 + n)
        success = np.arange(7) == (6 if n % 2 else 9)
        yield Episode(
            id=f"{n}", task=TASK, frames=frames, states=states, views={"wrist": other}, success=success,
            outcome=bool(success.any()),
        )  # fmt: skip


def local(home, kind, folder=None, **given):
    more = {} if kind == "sarm" else {"vlm": EXACT}
    return load_reward_model(kind, home / (folder or kind), device="cpu", **more, **given)


# Evaluate.


@pytest.mark.parametrize("kind", ["sarm", "robometer"])
def test_a_folder_is_evaluated_on_the_camera_of_its_training(home, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.setattr(sys, "argv", [
        "guerdon", "evaluate", "--model", str(home / kind), "--data", str(home / "data"), "-o", str(tmp_path / "card"),
        "evaluate.reps=100",
    ])  # fmt: skip
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr()
    assert not left.value.code, said.err
    record = json.loads((tmp_path / "card" / "evaluation.json").read_text())
    assert record["model"]["kind"] == "progress"
    assert record["failures"] == {}
    expected = [score.total for score in local(home, kind).score(list(episodes()))]
    pairs = [a > b for a in expected[1::2] for b in expected[::2]]
    assert record["metrics"]["episode_auroc"]["estimate"] == pytest.approx(np.mean(pairs))


def test_roboreward_is_evaluated_and_its_failures_are_counted(home, tmp_path, monkeypatch, capsys):
    """Random weights write no grade."""
    monkeypatch.setattr(sys, "argv", [
        "guerdon", "evaluate", "--model", str(home / "RoboReward-4B"), "--data", str(home / "data"),
        "-o", str(tmp_path / "card"), "env.camera=top", "evaluate.reps=100",
    ])  # fmt: skip
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr()
    assert not left.value.code, said.err
    record = json.loads((tmp_path / "card" / "evaluation.json").read_text())
    assert sum(record["failures"].values()) == 6


# Serve.


@pytest.fixture(scope="module")
def served(home):
    """A server of the three, by nothing but their folders."""
    models = {
        "sarm": {"model_path": str(home / "sarm"), "options": {"device": "cpu"}},
        "robometer": {"model_path": str(home / "robometer"), "options": {"device": "cpu", "vlm": EXACT}},
        "roboreward": {
            "backend": "roboreward", "model_path": str(home / "RoboReward-4B"), "max_tokens": 4,
            "options": {"device": "cpu", "vlm": {**EXACT, "backend": "transformers"}},
        },
    }  # fmt: skip
    running = start_server(home, models=models, seconds=120)
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize("kind", ["sarm", "robometer"])
def test_a_server_gives_what_the_model_gives_here(home, served, kind):
    here, there = local(home, kind), load_remote(RemoteSettings(endpoint=served.url, backend=kind))
    assert there.info == here.info
    shown = list(episodes())[:2]
    for mine, theirs in zip(here.score(shown), there.score(shown), strict=True):
        np.testing.assert_allclose(theirs.steps, mine.steps, atol=1e-6)


def test_a_long_episode_is_looked_back_on_from_its_start(home, served):
    """Clients send long episodes in pieces where values look back over few frames alone."""
    frames, _ = published.recording(70, size=(16, 16))
    episode = Episode(id="long", task=TASK, frames=frames)
    here = local(home, "robometer").score([episode])[0]
    there = load_remote(RemoteSettings(endpoint=served.url, backend="robometer")).score([episode])[0]
    np.testing.assert_allclose(there.steps, here.steps, atol=1e-5)


def test_states_travel_with_frames_and_only_where_they_are_read(home, served):
    episode = next(iter(episodes()))
    frames = {"task": TASK, "npy_base64": npy(episode.frames)}

    def ask(model, **item):
        return served.post("/v1/rewards", {"model": model, "items": [{**frames, **item}]})

    without = ask("sarm").json()["results"][0]
    assert (without["score"], without["failure"]["reason"]) == (None, "no_states")
    states = episode.states.tolist()
    whole = ask("sarm", states=states).json()["results"][0]
    np.testing.assert_allclose(whole["step_scores"], local(home, "sarm").score([episode])[0].steps, atol=1e-6)
    for model, wrong, why in (
        ("sarm", states[:-1], "each of the 7 frames a state"),
        ("sarm", [*states[:-1], states[-1][:-1]], "each of the 7 frames a state"),
        ("robometer", states, "would do nothing"),
    ):
        refused = ask(model, states=wrong)
        assert refused.status_code == 422
        assert why in refused.text
        assert "items[0].states" in refused.text
    both = served.post(
        "/v1/rewards", {"model": "sarm", "items": [{"prompt": "p", "completion": "c", "states": states}]}
    )
    assert both.status_code == 422
    plain = served.get("/v1/rewards?model=robometer").json()["info"]
    assert "states" not in plain
    assert plain["progress"] is True


def test_a_served_roboreward_fails_where_it_writes_no_grade(served):
    there = load_remote(RemoteSettings(endpoint=served.url, backend="roboreward"))
    assert (there.info.granularity, there.info.progress) == ("total", True)
    score = there.score([next(iter(episodes()))])[0]
    assert score.total is None
    assert score.failure.reason in ("no_verdict", "truncated", "several_answers", "empty")


def npy(frames):
    import base64
    import io

    buffer = io.BytesIO()
    np.save(buffer, frames)
    return base64.b64encode(buffer.getvalue()).decode()


# Run.


def source_of(home, **given):
    settings = RobotSource(**{"model": {"model_type": "constant"}, "shaping": "raw", **given})
    return ControlReward(SourceTerms("rm", 0.9), local(home, "sarm"), settings, num_envs=1)


def segments_of(episode, rows, first, last):
    """The stretch of an episode between two of its steps, as a collector hands it over."""
    own = [
        ObservedRow(0, t - 1 - first, 0, t, t == len(episode) - 1, False, state=episode.states[t])
        for t in rows if first < t <= last or (t == 0 and first == 0)
    ]  # fmt: skip
    done = np.zeros((1, last - first), np.bool_)
    done[0, -1] = last == len(episode) - 1
    frames = episode.frames[[row.row for row in own]]
    return cut_into_segments(
        own, frames, [[TASK]] * (last - first + 1), np.ones((1, last - first), np.bool_), done, done
    )


@pytest.mark.parametrize("cut", [None, 3])
@pytest.mark.parametrize("mode", first(["episode", "per_step"], 1))
def test_a_source_scores_frames_and_states_of_an_episode(home, cut, mode):
    """In one rollout, or in two with a checkpoint between them; per step by what was seen until then."""
    episode, end = next(iter(episodes())), cut or 6
    model, source = local(home, "sarm"), source_of(home, reward_mode=mode)
    whole = model.score([episode])[0].steps
    expected = [*model.score([episode[: end + 1]])[0].steps[1:], *whole[end + 1 :]]
    at, paid = 0, []
    for stop in dict.fromkeys((end, 6)):
        segments = segments_of(episode, range(7), at, stop)
        found = source.measure(SimpleNamespace(segments=segments, mask=np.ones((1, stop - at))))
        assert not found.failed.any()
        paid += found.values[0].tolist()
        at = stop
        again = source_of(home, reward_mode=mode)
        again.restore(*source.state())
        source = again
    np.testing.assert_allclose(paid, [0, 0, 0, 0, 0, whole[-1]] if mode == "episode" else expected, atol=1e-6)


def clock(folder, home, **reward):
    model = {"model_type": "sarm", "checkpoint_path": str(home / "clock"), "device": "cpu"}
    return clock_study(
        folder, env={"task_text": TASK},
        reward={"use_reward_model": True, "shaping": "raw", "model": model, "max_failure_rate": 0.1, **reward},
    )  # fmt: skip


@pytest.mark.parametrize("mode", first(["episode", "per_step"], 1))
def test_a_run_is_paid_by_sarm_and_resumes_to_the_same_bytes(home, tmp_path, mode):
    whole, killed = (clock(tmp_path / name, home, reward_mode=mode) for name in ("whole", "killed"))
    start(whole, reader="own").run()
    assert lines(whole, "failures") == []
    kill_at(start(killed, reader="own"), "iterate", 5)
    start(killed, resume=True, reader="own").run()
    assert result(killed) == result(whole)


def test_a_run_is_paid_by_robometer(home, tmp_path):
    model = {"model_type": "robometer", "checkpoint_path": str(home / "robometer"), "device": "cpu"}
    study = clock_study(
        tmp_path, env={"task_text": TASK}, runner={"total_steps": 24},
        reward={
            "use_reward_model": True, "shaping": "relative", "reward_mode": "per_step", "score_every": 4,
            "model": {**model, "vlm": EXACT},
        },
    )  # fmt: skip
    start(study, reader="own").run()
    assert lines(study, "failures") == []


# Weighted cloning.


def test_progress_of_sarm_for_lerobots_weighted_cloning(home):
    settings = {"model_type": "sarm", "checkpoint_path": str(home / "sarm"), "device": "cpu"}
    path = write_progress_file(home / "data", settings)
    assert path.name == "sarm_progress.parquet"
    found = read_progress(path, home / "data").values
    expected = [score.steps for score in local(home, "sarm").score(list(episodes()))]
    for (_, values), steps in zip(sorted(found.items()), expected, strict=True):
        np.testing.assert_allclose(values, steps, atol=1e-6)


def test_a_data_set_without_the_camera_of_the_training_asks_which(home, tmp_path):
    with EpisodeWriter(tmp_path / "data", camera="front") as writer:
        writer.add(next(iter(episodes())))
    settings = {"model_type": "sarm", "checkpoint_path": str(home / "sarm"), "device": "cpu"}
    with pytest.raises((ConfigError, Exception), match="several cameras"):
        write_progress_file(tmp_path / "data", settings)
    write_progress_file(tmp_path / "data", settings, camera="wrist")
