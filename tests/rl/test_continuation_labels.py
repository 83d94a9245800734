"""A progress model that keeps up by what an expert would still need: in the real loop, on Meta-World."""

import numpy as np
import pytest
import torch

from guerdon.collect.continuations import UNREACHED, Continuations
from guerdon.episodes.write import EpisodeWriter
from guerdon.models.images.backbone import ImageScorer, calibrating, to_input
from guerdon.models.images.image import ImageModelConfig, save_checkpoint
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from rl_killed import kill_at
from rl_models import SIZE, episodes
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

pytest.importorskip("metaworld")
torch.set_num_threads(1)
HORIZON = 75  # the expert needs more from some of the moments in these rollouts, less from others


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A random but calibrated progress model, and a replay for it; every scored moment is labelled."""
    monkeypatch.setattr("guerdon.rewards.refit.CONTINUATION_EVERY", 1)

    def write(horizon=HORIZON):
        torch.manual_seed(0)
        config = ImageModelConfig("progress", hidden_dim=8, image_size=(3, SIZE, SIZE), threshold=None, horizon=horizon)
        scorer = ImageScorer("resnet18", hidden_dim=8, dropout=0.1)
        with calibrating(scorer):
            scorer(to_input(torch.from_numpy(np.concatenate([e.frames for e in episodes()])), "none"))
        save_checkpoint(tmp_path / "model", scorer, config)
        with EpisodeWriter(tmp_path / "replay") as writer:
            for episode in episodes():
                writer.add(episode)

    return write


def study_of(folder, name, **given):
    return Study.model_validate(
        {
            "runner": {
                "total_steps": 80, "eval_every": 80, "eval_episodes": 2, "checkpoint_every": 40, "film_every": 0,
                "logger": {"log_path": str(folder / "runs"), "experiment_name": name, "tensorboard": False},
            },
            "env": {"task": "drawer-close", "num_envs": 2, "max_episode_steps": 20, "frame_size": SIZE},
            "algorithm": {"rollout_steps": 20, "minibatch_size": 20, "num_epochs": 1},
            "reward": {
                "use_reward_model": True,
                "reward_mode": "per_step",
                "score_every": 5,
                "shaping": "relative",
                "model": {
                    "model_type": "progress",
                    "checkpoint_path": str(folder / "model"),
                    "update": "after",
                    "labeler": "continuation",
                    "replay_path": str(folder / "replay"),
                    "update_params": {"steps": 1, "batch_size": 8, "replay_size": 30},
                },
                **given,
            },
        }
    )  # fmt: skip


@pytest.mark.slow
def test_fresh_frames_are_labelled_by_what_the_expert_needs_from_there(model, tmp_path):
    model()
    loop = Loop(study_of(tmp_path, "one"), tmp_path / "runs" / "one")
    collector, told = loop.collector, []
    trainer = loop.sources["progress"].model
    learn, seen = trainer.update, []
    trainer.update = lambda frames, targets, **kw: (told.append(targets), learn(frames, targets, **kw))[1]
    collect, moment_of, moments = collector.collect, collector.world.save_state, []
    collector.collect = lambda policy, **kw: seen.append(collect(policy, **kw)) or seen[-1]
    collector.world.save_state = lambda copy: moments.append((len(seen), copy, moment_of(copy))) or moments[-1][2]
    loop.run()
    oracle = Continuations(loop.study.env, HORIZON)
    for number, (happened, targets) in enumerate(zip(seen, told, strict=True)):
        labelled = [s for s in happened.segments if s.steps_left_F is not None]
        steps = [(s.stream, t) for s in labelled for t in s.steps_F[~np.isnan(s.steps_left_F)].tolist()]
        assert steps == [(env, t) for env in (0, 1) for t in (4, 9, 14)]  # the ends of episodes are gone
        mine = [moment for n, _, moment in sorted(moments, key=lambda m: m[:2]) if n == number]
        left = [oracle.steps_left(moment) for moment in mine]
        told_left = np.concatenate([s.steps_left_F[~np.isnan(s.steps_left_F)] for s in labelled])
        assert told_left.tolist() == [np.inf if n == UNREACHED else n for n in left]
        expected = [0.0 if n == UNREACHED else max(0.0, 1 - n / HORIZON) for n in left]
        np.testing.assert_allclose(sorted(targets), sorted(expected), rtol=1e-6)
        assert max(expected) > 0
    oracle.close()


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(model, tmp_path):
    model()
    whole, cut = study_of(tmp_path, "whole"), study_of(tmp_path, "cut")
    Loop(whole, run_folder(whole)).run()
    kill_at(Loop(cut, run_folder(cut)), "update", 2)
    Loop(cut, run_folder(cut), resume=True).run()
    one, other = ((run_folder(s) / "metrics.jsonl").read_bytes() for s in (whole, cut))
    assert one == other


def test_a_model_without_a_horizon_cannot_be_told_steps(model, tmp_path):
    model(horizon=None)
    with refuses("reward.sources.progress.model.labeler", "the progress model needs a horizon"):
        Loop(study_of(tmp_path, "none"), tmp_path / "runs" / "none")
