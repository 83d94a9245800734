"""Episodes kept while a policy trains: `env.data_collection`, for training episodes, evaluation episodes or both.

This module does not know the loop; it decides who records what into one data set.

    recording = open_recording(study, world, eval_world)
    evaluate_policy(eval_world, actor, episodes=20, recorder=recording.of_evaluation(step))
    recording.writer.close()
"""

from __future__ import annotations

from dataclasses import dataclass

from guerdon.collect.recorder import Recorder
from guerdon.episodes.write import EpisodeWriter
from guerdon.settings.study import Study
from guerdon.worlds.world import World


@dataclass(frozen=True)
class Recording:
    """One data set under way.

    Attributes:
        writer: writes it in the background.
        train: records the training episodes, or None.
    """

    study: Study
    writer: EpisodeWriter
    train: Recorder | None
    eval_world: World

    def of_evaluation(self, step: int) -> Recorder | None:
        """A recorder for the evaluation at this step, or None where evaluations are not recorded."""
        if self.study.env.data_collection.mode == "train":
            return None
        return _recorder(self.study, self.eval_world, self.writer, "eval", step)


def open_recording(study: Study, world: World, eval_world: World) -> Recording | None:
    """What `env.data_collection` asks for, if it is enabled.

    Raises:
        DataError: its `save_dir` holds something else, or somebody writes there.
    """
    settings = study.env.data_collection
    if not settings.enabled:
        return None
    writer = EpisodeWriter(
        settings.save_dir or "",
        camera=study.env.camera,
        robot_type=study.env.type,
        only_success=settings.only_success,
    )
    train = None if settings.mode == "eval" else _recorder(study, world, writer, "train", 0)
    return Recording(study, writer, train, eval_world)


def _recorder(study: Study, world: World, writer: EpisodeWriter, mode: str, step: int) -> Recorder:
    settings, seed = study.env.data_collection, study.runner.seed
    meta = {"mode": mode, "prefix": f"{mode}-s{seed}", "seed": seed}
    if mode == "eval":
        meta |= {"prefix": f"{mode}-s{seed}-{step:09d}", "step": step}
    return Recorder(
        world,
        writer,
        frame_every=settings.frame_every,
        keep_success=settings.sample_rate_success,
        keep_fail=0.0 if settings.only_success else settings.sample_rate_fail,
        keep_unknown=0.0 if settings.only_success else 1.0,
        meta=meta,
        seed=seed + step,
    )
