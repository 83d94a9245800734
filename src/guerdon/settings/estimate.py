"""What a verb will cost, before it starts: counts, seconds, bytes.

The rates are rough, from single runs on one core of a server: the demo took 13 minutes where this says 17.
This module measures nothing and starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guerdon.durations import duration
from guerdon.settings.reward import SourceSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.text_sources import judged_names
from guerdon.settings.vlm import VLMTrainSettings

SIMULATE, RENDER, SCORE, TRAIN, UPDATE = (
    5000.0,
    120.0,
    600.0,
    200.0,
    12000.0,
)  # per second: steps, frames, ...
WRITE = 90.0  # responses of about 40 tokens per second and million parameters, learning included
TRAIN_VLM = 60.0  # examples of a tiny vision-language model per second, evaluations included
_BYTES_PER_PIXEL = 1.2  # of a PNG of a rendered scene


def estimate_collect(study: Study) -> dict[str, Any]:
    """Episodes, frames, seconds and bytes of `guerdon collect`."""
    settings = study.collect
    if settings is None:
        return {}
    limit = study.env.max_episode_steps or 200
    frames = settings.episodes * (limit // settings.frame_every + 2)
    height, width = study.env.frame_size
    return {
        "episodes": settings.episodes,
        "frames": f"at most {frames}",
        "seconds": frames / RENDER + settings.episodes * limit / SIMULATE,
        "bytes": int(frames * height * width * _BYTES_PER_PIXEL),
    }


def estimate_train(study: Study) -> dict[str, Any]:
    """Models, seconds and bytes of `guerdon train`."""
    if study.text:
        return _estimate_train_text(study)
    rows = int(str(estimate_collect(study).get("frames", "2000")).split()[-1])
    seconds = 0.0
    for model in study.image_models.values():
        scale = (model.image_size[1] * model.image_size[2]) / (64 * 64)
        frames = rows * model.max_epochs if model.max_steps is None else model.max_steps * model.batch_size
        seconds += min(frames, rows * model.max_epochs) * scale / TRAIN
    seconds += sum(_vlm_seconds(model, rows) for model in study.vlm_models.values())
    return {"models": len(study.train), "seconds": seconds, "bytes": 180_000_000 * len(study.train)}


def _vlm_seconds(model: VLMTrainSettings, rows: int) -> float:
    """Of a tiny model on one core; others take as long as their hardware needs, which nobody knows here."""
    examples = rows * model.max_epochs if model.max_steps is None else model.max_steps * model.batch_size
    return min(examples, rows * model.max_epochs) * (model.nframes if model.input == "video" else 1) / TRAIN_VLM


def _estimate_train_text(study: Study) -> dict[str, Any]:
    """Models, gradient steps, seconds and bytes; of data that is not labelled yet, 5000 solutions are assumed."""
    label, steps, seconds, bytes_ = study.label, [], 0.0, 0.0
    solutions = 5000 if label is None else label.num_samples * label.num_rollouts
    for model in study.text_models.values():
        passes = model.epochs + getattr(model, "head_epochs", 0.0)
        steps.append(model.max_steps or int(passes * solutions * (1 - model.val_split) / model.batch_size) + 1)
        start = model.start(study.text_policy)
        millions = millions_of(study) if start.path == study.text_policy.path else millions_of_start(start)
        seconds += 10 + steps[-1] * model.batch_size * millions / WRITE
        bytes_ += 16e6 * millions * (1 + model.keep_checkpoints)
    return {"models": len(steps), "gradient steps": sum(steps), "seconds": seconds, "bytes": int(bytes_)}


def estimate_evaluate_text(study: Study, only: Sequence[str] = ()) -> dict[str, Any]:
    """Models, solutions and seconds of `guerdon evaluate` of a language study, as far as the file says."""
    settings = study.text_evaluate
    names = judged_names(study.train, {} if settings is None else settings.models, only)
    generated = None if settings is None else settings.generated
    families = 1 if settings is None else 0 if generated is None else len(generated.families)
    solutions = families * (200 if generated is None else generated.size)
    if families and (settings is None or settings.attacks is not None):
        solutions += 10 * (100 if settings is None or settings.attacks is None else settings.attacks.questions)
    found: dict[str, Any] = {"models": ", ".join(names), "generated solutions": solutions}
    if settings is not None:
        files = [*settings.process_bench, settings.prm_bench, settings.pairs]
        files += [] if settings.best_of_n is None else [settings.best_of_n.samples]
        found |= {"and those of": ", ".join(one for one in files if one)} if any(files) else {}
    seconds = 10 + solutions * millions_of(study) / (20 * WRITE)  # read once, nothing learnt
    return {**found, "seconds": seconds * max(len(names), 1), "bytes": 200_000 * max(len(names), 1)}


def estimate_sft(study: Study) -> dict[str, Any]:
    """Gradient steps, seconds and bytes of `guerdon train policy=sft`."""
    settings = study.sft
    if settings is None or study.data is None:
        return {}
    pairs = settings.examples or study.data.train_size
    steps = settings.max_steps or int(settings.epochs * pairs / settings.batch_size)
    millions = millions_of(study)
    return {
        "gradient steps": steps,
        "seconds": 10 + steps * settings.batch_size * millions / WRITE,
        "bytes": int(12e6 * millions),
    }


def _estimate_text(study: Study) -> dict[str, Any]:
    """Responses, seconds and bytes of a run of a language model."""
    runner = study.runner
    evaluations = runner.total_steps // runner.eval_every * runner.eval_episodes
    factor = 1.0 if study.reward_model is None or study.reward_model.rm_type == "exact" else 1.25
    factor += 0.1 * len(study.text_sources)
    millions = millions_of(study)
    return {
        "responses": runner.total_steps,
        "evaluation responses": evaluations,
        "seconds": 10 + millions * (runner.total_steps * factor + evaluations / 3) / WRITE,
        "bytes": int(16e6 * millions * (2 + runner.keep_checkpoints)),
    }


def millions_of(study: Study) -> float:
    """Parameters of a language model in millions; 500 where only its name is known."""
    return millions_of_start(
        study.sft.policy if study.sft is not None and study.sft.policy is not None else study.text_policy
    )


def millions_of_start(start: TextPolicySettings) -> float:
    """Parameters of a language model in millions; 500 where only its name is known."""
    tiny = start.tiny
    if tiny is None:
        return 500.0
    width = tiny.hidden_size
    return tiny.layers * (4 * width * width + 3 * width * tiny.intermediate) / 1e6


def estimate_run(study: Study) -> dict[str, Any]:
    """Environment steps (responses), frames, seconds and bytes of `guerdon run`."""
    if study.text:
        return _estimate_text(study)
    runner, env = study.runner, study.env
    length = env.max_episode_steps or 200
    evaluations = runner.total_steps // runner.eval_every * runner.eval_episodes * length
    frames = _frames_per_episode(study) * runner.total_steps // length
    models = len(study.reward.sources) if study.reward.use_reward_model else 0
    refits = sum(
        runner.total_steps / (env.num_envs * study.control_algorithm.rollout_steps * s.model.update_params.every)
        * s.model.update_params.steps * s.model.update_params.batch_size
        for s in study.reward.sources.values()
        if s.model.update != "none"
    )  # fmt: skip
    seconds = (
        (runner.total_steps + evaluations) / SIMULATE
        + runner.total_steps / UPDATE
        + frames / RENDER
        + frames * models / SCORE
        + refits / TRAIN
        + 10
    )
    return {
        "environment steps": runner.total_steps,
        "evaluation steps": evaluations,
        "frames": frames,
        "seconds": seconds,
        "bytes": 2_000_000 + 150_000_000 * models * (refits > 0) * runner.keep_checkpoints,
    }


def total_seconds(parts: list[dict[str, Any]], parallel: int) -> float:
    """Seconds for independent parts spread over `parallel` workers: at least the longest part."""
    seconds = [float(p.get("seconds", 0.0)) for p in parts]
    return max([sum(seconds) / max(parallel, 1), *seconds]) if seconds else 0.0


def readable(estimate: dict[str, Any]) -> list[str]:
    """Lines for a person."""
    lines = []
    for name, value in estimate.items():
        if name == "seconds":
            lines.append(f"time: about {duration(value)} on one core")
        elif name == "bytes":
            lines.append(f"disk: about {value / 1e6:.0f} MB")
        else:
            lines.append(f"{name}: {value}")
    return lines


def _frames_per_episode(study: Study) -> int:
    if not study.reward.use_reward_model:
        return 0
    length = study.env.max_episode_steps or 200
    return max((_frames_of(s, length) for s in study.reward.sources.values()), default=0)


def _frames_of(source: SourceSettings, length: int) -> int:
    if source.model.model_type in ("constant", "dummy"):
        return 0
    if source.reward_mode == "terminal":
        return 1
    return length // source.score_every + 1
