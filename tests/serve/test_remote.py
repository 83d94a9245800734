"""A reward model on a real server gives what the same model gives here, to 1e-6, and is used like one."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign import b64, npy
from processes import start_server

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))

from adapter_models import Trl  # noqa: E402

from guerdon.collect.control import ControlCollector  # noqa: E402
from guerdon.config.loading import load  # noqa: E402
from guerdon.episodes.read import dataset_hash, read_episodes  # noqa: E402
from guerdon.errors import ConfigError, RewardRequestError  # noqa: E402
from guerdon.evaluation.suites.image_suite import evaluate_model, evaluate_study  # noqa: E402
from guerdon.models.explained_score import Judge, JudgeOptions, judge  # noqa: E402
from guerdon.models.images.backbone import ImageScorer  # noqa: E402
from guerdon.models.images.image import ImageModelConfig, save_checkpoint  # noqa: E402
from guerdon.models.load import load_reward_model  # noqa: E402
from guerdon.models.text.text_load import load_text_model  # noqa: E402
from guerdon.rewards.control_sources import ControlReward  # noqa: E402
from guerdon.rewards.source import SourceTerms  # noqa: E402
from guerdon.serve.client import (  # noqa: E402
    ROWS,
    RewardClient,
    load_remote,
)
from guerdon.settings.policy import MLPPolicySettings  # noqa: E402
from guerdon.settings.remote import RemoteSettings  # noqa: E402
from guerdon.settings.reward_source import RobotSource  # noqa: E402
from guerdon.settings.study import Study  # noqa: E402
from guerdon.settings.world import GymnasiumSettings  # noqa: E402
from guerdon.types import Episode, RewardModel  # noqa: E402
from rl_clock import clock_study, result, start  # noqa: E402
from rl_models import episodes, write_image_model  # noqa: E402
from tables import refuses  # noqa: E402

torch.set_num_threads(1)
TOLERANCE = 1e-6
CPU = {"device": "cpu"}  # there and here
TOKEN = "a token of these tests"


def write_states_model(folder):
    """A model of two parts of what `mixed_env` observes, with random weights."""
    torch.manual_seed(0)
    shared = {"hidden_dim": 8, "dropout": 0.0, "state_size": 7}
    config = ImageModelConfig("progress", "mlp", horizon=4.0, keys=("arm.mode", "arm.joints"), **shared)
    return save_checkpoint(folder, ImageScorer("mlp", **shared), config)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Models on the disk."""
    folder = tmp_path_factory.mktemp("remote")
    write_image_model(folder, camera="main")
    write_states_model(folder / "states")
    Trl(folder / "prm")
    (folder / "media").mkdir()
    return folder


@pytest.fixture(scope="module")
def served(home):
    """A server with an image model, a text model, a constant and a toy that judges whole videos."""
    toy = {"custom_backend": "toys:make", "options": {"modality": "image", "granularity": "total", "name": "eye"}}
    running = start_server(
        home,
        models={
            "resnet": {"backend": "resnet", "model_path": str(home / "model"), "options": CPU},
            "states": {"model_path": str(home / "states"), "options": CPU},
            "prm": {"backend": "text", "model_path": str(home / "prm"), "options": CPU},
            "fixed": {"backend": "constant", "options": {"value": 0.25}},
            "eye": {**toy, "options": {**toy["options"], "journal": str(home / "calls.jsonl")}},
            "learner": {"custom_backend": "toys:make_learner", "update_dir": str(home / "learnt")},
        },
        token=TOKEN,
        media={"root": str(home / "media")},
    )
    yield running
    assert running.stop() == 0


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("GUERDON_TOKEN", TOKEN)


def remote(served, backend, path="/v1/rewards", **given):
    return load_remote(RemoteSettings(endpoint=served.url + path, backend=backend, **given))


def same(here, there):
    """Both scores, equal to 1e-6, or both failures."""
    for a, b in zip(here, there, strict=True):
        assert (a.failure is None) == (b.failure is None), (a.failure, b.failure)
        if a.steps is not None:
            assert np.abs(a.steps - b.steps).max() <= TOLERANCE
        assert (a.total is None) == (b.total is None)
        assert a.total is None or abs(a.total - b.total) <= TOLERANCE
    return True


