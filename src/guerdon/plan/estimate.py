"""Estimates of what a command costs, before it starts: counts, seconds, dollars, bytes.

The rates are rough, from single runs on one core of a server. docs/benchmarks.md compares estimates with measurements.
Entries that say "at most" are upper bounds: every question tried, every solution kept and none the same as another.
Calls that fail are made again, and cost again: those are in no figure. What a labelling finds in its cache costs
nothing and is not known here.

    estimate_train(study)       # {"models": 1, "seconds": 25.0, "bytes": 45_000_000, "peak_bytes": 320_000_000}

`bytes` is what is left at the end, `peak_bytes` (where it differs) the most while the command runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guerdon.durations import duration
from guerdon.plan.estimate_text import estimate_text_run, estimate_text_train
from guerdon.plan.estimate_vla import estimate_vla, vla_bytes
from guerdon.plan.text_size import Size, size_of_start
from guerdon.settings.data import ChainSettings, DataSettings, FilesDataSettings, run_prompts
from guerdon.settings.evaluate import EvaluateTextSettings, GeneratedBenchSettings, judged_names
from guerdon.settings.label import CONTINUED, JUDGED, HttpJudgeSettings, LocalJudgeSettings, OwnJudgeSettings
from guerdon.settings.reward import SourceSettings
from guerdon.settings.reward_models import ConstantModelSettings, ProgressModelSettings, ResNetModelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings, TextTrainSettings, VLMTrainSettings
from guerdon.settings.vla_policy import VLAPolicySettings

SIMULATE, RENDER, SCORE, TRAIN, UPDATE = 5000.0, 120.0, 600.0, 200.0, 12000.0  # per second: steps, frames, ...
SLOW = {"libero": (70.0, 30.0), "maniskill": (500.0, 20.0)}  # worlds with other speeds: steps, pictures of a camera
START = 5.0  # seconds until the libraries are imported and a model is there
RUN = 3.0  # seconds of a robot's run around its steps, without imports: jobs of a study are forked with them
OVERHEAD = 0.15  # millions of parameters that a tiny model seems to have more, for the calls around it
SOLUTION = 300  # tokens, where the data do not say
WRITE = 90.0  # responses of about 40 tokens per second and million parameters, learning included
LARGE = 6.0  # times as many in models of over ten million parameters, in bfloat16: their products keep a core busy
TINY_VLA = (0.0015, 0.003)  # seconds of a decision of a tiny VLA: to take and to evaluate it, to learn from it once
TRAIN_VLM = 60.0  # examples of a tiny vision-language model per second, evaluations included
QUESTION, STEPS, PAIRS = 100, 6, 8192  # tokens, steps and demonstrations, where the data do not say
JUDGE_READS, PER_STEP_READ, PER_STEP_WRITTEN = 320, 16, 50  # tokens of the request around the text, and of verdicts
SECONDS_PER_CALL = 6.0
BACKBONES = {  # millions of weights, head included
    "resnet18": 11.3, "resnet34": 21.4, "resnet50": 24.0, "resnet101": 43.0, "resnet152": 58.7,
    "efficientnet_lite0": 3.7, "mlp": 0.15,
}  # fmt: skip
FROZEN, HEAD = (
    600.0,
    20000.0,
)  # per second: frames of 64 x 64 through a frozen backbone, examples that a head learns from
HEAD_WEIGHTS = 0.5  # millions
STATE = 256  # bytes of a state that a reward model looks at
BYTES_PER_PIXEL = 1.2  # of a PNG of a rendered scene
STEPS_BETWEEN_EVALUATIONS = 20  # of an image model, at least, where eval_every is null
EVALUATION = 100_000  # bytes of an evaluation with its pictures
RUN_FILES = 450_000  # bytes of a run without its checkpoints: policy, episodes, films, metrics


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
        "seconds": frames * _cameras(study) / _render(study) + settings.episodes * limit / _simulate(study),
        "bytes": int(frames * _cameras(study) * height * width * BYTES_PER_PIXEL),
    }


def _simulate(study: Study) -> float:
    """Environment steps per second."""
    return SLOW.get(study.env.type, (SIMULATE, RENDER))[0]


def _render(study: Study) -> float:
    """Pictures per second."""
    return SLOW.get(study.env.type, (SIMULATE, RENDER))[1]


def _cameras(study: Study) -> int:
    """Pictures of a recorded row."""
    return len(getattr(study.env, "cameras", ("the only one",)))


def estimate_train(study: Study, only: Sequence[str] = ()) -> dict[str, Any]:
    """Models, seconds and bytes of `guerdon train`, of all models or of some."""
    if study.text:
        return _estimate_train_text(study, only)
    rows = int(str(estimate_collect(study).get("frames", "2000")).split()[-1])
    parts: list[dict[str, Any]] = []
    for model in (m for name, m in study.train.items() if not only or name in only):
        assert not isinstance(model, TextTrainSettings)
        examples = min(rows * model.max_epochs, (model.max_steps or math.inf) * model.batch_size)
        if isinstance(model, VLMTrainSettings):
            seconds = examples * (model.nframes if model.input == "video" else 1) / TRAIN_VLM
            left, peak = _vlm_bytes(model)
        else:
            size = 0.0 if model.arch == "mlp" else model.image_size[1] * model.image_size[2] / (64 * 64)
            once = model.backbone_frozen or model.arch == "mlp"
            seconds = size * rows / FROZEN + examples / HEAD if once else size * examples / TRAIN
            left, peak = _image_bytes(model)
        parts.append({"seconds": seconds, "bytes": left, "peak_bytes": peak})
    left, peak = total_bytes(parts, 1)
    return {"models": len(parts), "seconds": total_seconds(parts, 1), "bytes": left, "peak_bytes": peak}


def _image_bytes(model: ResNetTrainSettings | ProgressTrainSettings) -> tuple[int, int]:
    """Bytes that a training leaves and needs: weights, and checkpoints with the two moments of AdamW.

    The best checkpoint and the newest are kept, and a third is written before one of them goes.
    """
    weights = int(4e6 * BACKBONES[model.arch])
    trained = int(4e6 * HEAD_WEIGHTS) if model.backbone_frozen else weights
    saved = model.max_epochs // (model.eval_every or 1)
    if model.max_steps is not None and model.eval_every is None:
        saved = min(saved, model.max_steps // STEPS_BETWEEN_EVALUATIONS)
    return weights, weights + trained * (8 if saved >= 3 else 3 * max(saved, 1))


def _vlm_bytes(model: VLMTrainSettings) -> tuple[int, int]:
    """As `_image_bytes`; of a model that is not here yet, half a billion parameters are assumed."""
    tiny = model.tiny and TinyModelSettings(
        hidden_size=model.tiny.hidden_size, layers=model.tiny.layers + model.tiny.vision_layers,
        heads=model.tiny.heads, intermediate=model.tiny.intermediate, tokenizer="bytes",
    )  # fmt: skip
    size = size_of_start(TextPolicySettings(path=model.path, tiny=tiny, lora=model.lora))
    base = size.millions if tiny is not None else 0.0  # a model that was read stays where it is
    return int(4e6 * (size.trained + base)), int(4e6 * (9 * size.trained + 2 * base))


def _estimate_train_text(study: Study, only: Sequence[str]) -> dict[str, Any]:
    """Models, gradient steps, seconds and bytes; of data that is not labelled yet, the most that there can be."""
    label, steps, seconds, bytes_ = study.label, [], 0.0, 0.0
    gpu: list[dict[str, str]] = []
    at_most = False
    for model in (m for name, m in study.text_models.items() if not only or name in only):
        paths = model.data_paths or (() if label is None else (str(Path(label.save_dir) / label.dataset),))
        solutions = rows_of(paths)
        if solutions is None:  # the data is not here yet
            solutions = 5000 if label is None else label.num_samples * label.num_rollouts
            at_most |= model.max_steps is None
        passes = model.epochs + getattr(model, "head_epochs", 0.0)
        steps.append(model.max_steps or int(passes * solutions * (1 - model.val_split) / model.batch_size) + 1)
        start = model.start(study.text_default)
        own = study.sft.policy if study.sft is not None and start.path == study.text_default.path else None
        size = size_of_start(start if own is None else own.model_copy(update={"lora": start.lora}))
        seconds += START + steps[-1] * model.batch_size * text_seconds(size, study.data)
        bytes_ += text_bytes(size, 1 + model.keep_checkpoints)
        policy = start if own is None else own.model_copy(update={"lora": start.lora})
        learnt, written = steps[-1] * model.batch_size, solution_tokens(study.data)
        gpu.append(estimate_text_train(model, policy, solutions=learnt, written=written))
    found: dict[str, Any] = {"models": len(steps), "gradient steps": sum(steps)}
    if at_most:
        found["gradient steps are at most these"] = "the data is not here yet, and repeated solutions are left out"
    if len(steps) == 1:
        found |= {"parameters": str(size), **gpu[0]}
    return {**found, "seconds": seconds, "bytes": int(bytes_)}


def rows_of(paths: Sequence[str]) -> int | None:
    """Rows of files of JSON lines, or of the records in folders of `guerdon label`; None where one is neither."""
    rows = 0
    for path in map(Path, paths):
        file = path / "records.jsonl" if path.is_dir() else path
        if not file.is_file() or file.suffix != ".jsonl":
            return None
        with file.open("rb") as lines:
            rows += sum(bool(line.strip()) for line in lines)
    return rows if paths else None


def text_bytes(size: Size, checkpoints: int) -> float:
    """Bytes of what is trained, once alone and in checkpoints with the two moments of AdamW; a tokenizer with each."""
    return 1e6 * (4 * size.trained + checkpoints * 12 * size.trained) + 5e6 * (checkpoints + 1) * (size.millions > 10)


def text_seconds(size: Size, data: DataSettings | None) -> float:
    """Seconds of one response, written or learnt from; tiny models take the time of the calls around them."""
    rate = WRITE * (LARGE if size.millions > 10 else 1.0)
    return (size.millions + OVERHEAD) * solution_tokens(data) / 40 / rate


def solution_tokens(data: DataSettings | None) -> int:
    """Tokens of a solution: of generated tasks one for each character, of those in sentences about 20 for each line."""
    if data is None or data.type != "generated":
        return SOLUTION if data is None else min(SOLUTION, data.max_response_length)
    line = data.task.items + 4 if data.task.family == "swap" else 20 if data.task.family == "story" else 6
    return min(line * data.task.steps, data.max_response_length)


def estimate_evaluate(study: Study, only: Sequence[str] = ()) -> dict[str, Any]:
    """Models and seconds of `guerdon evaluate`; of a language study also solutions, as far as the file says."""
    if not study.text:
        models = only or [*study.train, *study.control_evaluate.remote]
        frames = [name for name in models if getattr(study.train.get(name), "arch", None) != "mlp"]
        return {"models": len(models), "seconds": len(models) + 20.0 * len(frames)}
    generated = GeneratedBenchSettings(families=(ChainSettings(),))
    settings = study.text_evaluate or EvaluateTextSettings(aggregation="min", generated=generated)
    names = judged_names(study.train, settings.models, only)
    solutions = 0
    if settings.generated is not None:
        solutions = len(settings.generated.families) * settings.generated.size
        solutions += 0 if settings.attacks is None else 10 * settings.attacks.questions
    files = [*settings.process_bench, settings.prm_bench, settings.pairs]
    files += [] if settings.best_of_n is None else [settings.best_of_n.samples]
    size = size_of(study) if study.text_default.named else _size_of_first(study, names, settings)
    seconds = START + solutions * text_seconds(size, study.data) / 3  # read once, nothing learnt
    return {
        "models": ", ".join(names),
        "generated solutions": solutions,
        **({"and those of": ", ".join(one for one in files if one)} if any(files) else {}),
        "seconds": seconds * max(len(names), 1),
        "bytes": 200_000 * max(len(names), 1),
    }


def _size_of_first(study: Study, names: Sequence[str], settings: EvaluateTextSettings) -> Size:
    """The size of the first model that is judged, in a study without a policy."""
    third = settings.models.get(names[0])
    own = study.text_models[names[0]].start(study.text_default) if third is None else None
    return size_of_start(own or TextPolicySettings(path=third.path if third else None))


def estimate_sft(study: Study) -> dict[str, Any]:
    """Gradient steps, seconds and bytes of `guerdon train policy=sft`."""
    settings = study.sft
    if settings is None or study.data is None:
        return {}
    pairs = settings.examples or (study.data.train_size if study.data.type == "generated" else PAIRS)
    steps = settings.max_steps or int(settings.epochs * pairs / settings.batch_size)
    size = size_of(study)
    return {
        "gradient steps": steps,
        "parameters": str(size),
        "seconds": START + steps * settings.batch_size * text_seconds(size, study.data),
        "bytes": int(text_bytes(size, 0)),
        "peak_bytes": int(text_bytes(size, 1)),
    }


def size_of(study: Study) -> Size:
    """The size of the policy that a study trains; that of its `sft` section where it starts with one."""
    policy = study.text_policy
    first = study.sft.policy if study.sft is not None else None
    if first is not None:
        policy = first.model_copy(update={"lora": policy.lora})
    return size_of_start(policy)


def estimate_run(study: Study) -> dict[str, Any]:
    """Environment steps (responses), frames, seconds and bytes of `guerdon run`."""
    runner, env, sources = study.runner, study.env, study.reward.sources
    used = list(sources.values()) if study.reward.use_reward_model else []
    evaluations = runner.total_steps // runner.eval_every * runner.eval_episodes
    if study.text:
        costs = {"prime": 0.25, "value": 0.25, "normal": 0.25, "exact": 0.0, "tabular": 0.0}
        factor = 1.0 + sum(costs.get(source.model.model_type, 0.1) for source in study.text_sources.values())
        size = size_of(study)
        responses = runner.total_steps * factor + evaluations / 3
        return {
            "responses": runner.total_steps,
            "evaluation responses": evaluations,
            "parameters": str(size),
            **estimate_text_run(study, written=solution_tokens(run_prompts(study.data))),
            "seconds": START + text_seconds(size, study.data) * responses,
            "bytes": int(text_bytes(size, runner.keep_checkpoints)),
        }
    length = env.max_episode_steps or 200
    evaluations *= length
    seeing = [source for source in used if not _looks_at_states(study, source)]
    frames = max((_frames_of(source, length) for source in seeing), default=0) * runner.total_steps // length
    refits = sum(
        runner.total_steps / (env.num_envs * study.control_algorithm.rollout_steps * m.update_params.every)
        * m.update_params.steps * m.update_params.batch_size / (HEAD if _looks_at_states(study, s) else TRAIN)
        for s in sources.values()
        if (m := s.refitted) is not None
    )  # fmt: skip
    steps = (runner.total_steps + evaluations) / _simulate(study) + runner.total_steps / UPDATE
    steps += _policy_that_sees(study, runner.total_steps, evaluations)
    left, peak = _run_bytes(study)
    return {
        "environment steps": runner.total_steps,
        "evaluation steps": evaluations,
        "frames": frames,
        **estimate_vla(study),
        "seconds": steps + frames / _render(study) + frames * len(seeing) / SCORE + refits + RUN,
        "bytes": left,
        "peak_bytes": peak,
    }


def _looks_at_states(study: Study, source: SourceSettings) -> bool:
    """Whether the reward model of a source looks at states, as far as the study trains it or says so."""
    model = source.model
    if not isinstance(model, ResNetModelSettings | ProgressModelSettings):
        return False
    made = {trained.save_dir: trained.arch for trained in study.image_models.values()}.get(model.checkpoint_path)
    return "mlp" in (model.arch, made)


def _policy_that_sees(study: Study, steps: int, evaluations: int) -> float:
    """Seconds that a policy's own pictures take, and the network of a tiny VLA; that of a large one is not counted."""
    policy, chunk = study.control_policy, 1
    seconds = 0.0
    if isinstance(policy, VLAPolicySettings):
        chunk = policy.num_action_chunks
        act, learn = TINY_VLA if policy.tiny is not None else (0.0, 0.0)
        seconds = (steps * (act + learn * study.control_algorithm.num_epochs) + evaluations * act) / chunk
    elif study.env.observation != "pixels":
        return 0.0
    return seconds + (steps + evaluations) / chunk / _render(study)


