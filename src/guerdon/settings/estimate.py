"""What a verb will cost, before it starts: counts, seconds, bytes.

The rates are rough, from single runs on one core of a server. docs/benchmarks.md compares estimates with measurements.
This module measures nothing and starts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guerdon.durations import duration
from guerdon.errors import DataError, boundary
from guerdon.settings.data import DataSettings
from guerdon.settings.label import LabelSettings
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
START = 5.0  # seconds until the libraries are imported and a model is there
OVERHEAD = 0.15  # millions of parameters that a tiny model seems to have more, for the calls around it
ASSUMED = {  # of a model whose configuration is not here: half a billion parameters
    "hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936,
}  # fmt: skip
SOLUTION = 300  # tokens, where the data do not say
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


def estimate_train(study: Study, only: Sequence[str] = ()) -> dict[str, Any]:
    """Models, seconds and bytes of `guerdon train`, of all models or of some."""
    if study.text:
        return _estimate_train_text(study, only)
    rows = int(str(estimate_collect(study).get("frames", "2000")).split()[-1])
    seconds = 0.0
    for model in (m for name, m in study.image_models.items() if not only or name in only):
        scale = (model.image_size[1] * model.image_size[2]) / (64 * 64)
        frames = rows * model.max_epochs if model.max_steps is None else model.max_steps * model.batch_size
        seconds += min(frames, rows * model.max_epochs) * scale / TRAIN
    seconds += sum(_vlm_seconds(model, rows) for name, model in study.vlm_models.items() if not only or name in only)
    models = len(only or study.train)
    return {"models": models, "seconds": seconds, "bytes": 180_000_000 * models}


def _vlm_seconds(model: VLMTrainSettings, rows: int) -> float:
    """Of a tiny model on one core; others take as long as their hardware needs, which nobody knows here."""
    examples = rows * model.max_epochs if model.max_steps is None else model.max_steps * model.batch_size
    return min(examples, rows * model.max_epochs) * (model.nframes if model.input == "video" else 1) / TRAIN_VLM


def _estimate_train_text(study: Study, only: Sequence[str]) -> dict[str, Any]:
    """Models, gradient steps, seconds and bytes; of data that is not labelled yet, the most that there can be."""
    label, steps, seconds, bytes_ = study.label, [], 0.0, 0.0
    at_most = False
    for model in (m for name, m in study.text_models.items() if not only or name in only):
        paths = model.data_paths or (() if label is None else (str(Path(label.save_dir) / label.dataset),))
        counted = [rows_of(Path(path)) for path in paths]
        known = bool(counted) and None not in counted
        solutions = sum(n or 0 for n in counted) if known else most_solutions(label)
        at_most |= not known and model.max_steps is None
        passes = model.epochs + getattr(model, "head_epochs", 0.0)
        steps.append(model.max_steps or int(passes * solutions * (1 - model.val_split) / model.batch_size) + 1)
        start = model.start(study.text_policy)
        own = study.sft.policy if study.sft is not None and start.path == study.text_policy.path else None
        size = size_of_start(start if own is None else own.model_copy(update={"lora": start.lora}))
        seconds += START + steps[-1] * model.batch_size * text_seconds(size, study.data)
        bytes_ += text_bytes(size, 1 + model.keep_checkpoints)
    sized = {} if len(steps) != 1 else _sized(size)
    found: dict[str, Any] = {"models": len(steps), "gradient steps": sum(steps)}
    if at_most:
        found["gradient steps are at most these"] = "the data is not here yet, and repeated solutions are left out"
    return {**found, **sized, "seconds": seconds, "bytes": int(bytes_)}


def most_solutions(label: LabelSettings | None) -> int:
    """The most solutions that a `label` section gives; 5000 are assumed where nothing says it."""
    return 5000 if label is None else label.num_samples * label.num_rollouts


def rows_of(path: Path) -> int | None:
    """Rows of a file of JSON lines, or of the records in a folder of `guerdon label`; None where there is neither."""
    file = path / "records.jsonl" if path.is_dir() else path
    if not file.is_file() or file.suffix != ".jsonl":
        return None
    with file.open("rb") as lines:
        return sum(bool(line.strip()) for line in lines)


def text_bytes(size: Size, checkpoints: int) -> float:
    """Bytes of what is trained, once alone and in checkpoints with the two moments of AdamW; a tokenizer with each."""
    return 1e6 * (4 * size.trained + checkpoints * 12 * size.trained) + 5e6 * (checkpoints + 1) * (size.millions > 10)


def text_seconds(size: Size, data: DataSettings | None) -> float:
    """Seconds of one response, written or learnt from; tiny models take the time of the calls around them."""
    return (size.millions + OVERHEAD) * solution_tokens(data) / 40 / WRITE


def solution_tokens(data: DataSettings | None) -> int:
    """Tokens of a solution: of generated tasks, one for each character."""
    if data is None or data.type != "generated":
        return SOLUTION if data is None else min(SOLUTION, data.max_response_length)
    line = data.task.items + 4 if data.task.family == "swap" else 6
    return min(line * data.task.steps, data.max_response_length)


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
    seconds = START + solutions * text_seconds(size_of(study), study.data) / 3  # read once, nothing learnt
    return {**found, "seconds": seconds * max(len(names), 1), "bytes": 200_000 * max(len(names), 1)}


def estimate_sft(study: Study) -> dict[str, Any]:
    """Gradient steps, seconds and bytes of `guerdon train policy=sft`."""
    settings = study.sft
    if settings is None or study.data is None:
        return {}
    pairs = settings.examples or study.data.train_size
    steps = settings.max_steps or int(settings.epochs * pairs / settings.batch_size)
    size = size_of(study)
    return {
        "gradient steps": steps,
        **_sized(size),
        "seconds": START + steps * settings.batch_size * text_seconds(size, study.data),
        "bytes": int(text_bytes(size, 1)),
    }


def _estimate_text(study: Study) -> dict[str, Any]:
    """Responses, seconds and bytes of a run of a language model."""
    runner = study.runner
    evaluations = runner.total_steps // runner.eval_every * runner.eval_episodes
    factor = 1.0 if study.reward_model is None or study.reward_model.rm_type == "exact" else 1.25
    factor += 0.1 * len(study.text_sources)
    size = size_of(study)
    return {
        "responses": runner.total_steps,
        "evaluation responses": evaluations,
        **_sized(size),
        "seconds": START + text_seconds(size, study.data) * (runner.total_steps * factor + evaluations / 3),
        "bytes": int(text_bytes(size, runner.keep_checkpoints)),
    }


@dataclass(frozen=True)
class Size:
    """How large a language model is.

    Attributes:
        millions: parameters.
        trained: parameters that are trained, in millions: all of them, or those of an adapter.
        assumed: the name of a model whose configuration is not here, so that the size is assumed; else empty.
    """

    millions: float
    trained: float
    assumed: str = ""


def size_of(study: Study) -> Size:
    """The size of the policy that a study trains; that of its `sft` section where it starts with one."""
    policy = study.text_policy
    first = study.sft.policy if study.sft is not None else None
    if first is not None:
        policy = first.model_copy(update={"lora": policy.lora})
    return size_of_start(policy)


def size_of_start(start: TextPolicySettings) -> Size:
    """The size of a language model, from its configuration: made in code, in a folder, or in the cache of the hub."""
    tiny, shape, assumed = start.tiny, None, ""
    if tiny is not None:
        shape = {
            "hidden_size": tiny.hidden_size, "num_hidden_layers": tiny.layers, "intermediate_size": tiny.intermediate,
            "num_attention_heads": tiny.heads, "num_key_value_heads": tiny.kv_heads or tiny.heads,
            "vocab_size": 262 if tiny.tokenizer == "bytes" else len(set(tiny.alphabet)) + 8,
            "tie_word_embeddings": tiny.tie_embeddings,
        }  # fmt: skip
    elif start.path is not None:
        shape = _config_of(start.path)
    if shape is None or not {"hidden_size", "num_hidden_layers", "intermediate_size"} <= shape.keys():
        assumed = start.path or ""
        shape = ASSUMED
    width, layers, inner = shape["hidden_size"], shape["num_hidden_layers"], shape["intermediate_size"]
    heads = shape.get("num_attention_heads") or 1
    head = shape.get("head_dim") or width // heads
    queries, keys = heads * head, (shape.get("num_key_value_heads") or heads) * head
    linear = [(width, queries), (width, keys), (width, keys), (queries, width), *[(width, inner)] * 3]
    embedding = shape.get("vocab_size", 0) * width * (1 if shape.get("tie_word_embeddings", True) else 2)
    millions = (layers * (sum(a * b for a, b in linear) + 2 * width) + embedding + width) / 1e6
    lora = start.lora
    trained = millions if lora is None else layers * sum(lora.r * (a + b) for a, b in linear) / 1e6
    return Size(millions, trained, assumed)


def _config_of(path: str) -> dict[str, Any] | None:
    """The configuration of a language model in a folder (of an adapter: of its base) or in the cache of the hub."""
    folder = Path(path)
    if (folder / "adapter_config.json").is_file():
        if (folder / "base").is_dir():
            return _config_of(str(folder / "base"))
        with boundary(DataError, f"{folder / 'adapter_config.json'} cannot be read"):
            return _config_of(str(json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]))
    file = folder / "config.json"
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        with boundary(DataError, f"{path}: neither a folder nor the name of a model on the hub"):
            cached = try_to_load_from_cache(path, "config.json") if path.count("/") <= 1 else None
        file = Path(cached) if isinstance(cached, str) else file
    if not file.is_file():
        return None
    with boundary(DataError, f"{file} cannot be read"):
        found = json.loads(file.read_text(encoding="utf-8"))
        return dict(found.get("text_config") or found)


def _sized(size: Size) -> dict[str, Any]:
    """The line about a model's size."""
    words = f"{size.millions:.3g}M" + (
        "" if size.trained == size.millions else f", {size.trained:.3g}M of them trained"
    )
    return {"parameters": words + (f", assumed: {size.assumed} is not here yet" if size.assumed else "")}


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
            lines.append(f"disk: about {max(value / 1e6, 1):.0f} MB")
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