def agree(found, wanted):
    """The same record, where numbers that come from scores may differ as much as these."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(agree(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(agree, found, wanted))
    return found == pytest.approx(wanted, abs=10 * TOLERANCE) if isinstance(wanted, float) else found == wanted


def random_episodes(count, length, size=24):
    rng = np.random.default_rng(1)
    return [
        Episode(id=str(n), task="t", frames=rng.integers(0, 256, (length + n, size, size, 3), dtype=np.uint8))
        for n in range(count)
    ]


def test_an_image_model_is_the_same_there_and_here(served, home):
    here, there = load_reward_model("resnet", home / "model", **CPU), remote(served, "resnet")
    assert isinstance(there, RewardModel)
    assert isinstance(there, Judge)
    assert there.info == here.info
    assert there.info.keys == ("main",)
    batch = [*episodes(), *random_episodes(3, 5), Episode(id="blind", task="t", states=np.zeros((2, 3), np.float32))]
    found = there.score(batch)
    assert same(here.score(batch), found)
    assert found[-1].failure.reason == "no_frames"
    assert len({round(s.total, 4) for s in found[:-1]}) > 3
    there.close()


def test_long_episodes_travel_in_pieces_and_come_back_whole(served, home):
    here, there = load_reward_model("resnet", home / "model", **CPU), remote(served, "resnet")
    long = random_episodes(1, 2 * ROWS + 7)
    assert same(here.score(long), there.score(long))
    assert there.client.counts["requests"] == 2  # the description, and one request for all pieces
    there.close()


def test_a_text_model_is_the_same_there_and_here(served, home):
    here, there = load_text_model(str(home / "prm"), **CPU), remote(served, "prm")
    assert there.info == here.info
    rng = np.random.default_rng(0)
    batch = [
        Episode(
            id=str(n),
            task=f"What is {n}+{n}?",
            texts=tuple(f"{rng.integers(99)} and {rng.integers(99)}\n" for _ in range(1 + n % 4)),
            outcome=bool(n % 2),
        )
        for n in range(10)
    ]
    assert same(here.score(batch), there.score(batch))
    apart = [there.score([episode])[0] for episode in batch]
    assert same(here.score(batch), apart)
    there.close()


def test_a_model_of_states_pays_in_a_run_what_it_pays_here(served, home):
    here, there = load_reward_model("progress", home / "states", **CPU), remote(served, "states")
    assert there.info == here.info
    settings = RobotSource(model={"model_type": "constant"}, reward_mode="per_step", score_every=1, shaping="raw")
    sources = [ControlReward(SourceTerms("rm", 0.9), model, settings, num_envs=2) for model in (here, there)]
    env = GymnasiumSettings(task="mixed_env:Mixed-v0", num_envs=2, kwargs={"actions": "multi"})
    policy = MLPPolicySettings(hidden=(8,), keys=["arm"])
    collector = ControlCollector(env, policy, seed=0, rollout_steps=12, observes=[sources[0].observes])
    mine, theirs = (
        source.measure(rollout) for rollout in [collector.collect(collector.build_policy())] for source in sources
    )
    collector.close()
    assert not mine.failures
    assert not theirs.failures
    assert np.abs(mine.values - theirs.values).max() <= TOLERANCE
    assert len(np.unique(mine.values)) > 10
    with refuses("upload"):
        remote(served, "states", upload="jpeg")


def test_an_item_for_a_model_of_states_is_states_alone(served, home):
    states = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    whole = Episode(id="", task="", states=states)

    def ask(path="/v1/rewards", **item):
        return served.post(path, {"model": "states", "items": [item]})

    found = ask(states=states.tolist()).json()["results"][0]
    np.testing.assert_allclose(
        found["step_scores"],
        load_reward_model("progress", home / "states", **CPU).score([whole])[0].steps,
        atol=TOLERANCE,
    )
    narrow = ask(states=states[:, :3].tolist()).json()["results"][0]
    assert narrow["failure"]["detail"] == "the episode has no states of 7 numbers to look at"
    for item, field in (
        ({"task": "t", "frames_base64": ["x"], "states": [[1.0]]}, "frames_base64"),
        ({"prompt": "p", "states": [[1.0]]}, "prompt"),
        ({"task": "t"}, "states"),
        ({"states": [[1.0, 2.0], [1.0]]}, "states"),
    ):
        refused = ask(**item)
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, f"items[0].{field}"), refused.text
    framed = ask(task="t", npy_base64=b64(npy(np.zeros((2, 8, 8, 3), np.uint8)))).json()["results"][0]
    assert framed["failure"]["reason"] == "no_states"


def test_a_constant_is_the_same_there_and_here(served):
    here, there = load_reward_model("constant", value=0.25), remote(served, "fixed")
    batch = [Episode(id="0", task="t", states=np.zeros((3, 2), np.float32)), *random_episodes(1, 4)]
    assert there.info == here.info
    assert same(here.score(batch), there.score(batch))
    there.close()


@pytest.mark.parametrize("path", ["/v1/rewards", "/score"])
@pytest.mark.parametrize("upload", ["npy", "jpeg", "mp4", "path"])
def test_every_way_of_sending_frames_arrives(served, home, path, upload):
    frames = np.full((5, 48, 64, 3), 60, np.uint8)
    frames[-1] = 200
    more = {"path": {"temp_video_dir": str(home / "media")}}.get(upload, {})
    there = remote(served, "eye", path, upload=upload, nframes=3, **more)
    judged = judge(there, [Episode(id="0", task="t", frames=frames)], JudgeOptions())[0]
    assert judged.score.failure is None, judged.score.failure
    assert judged.score.total == pytest.approx(200 / 255, abs=1e-4 if upload == "npy" else 0.02)
    assert judged.text.startswith("eye: ")
    assert list((home / "media").iterdir()) == []
    there.close()


def test_videos_are_kept_where_that_was_asked_for(served, home, tmp_path):
    kept = home / "media" / "kept"
    for upload, folder in (("path", kept), ("mp4", tmp_path)):
        there = remote(served, "eye", upload=upload, keep_temp_video=True, temp_video_dir=str(folder))
        assert there.score(random_episodes(2, 3))[0].failure is None
        there.close()
        files = sorted(folder.iterdir())
        assert [file.suffix for file in files] == [".mp4", ".mp4"]
        for file in files:
            file.unlink()
    kept.rmdir()


def test_a_path_that_the_server_may_not_read_is_a_failure(served, tmp_path):
    there = remote(served, "eye", upload="path", temp_video_dir=str(tmp_path))
    score = there.score(random_episodes(1, 3))[0]
    assert score.failure is not None
    assert str(tmp_path) not in score.failure.detail
    assert list(tmp_path.iterdir()) == []
    there.close()


def test_all_episodes_of_a_call_are_scored_in_one_batch(served, home):
    there = remote(served, "eye")
    before = len((home / "calls.jsonl").read_text().splitlines()) if (home / "calls.jsonl").exists() else 0
    there.score([Episode(id=str(n), task="t", frames=np.full((3, 8, 8, 3), n, np.uint8)) for n in range(12)])
    calls = [len(json.loads(line)) for line in (home / "calls.jsonl").read_text().splitlines()[before:]]
    assert calls == [12]
    assert there.client.counts["requests"] == 2
    there.close()


def test_a_model_that_is_not_there(served):
    known = "there is no model 'nobody' here; there are eye, fixed, learner, prm, resnet, states; set backend"
    with pytest.raises(ConfigError, match=known) as refused:
        remote(served, "nobody")
    assert refused.value.key == "backend"
    with pytest.raises(ConfigError, match="put its token into GUERDON_TOKEN"):
        load_remote(RemoteSettings(endpoint=served.url), token="another")
    with refuses("checkpoint_path"):
        load_reward_model("remote", "somewhere")
    with refuses("remote"):
        load_reward_model("constant", remote=RemoteSettings())


def test_evaluation_takes_a_remote_model(served, home):
    def judged(model):
        return evaluate_model(
            model, list(episodes(count=8)), kind="success", threshold=None, seed=0, reps=100,
            data_hash="x",
        )  # fmt: skip

    there = remote(served, "resnet")
    here = judged(load_reward_model("resnet", home / "model", **CPU)).to_dict()
    assert agree(judged(there).to_dict(), here)
    there.close()


def test_guerdon_evaluate_judges_models_on_a_server(served, home, tmp_path, capsys):
    model = {"endpoint": served.url, "backend": "resnet"}
    study = {
        "work_dir": str(tmp_path), "policy": {"type": "mlp"},
        "evaluate": {"data_path": str(home / "replay"), "reps": 100, "remote": {"far": model}},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    found = evaluate_study(load(Study, tmp_path / "study.yaml"))["far"][0].to_dict()
    here = load_reward_model("resnet", home / "model", **CPU)
    wanted = evaluate_model(
        here, list(read_episodes(home / "replay")), kind="success", threshold=None, seed=0, reps=100,
        data_hash=dataset_hash(home / "replay"),
    )  # fmt: skip
    assert agree(found, wanted.to_dict())
    with refuses("--only"):
        evaluate_study(load(Study, tmp_path / "study.yaml"), only=["near"])
    del study["evaluate"]["data_path"]
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    with refuses("evaluate.remote"):
        load(Study, tmp_path / "study.yaml")


def test_text_models_are_found_by_address(served, home):
    there, here = load_text_model(f"{served.url}/v1/rewards?model=prm"), load_text_model(str(home / "prm"), **CPU)
    episode = Episode(id="0", task="q", texts=("3+5=8\n", "so 8\n"))
    assert same(here.score([episode]), there.score([episode]))
    for address, words in (("http://", "not an address"), (served.url + "/elsewhere", "not a route that is known")):
        with refuses("endpoint") as refused:
            load_text_model(address)
        assert words in str(refused.value)


def test_a_robots_run_with_a_served_network_is_the_run_with_the_network_here(served, home, tmp_path):
    def run_with(name, model):
        source = {"reward_mode": "per_step", "score_every": 3, "shaping": "threshold", "model": model}
        reward = {"use_reward_model": True, "sources": {"rm": {**source, "reward_threshold": 0.5}}}
        study = clock_study(tmp_path, name=name, reward=reward, env={"frame_size": 24}, runner={"total_steps": 60})
        start(study, reader="own").run()
        return result(study)

    here = run_with("here", {"model_type": "resnet", "checkpoint_path": str(home / "model")})
    there = run_with("there", {"model_type": "remote", "endpoint": served.url, "backend": "resnet"})
    assert there == here
    assert b'"return/rm"' in here["episodes"]
    assert not here["failures"]


def test_a_model_learns_by_http_once_however_often_it_is_told(served):
    client = RewardClient(RemoteSettings(endpoint=served.url, backend="learner", tries=2))
    first = client.update(["q", "q"], ["a", "b"], [True, True])
    assert (first.updates, first.repeated, first.metrics["seen"]) == (1, False, 2.0)
    again = client.update(["q", "q"], ["a", "b"], [True, True], number=1)
    assert (again.updates, again.repeated) == (1, True)
    assert [j.score.total for j in again.judgements] == [j.score.total for j in first.judgements]
    with pytest.raises(RewardRequestError, match="other content"):
        client.update(["q"], ["different"], [True], number=1)
    before = client.rewards(["q"], ["ab"])[0]
    learnt = client.update(["q"], ["ab"], [True], when="before")
    assert learnt.judgements[0].score.total == pytest.approx(before + 1 / 1024)
    assert client.update(["q"], ["ab"], [False], when="none").updates is None
    assert client.rewards(["q"], ["aa"]) == [None]  # more than the model promised: no number
    assert client.rewards(["q"], ["ab"])[0] == pytest.approx(before + 1 / 1024)
    with pytest.raises(RewardRequestError, match=r"did not learn.* with number=3"):
        client.update(["q"], ["explode"], [True])
    other = RewardClient(RemoteSettings(endpoint=served.url, backend="learner"))
    assert other.update(["q"], ["ab"], [False]).updates == 3  # another client has numbers of its own
    other.close()
    score = RewardClient(RemoteSettings(endpoint=served.url + "/score"))
    with pytest.raises(ConfigError, match="cannot learn") as refused:
        score.update(["q"], ["a"], [True])
    assert refused.value.key == "endpoint"
    client.close()