def _run_bytes(study: Study) -> tuple[int, int]:
    """Bytes that a run of a robot leaves and needs: reward models that it refits are in its checkpoints.

    A checkpoint is written before the oldest goes.
    """
    runner = study.runner
    trained = {model.save_dir: model for model in study.image_models.values()}
    weights = state = 0
    for source in study.reward.sources.values():
        if (model := source.refitted) is not None:
            made = trained.get(model.checkpoint_path)
            arch, size = (made.arch, made.image_size) if made is not None else ("resnet18", (3, 128, 128))
            parameters = int(4e6 * BACKBONES[model.arch or arch])
            weights += parameters
            state += 3 * parameters + model.update_params.replay_size * (
                STATE if (model.arch or arch) == "mlp" else math.prod(model.image_size or size)
            )
    policy, saved = vla_bytes(study)
    state += saved
    written = -(-runner.total_steps // runner.checkpoint_every)
    left = RUN_FILES + policy + state * min(runner.keep_checkpoints, written) + weights * runner.save_reward_models
    return left, max(left, RUN_FILES + policy + state * min(max(runner.keep_checkpoints, 1) + 1, written))


def estimate_label(study: Study) -> dict[str, Any]:
    """Texts to sample, calls, tokens, dollars, seconds and bytes of `guerdon label`."""
    settings, data = study.label, study.data or FilesDataSettings(train_files=("none",))
    if settings is None:
        return {}
    given = rows_of(settings.data_paths)
    if settings.data_paths and not given:
        return {"solutions": f"those of {', '.join(settings.data_paths)}, not counted here", "seconds": START}
    known = data if data.type == "generated" else None
    steps, length = known.task.steps if known else STEPS, solution_tokens(data)
    most = known.train_size if known else math.inf
    solutions, tried = given or int(min(settings.num_samples, most)) * settings.num_rollouts, 0
    found: dict[str, Any] = {"solutions": f"at most {solutions}"}
    if not given:
        tried = 0 if settings.mining is None else int(min(settings.mining.max_questions, most))
        questions = f"at most {int(min(settings.num_samples, most))}"
        found = {"questions": questions + (f", out of at most {tried} tried" if tried else ""), **found}
    sampled = tried * settings.mining.attempts if settings.mining is not None else 0
    sampled += solutions if settings.method == 1 and not given else 0
    prefixes = math.ceil(math.log2(max(steps, 2))) if settings.labeler == "binary_search" else max(steps - 1, 1)
    continued = solutions * prefixes * settings.monte_carlo.completions if settings.labeler in CONTINUED else 0
    judged = solutions if settings.labeler in JUDGED else 0
    written = solutions if settings.method == 2 else 0
    read = judged * (JUDGE_READS + QUESTION + length + PER_STEP_READ * steps) + written * (QUESTION + 50)
    answered = judged * (20 + PER_STEP_WRITTEN * steps) + written * length
    calls = judged + written
    size = size_of(study)
    seconds = START + (sampled + continued / 2) * text_seconds(size, data)
    if sampled or continued:
        if size.assumed:
            found["parameters"] = str(size)
        found["texts to sample"] = f"at most {sampled + continued}"
    judge = settings.judge
    if calls and isinstance(judge, LocalJudgeSettings):
        seconds += answered / length * text_seconds(size_of_start(TextPolicySettings(path=judge.model)), data)
    elif calls and isinstance(judge, OwnJudgeSettings):
        found["calls"] = f"at most {calls}, to {judge.model_name}"
    elif calls and isinstance(judge, HttpJudgeSettings):
        prices = judge.prices
        seconds += calls / min(judge.concurrency / SECONDS_PER_CALL, (judge.requests_per_minute or math.inf) / 60)
        found["calls"] = (
            f"at most {calls}, to {judge.model_name} at {judge.url}; each that fails is made again, "
            f"up to {judge.retries} times"
        )
        found["tokens"] = f"about {_short(read)} read and {_short(answered)} written"
        limit = judged * judge.max_tokens + written * data.max_response_length
        usual, long = ((read * prices[0] + n * prices[1]) / 1e6 for n in (answered, limit))
        found["dollars"] = (
            f"about ${usual:.2f} if every solution is kept and no call fails; "
            f"${long:.2f} if every reply is as long as it may be"
        ) + ("" if settings.max_usd is None else f"; stops before ${settings.max_usd:.2f}")
    bytes_ = solutions * (800 + steps * (150 + 2 * length)) + 2 * (sampled + continued) * length
    return {**found, "seconds": seconds, "bytes": bytes_}


def estimate_search(study: Study) -> dict[str, Any]:
    """Questions, solutions, seconds and bytes of `guerdon search`."""
    settings, data = study.search, study.data
    if settings is None or data is None:
        return {}
    if settings.questions is not None:
        questions = rows_of((settings.questions,))
    else:
        questions = 0 if data.type != "generated" and getattr(data, data.validation_key) else data.val_size
    if not questions:
        return {"questions": f"those of {settings.questions or 'data'}, not counted here", "seconds": START}
    questions = min(questions, settings.limit or questions)
    solutions = questions * settings.n
    rounds = 1 if settings.method == "best_of_n" else min(settings.rounds, _steps(data))
    found: dict[str, Any] = {"questions": questions, "solutions to sample": f"at most {solutions}"}
    if rounds > 1:
        found["extensions by a step"] = f"about {solutions * rounds}"
    size = size_of(study)
    if size.assumed:
        found["parameters"] = str(size)
    seconds = START + solutions * text_seconds(size, data)
    return {**found, "seconds": seconds, "bytes": questions * (400 + 4 * solution_tokens(data))}


def _steps(data: DataSettings) -> int:
    return data.task.steps if data.type == "generated" else STEPS


def _short(tokens: int) -> str:
    return f"{tokens / 1e6:.2f}M" if tokens >= 100_000 else f"{tokens / 1e3:.1f}k"


def estimate(study: Study, command: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """Counts, seconds and bytes of a command.

    Args:
        study: its configuration.
        command: `collect`, `sft`, `label`, `train`, `evaluate`, `search` or `run`.
        only: models that `train` and `evaluate` are limited to; empty: all.
    """
    if command in ("train", "evaluate"):
        return (estimate_train if command == "train" else estimate_evaluate)(study, only)
    found = {
        "collect": estimate_collect, "sft": estimate_sft, "label": estimate_label, "search": estimate_search,
        "run": estimate_run,
    }  # fmt: skip
    return found[command](study)


def total_seconds(parts: list[dict[str, Any]], parallel: int) -> float:
    """Seconds for independent parts spread over `parallel` workers: at least the longest part."""
    seconds = [float(p.get("seconds", 0.0)) for p in parts]
    return max([sum(seconds) / max(parallel, 1), *seconds]) if seconds else 0.0


def total_bytes(parts: list[dict[str, Any]], parallel: int) -> tuple[int, int]:
    """Bytes that independent parts leave, and the most there can be while `parallel` of them run at a time."""
    left = sum(int(p.get("bytes", 0)) for p in parts)
    more = sorted((int(p["peak_bytes"]) - int(p["bytes"]) for p in parts if "peak_bytes" in p), reverse=True)
    return left, left + sum(more[: max(parallel, 1)])


def readable(estimate: dict[str, Any]) -> list[str]:
    """Lines for a person."""
    lines = []
    for name, value in estimate.items():
        if name == "seconds":
            lines.append(f"time: about {duration(value)} on one core")
        elif name == "bytes":
            left, peak = (max(size / 1e6, 1) for size in (value, estimate.get("peak_bytes", value)))
            most = f"at most about {peak:.0f} MB while it runs, " if round(peak) > round(left) else ""
            lines.append(f"disk: {most}about {left:.0f} MB{' left at the end' if most else ''}")
        elif name != "peak_bytes":
            lines.append(f"{name}: {value}")
    return lines


def _frames_of(source: SourceSettings, length: int) -> int:
    if isinstance(source.model, ConstantModelSettings):
        return 0
    if source.reward_mode == "terminal":
        return 1
    return length // source.score_every + 1
