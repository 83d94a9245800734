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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from guerdon.compute.packaged import PREFIX
from guerdon.files.bounds import Unparsed, bounded_lines
from guerdon.pages.durations import duration
from guerdon.plan.gpu import (
    estimate_text_run,
    estimate_text_train,
    estimate_vla,
    learning_seconds,
    started,
    vla_bytes,
)
from guerdon.plan.gpu_time import uncounted, written
from guerdon.plan.text_size import Size, size_of_start
from guerdon.settings.agent import AgentSettings
from guerdon.settings.data import ChainSettings, DataSettings, FilesDataSettings, run_prompts
from guerdon.settings.evaluate import EvaluateTextSettings, GeneratedBenchSettings, judged_names
from guerdon.settings.gpus import gpus_named
from guerdon.settings.label import (
    CONTINUED,
    JUDGED,
    HttpJudgeSettings,
    JudgeSettings,
    LabelSettings,
    LocalJudgeSettings,
    OwnJudgeSettings,
)
from guerdon.settings.reward_models import ConstantModelSettings, ProgressModelSettings, ResNetModelSettings
from guerdon.settings.reward_source import RobotSource
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings, TextTrainSettings, VLMTrainSettings
from guerdon.settings.vla_policy import VLAPolicySettings

SPEED = {"libero": (70.0, 30.0), "maniskill": (500.0, 20.0)}  # environment steps, and pictures of a camera, per second
OTHER_SPEED = 5000.0, 120.0
SCORE, TRAIN, UPDATE = 600.0, 200.0, 12000.0  # per second: frames scored, examples learned from, steps of PPO
REPLAY = 200.0  # gradient steps of SAC per second, of networks of 128 x 128
TRAIN_VLM = 60.0  # examples of a tiny vision-language model per second, evaluations included
HEAD, HEAD_WEIGHTS = 20000.0, 0.5  # examples per second that a head learns from, its weights in millions
TINY_VLA = (0.0015, 0.003)  # seconds of a decision of a tiny VLA: to take and to evaluate it, to learn from it once
START = 5.0  # seconds until the libraries are imported and a model is there
RUN = 3.0  # seconds of a robot's run around its steps, without imports: jobs of a study are forked with them
OVERHEAD = 0.15  # millions of parameters that a tiny model seems to have more, for the calls around it
WRITE = 90.0  # responses of about 40 tokens per second and million parameters, learning included
LARGE = 6.0  # times as many in models of over ten million parameters, in bfloat16: their products keep a core busy
ASSUMED_SOLUTIONS = 5000  # that a model learns from, where its data is not here and nothing makes it
SOLUTION, QUESTION, STEPS, PAIRS = 300, 100, 6, 8192  # tokens, steps and demonstrations, where the data do not say
JUDGE_READS, PER_STEP_READ, PER_STEP_WRITTEN = 320, 16, 50  # tokens of the request around the text, and of judgements
SECONDS_PER_CALL = 6.0
BACKBONES = {  # millions of weights, head included
    "resnet18": 11.3, "resnet34": 21.4, "resnet50": 24.0, "resnet101": 43.0, "resnet152": 58.7,
    "efficientnet_lite0": 3.7, "mlp": 0.15,
}  # fmt: skip
TINY_VLM = 1_000_000  # bytes of the weights of a tiny vision-language model
STATE = 256  # bytes of a state that a reward model looks at
BYTES_PER_PIXEL = 1.2  # of a PNG of a rendered scene
STEPS_BETWEEN_EVALUATIONS = 20  # of an image model, at least, where eval_every is null
EVALUATION = 100_000  # bytes of an evaluation with its pictures
RUN_FILES = 450_000  # bytes of a run without its checkpoints: policy, episodes, videos, metrics
UNCOUNTED = "not known, since a part of it is not"
AT_ONCE = 256  # responses that a GPU writes at a time outside of runs
NO_RESULTS = "unknown: what tools, a program or a world add"
NO_TOOLS = "not known, and not counted: the time of tools, a program or a world"
NO_LIMIT = "unknown: episodes have no time limit (env.max_episode_steps)"


def estimate_collect(study: Study) -> dict[str, Any]:
    """Episodes, frames, seconds and bytes of `guerdon collect`."""
    settings = study.collect
    if settings is None:
        return {}
    simulate, render = SPEED.get(study.env.type, OTHER_SPEED)
    limit, (height, width) = study.env.max_episode_steps, study.env.frame_size
    if limit is None:
        return {"episodes": settings.episodes, "frames": NO_LIMIT, "seconds": None, "bytes": None}
    frames = settings.episodes * (limit // settings.frame_every + 2)
    pictures = frames * len(getattr(study.env, "cameras", ("the only one",)))
    return {
        "episodes": settings.episodes,
        "frames": f"at most {frames}",
        "seconds": pictures / render + settings.episodes * limit / simulate,
        "bytes": int(pictures * height * width * BYTES_PER_PIXEL),
    }


def _rows_collected(study: Study) -> int:
    """Rows of a training, as far as the file says how many are collected."""
    said = str(estimate_collect(study).get("frames", "2000")).split()[-1]
    return int(said) if said.isdecimal() else 2000


def estimate_train(study: Study, only: Sequence[str] = ()) -> dict[str, Any]:
    """Models, seconds and bytes of `guerdon train`, of all models or of some."""
    if study.text:
        return _estimate_train_text(study, only)
    rows = _rows_collected(study)
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
            seconds = size * rows / SCORE + examples / HEAD if once else size * examples / TRAIN
            left, peak = _image_bytes(model)
        parts.append({"seconds": seconds, "bytes": left, "peak_bytes": peak})
    left, peak = total_bytes(parts, 1)
    return {"models": len(parts), "seconds": total_seconds(parts, 1), "bytes": left, "peak_bytes": peak}


def estimate_bc(study: Study) -> dict[str, Any]:
    """Seconds and bytes of `guerdon train policy=bc`, as far as the data are collected by the same file."""
    rows = _rows_collected(study)
    return {} if study.bc is None else {"seconds": rows * study.bc.epochs / HEAD, "bytes": RUN_FILES}


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
    if model.tiny is not None:
        return TINY_VLM, 9 * TINY_VLM
    trained = size_of_start(TextPolicySettings(path=model.path, lora=model.lora)).trained  # what was read stays there
    return int(4e6 * trained), int(36e6 * trained)


def _estimate_train_text(study: Study, only: Sequence[str]) -> dict[str, Any]:
    """Models, gradient steps, seconds and bytes; of data that is not labelled yet, the most that there can be."""
    optimizer_steps, seconds, bytes_ = 0, 0.0, 0.0
    notes: dict[str, str] = {}
    models = [m for name, m in study.text_models.items() if not only or name in only]
    for model in models:
        solutions, are_here = _solutions_of(study, model)
        if not are_here and model.max_steps is None and study.label is not None:
            missing = "the data is not here yet, and repeated solutions are left out"
            notes["gradient steps are at most these"] = missing
        elif not are_here and model.max_steps is None:
            notes["gradient steps are assumed"] = f"the data is not here yet: {ASSUMED_SOLUTIONS:,} solutions"
        passes = model.epochs + getattr(model, "head_epochs", 0.0)
        own = model.max_steps or int(passes * solutions * (1 - model.val_split) / model.batch_size) + 1
        start = _start_of(study, model)
        size, learned = size_of_start(start), own * model.batch_size
        gpu = estimate_text_train(model, start, solutions=learned, written=solution_tokens(study.data))
        on_gpus = gpu.pop("seconds", None)
        if start.gpus is None or on_gpus is None:
            on_gpus = learned * text_seconds(size, study.data)  # on a core
        optimizer_steps += own
        seconds += START + on_gpus
        bytes_ += text_bytes(size, 1 + model.keep_checkpoints)
        if len(models) == 1:
            notes |= {"parameters": str(size), **gpu}
    found = {"models": len(models), "gradient steps": optimizer_steps, **notes, "seconds": seconds}
    return {**found, **computed_on(study.text_default.gpus), "bytes": int(bytes_)}


def _solutions_of(study: Study, model: TextTrainSettings) -> tuple[int, bool]:
    """Solutions that a model learns from, and whether they are here; else the most that `label` makes, or a guess."""
    label = study.label
    labelled = () if label is None else (str(Path(label.save_dir) / label.dataset),)
    found = rows_of(model.data_paths or labelled)
    if found is not None:
        return found, True
    return ASSUMED_SOLUTIONS if label is None else label.num_samples * label.num_rollouts, False


def _start_of(study: Study, model: TextTrainSettings) -> TextPolicySettings:
    """The language model that a reward model starts from; that of the `sft` section where the study trains it first."""
    start = model.start(study.text_default)
    first = None if study.sft is None else study.sft.policy
    if first is None or start.path != study.text_default.path:
        return start
    return first.model_copy(update={"lora": start.lora})


def rows_of(paths: Sequence[str]) -> int | None:
    """Rows of files of JSON lines, or of the records in folders of `guerdon label`; None where one is neither."""
    rows = 0
    for path in map(Path, paths):
        file = path / "records.jsonl" if path.is_dir() else path
        if not file.is_file() or file.suffix != ".jsonl":
            return None
        with file.open("rb") as lines:
            rows += sum(isinstance(line, Unparsed) or bool(line.strip()) for line in bounded_lines(lines))
    return rows if paths else None


def text_bytes(size: Size, checkpoints: int) -> float:
    """Bytes of what is trained, once alone and in checkpoints with the two moments of AdamW; a tokenizer with each."""
    return 1e6 * (4 * size.trained + checkpoints * 12 * size.trained) + 5e6 * (checkpoints + 1) * (size.millions > 10)


def text_seconds(size: Size, data: DataSettings | None, gpus: str | None = None) -> float:
    """Seconds of one response, written or learned from; tiny models take the time of the calls around them.

    On GPUs it is the time of one that writes `AT_ONCE` responses at a time: their number does not count, as one process
    writes.
    """
    if gpus is not None:
        return written(size.shape, gpus_named(gpus)[1], rows=AT_ONCE, tokens=solution_tokens(data)) / AT_ONCE
    rate = WRITE * (LARGE if size.millions > 10 else 1.0)
    return (size.millions + OVERHEAD) * solution_tokens(data) / 40 / rate


def computed_on(gpus: str | None, *, alone: bool = False) -> dict[str, str]:
    """What the time of an estimate is for, where GPUs are named.

    Args:
        gpus: as `policy.gpus`.
        alone: one process computes, whatever their number.
    """
    if gpus is None:
        return {}
    count, name = gpus_named(gpus)
    return {"computed on": f"{1 if alone else count} x {name}"}


def solution_tokens(data: DataSettings | None) -> int:
    """Tokens of a solution: of generated tasks one for each character, of those in sentences about 20 for each line."""
    if data is None:
        return SOLUTION
    if data.type != "generated":
        return min(SOLUTION, data.max_response_length)
    line = 6
    if data.task.family == "swap":
        line = data.task.items + 4
    elif data.task.family == "story":
        line = 20
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
    files = data_files(settings)
    if study.text_default.named:
        size = size_of(study)
    elif (third := settings.models.get(names[0])) is not None:
        elsewhere = Path(third.path).is_file() or (":" in third.path and not third.path.startswith(PREFIX))
        tiny = TextPolicySettings(tiny=TinyModelSettings())  # a judge, a server or a factory: no weights are read here
        size = size_of_start(tiny if elsewhere else TextPolicySettings(path=third.path))
    else:
        size = size_of_start(study.text_models[names[0]].start(study.text_default))
    gpus = study.text_default.gpus
    seconds = START + solutions * text_seconds(size, study.data, gpus) / 3  # read once, nothing learned
    return {
        "models": ", ".join(names),
        "generated solutions": solutions,
        **({"and those of": ", ".join(files)} if files else {}),
        "seconds": seconds * max(len(names), 1),
        **computed_on(gpus, alone=True),
        "bytes": 200_000 * max(len(names), 1),
    }


def data_files(settings: EvaluateTextSettings) -> list[str]:
    """The files, folders and hub data sets that an evaluation of text names."""
    samples = None if settings.best_of_n is None else settings.best_of_n.samples
    named = (*settings.process_bench, settings.prm_bench, settings.pairs, settings.labels, settings.turns, samples)
    return [path for path in named if path]


def estimate_sft(study: Study) -> dict[str, Any]:
    """Gradient steps, seconds and bytes of `guerdon train policy=sft`."""
    settings = study.sft
    if settings is None or study.data is None:
        return {}
    pairs = settings.examples or (study.data.train_size if study.data.type == "generated" else PAIRS)
    optimizer_steps = settings.max_steps or int(settings.epochs * pairs / settings.batch_size)
    size, start = size_of(study), started(study)
    learned = optimizer_steps * settings.batch_size
    if start.gpus is None:
        seconds = learned * text_seconds(size, study.data)
    else:
        again = (settings.policy or start).gradient_checkpointing
        seconds = learning_seconds(size, start.gpus, learned * solution_tokens(study.data), again=again)
    return {
        "gradient steps": optimizer_steps,
        "parameters": str(size),
        "seconds": START + seconds,
        **computed_on(start.gpus),
        "bytes": int(text_bytes(size, 0)),
        "peak_bytes": int(text_bytes(size, 1)),
    }


def size_of(study: Study) -> Size:
    """The size of the policy that a study trains; that of its `sft` section where it starts with one."""
    return size_of_start(started(study))


def estimate_run(study: Study) -> dict[str, Any]:
    """Environment steps (responses), frames, seconds and bytes of `guerdon run`."""
    runner = study.runner
    evaluations = -(-runner.total_steps // runner.eval_every) * runner.eval_episodes  # the last one at the end
    return _estimate_text_run(study, evaluations) if study.text else _estimate_robot_run(study, evaluations)


def _estimate_text_run(study: Study, evaluations: int) -> dict[str, Any]:
    """As `estimate_run`, with the number of responses of all evaluations."""
    runner = study.runner
    costs = {"prime": 0.25, "value": 0.25, "normal": 0.25, "exact": 0.0}
    factor = 1.0 + sum(costs.get(source.model.model_type, 0.1) for source in study.text_sources.values())
    size = size_of(study)
    responses = runner.total_steps * factor + evaluations / 3
    data = run_prompts(study.data)
    written = episode_tokens(study.agent, data)
    gpu = estimate_text_run(study, written=written)
    one_core = START + text_seconds(size, data) * written / solution_tokens(data) * responses
    return {
        **_answered(study, data, runner.total_steps, evaluations),
        "parameters": str(size),
        **gpu,
        **_run_time(study, gpu, one_core),
        "bytes": int(text_bytes(size, runner.keep_checkpoints)),
    }


def _estimate_robot_run(study: Study, evaluations: int) -> dict[str, Any]:
    """As `estimate_run`, with the number of episodes of all evaluations; without a limit of steps little is known."""
    steps, length = study.runner.total_steps, study.env.max_episode_steps
    episodes = evaluations + study.runner.episodes_of_best
    frames = _frames_looked_at(study, steps, length or 1)
    gpu = estimate_vla(study)
    if "seconds" in gpu and length:  # and reward models of pictures, on cores
        gpu["seconds"] += _scoring_seconds_beside(study, steps, length)
    known: dict[str, Any] = {"evaluation steps": NO_LIMIT, "frames": NO_LIMIT if frames else 0}
    time: dict[str, Any] = {"seconds": None}
    if length:
        known = {"evaluation steps": episodes * length, "frames": frames}
        time = _run_time(study, gpu, _robot_seconds(study, steps, episodes * length, frames))
    left, peak = _run_bytes(study)
    return {"environment steps": steps, **known, **gpu, **time, "bytes": left, "peak_bytes": peak}


def _frames_looked_at(study: Study, steps: int, length: int) -> int:
    """Frames of a run that are drawn for the reward model that needs the most."""
    return max(_frames_by_source(study, length), default=0) * steps // length


def _frames_by_source(study: Study, length: int) -> list[int]:
    """Frames of an episode that each source in use looks at, except those that look at states."""
    return [_frames_of(source, length) for source in _used(study) if _arch(study, source) != "mlp"]


def _scoring_seconds_beside(study: Study, steps: int, length: int) -> float:
    """Seconds that reward models of pictures take which the time on GPUs does not count."""
    elsewhere = set(uncounted(study))
    here = [_frames_of(source, length) for name, source in study.robot_sources.items() if name not in elsewhere]
    looked_at = sum(here) * steps // length if _used(study) else 0
    render = SPEED.get(study.env.type, OTHER_SPEED)[1]
    return looked_at * (1 / render + 1 / SCORE) + _refit_seconds(study)


def _robot_seconds(study: Study, steps: int, evaluated: int, frames: int) -> float:
    """Seconds of a run on one core.

    Args:
        study: the configuration.
        steps: of the environment, to learn from.
        evaluated: steps of evaluations.
        frames: drawn for reward models.
    """
    simulate, render = SPEED.get(study.env.type, OTHER_SPEED)
    chunk = getattr(study.policy, "num_action_chunks", 1)
    seconds = (steps + evaluated) / simulate + steps / UPDATE + RUN
    seconds += frames / render + frames * len(_frames_by_source(study, 1)) / SCORE + _refit_seconds(study)
    if isinstance(study.policy, VLAPolicySettings) or study.env.observation == "pixels":
        seconds += (steps + evaluated) / chunk / render
    if getattr(study.policy, "tiny", None) is not None:
        act, learn = TINY_VLA
        seconds += (steps * (act + learn * study.on_policy.num_epochs) + evaluated * act) / chunk
    return seconds + steps * getattr(study.algorithm, "utd_ratio", 0) / REPLAY


def episode_tokens(agent: AgentSettings | None, data: DataSettings) -> int:
    """Tokens that the model writes in a response, or in a conversation with an agent that has all its turns."""
    response = solution_tokens(data)
    return response if agent is None else min(response * agent.max_turns, agent.longest(data))


def _answered(study: Study, data: DataSettings, total: int, evaluations: int) -> dict[str, Any]:
    """How many responses a run writes; with an agent conversations, their calls of the model and their tokens."""
    agent = study.agent
    if agent is None:
        return {"responses": total, "evaluation responses": evaluations}
    calls = agent.max_turns * (total + evaluations)
    longest = agent.longest(data)
    return {
        "conversations": total,
        "evaluation conversations": evaluations,
        "calls of the model": f"at most {calls}, {agent.max_turns} in a conversation",
        "tokens of a conversation": f"at most {data.max_prompt_length} asked and {longest} written; {NO_RESULTS}",
        "assumed for the time": f"{agent.max_turns} turns, {episode_tokens(agent, data)} tokens written; {NO_TOOLS}",
    }


def _run_time(study: Study, gpu: Mapping[str, Any], one_core: float) -> dict[str, Any]:
    """Seconds of a run on the GPUs that are named, else on one core.

    Args:
        study: the configuration.
        gpu: the estimate for GPUs.
        one_core: seconds there.
    """
    gpus = getattr(study.text_policy if study.text else study.policy, "gpus", None)
    if gpus is None:
        return {"seconds": one_core}
    if "seconds" not in gpu:
        return {"seconds": one_core, "computed on": UNCOUNTED}
    where, elsewhere = computed_on(gpus)["computed on"], uncounted(study)
    without = f", without what these score: {', '.join(elsewhere)}" if elsewhere else ""
    return {"seconds": START + gpu["seconds"], "computed on": f"{where}{without}"}


def _used(study: Study) -> list[RobotSource]:
    return list(study.robot_sources.values()) if study.reward.use_reward_model else []


def _frames_of(source: RobotSource, length: int) -> int:
    """Frames of an episode that a source looks at."""
    if isinstance(source.model, ConstantModelSettings):
        return 0
    return 1 if source.reward_mode == "terminal" else length // source.score_every + 1


def _arch(study: Study, source: RobotSource) -> str | None:
    """The network of the reward model of a source, as far as the study trains it or says so; `mlp` looks at states."""
    if not isinstance(source.model, ResNetModelSettings | ProgressModelSettings):
        return None
    made = {trained.save_dir: trained.arch for trained in study.image_models.values()}
    return source.model.arch or made.get(source.model.checkpoint_path)


def _refit_seconds(study: Study) -> float:
    """Seconds that reward models of a run learn."""
    rollout, seconds = study.env.num_envs * study.control_algorithm.rollout_steps, 0.0
    for source in study.robot_sources.values():
        if (model := source.refitted) is not None:
            how, rate = model.update_params, HEAD if _arch(study, source) == "mlp" else TRAIN
            seconds += study.runner.total_steps / (rollout * how.every) * how.steps * how.batch_size / rate
    return seconds


def _run_bytes(study: Study) -> tuple[int, int]:
    """Bytes that a run of a robot leaves and needs: reward models that it refits are in its checkpoints.

    A checkpoint is written before the oldest goes.
    """
    runner = study.runner
    trained = {model.save_dir: model.image_size for model in study.image_models.values()}
    policy, state = vla_bytes(study)
    weights = 0
    for source in study.robot_sources.values():
        if (model := source.refitted) is not None:
            arch = _arch(study, source) or "resnet18"
            size = model.image_size or trained.get(model.checkpoint_path, (3, 128, 128))
            parameters = int(4e6 * BACKBONES[arch])
            weights += parameters
            state += 3 * parameters + model.update_params.replay_size * (STATE if arch == "mlp" else math.prod(size))
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
    steps, length = _steps(data), solution_tokens(data)
    found: dict[str, Any] = {}
    if given:
        solutions, sampled = given, 0
    else:
        questions, tried = _asked(settings, data)
        solutions = questions * settings.num_rollouts
        sampled = _sampled(settings, solutions, tried)
        out_of = f", out of at most {tried} tried" if tried else ""
        found["questions"] = f"at most {questions}{out_of}"
    found["solutions"] = f"at most {solutions}"
    continued = solutions * _continued_per_solution(settings, steps)
    judged = solutions if settings.labeler in JUDGED else 0
    written = solutions if settings.method == 2 else 0
    size = size_of(study)
    gpus = started(study).gpus
    seconds = START + (sampled + continued / 2) * text_seconds(size, data, gpus)
    if sampled or continued:
        if size.assumed:
            found["parameters"] = str(size)
        found["texts to sample"] = f"at most {sampled + continued}"
    if judged or written:
        lines, more = _estimate_calls(settings, data, judged, written, steps, length)
        found |= lines
        seconds += more
    bytes_ = solutions * (800 + steps * (150 + 2 * length)) + 2 * (sampled + continued) * length
    return {**found, "seconds": seconds, **computed_on(gpus, alone=True), "bytes": bytes_}


def _asked(settings: LabelSettings, data: DataSettings) -> tuple[int, int]:
    """Questions that get labels, and how many are tried by mining to find them, at most."""
    there = data.train_size if data.type == "generated" else math.inf
    questions = int(min(settings.num_samples, there))
    tried = 0 if settings.mining is None else int(min(settings.mining.max_questions, there))
    return questions, tried


def _sampled(settings: LabelSettings, solutions: int, tried: int) -> int:
    """Solutions that are sampled: by mining in so many tried questions, and as those to label."""
    mined = 0 if settings.mining is None else tried * settings.mining.attempts
    return mined + solutions if settings.method == 1 else mined


def _continued_per_solution(settings: LabelSettings, steps: int) -> int:
    """Texts that are sampled to label a solution by continuing its beginnings."""
    if settings.labeler not in CONTINUED:
        return 0
    beginnings = max(steps - 1, 1)
    if settings.labeler == "binary_search":
        beginnings = math.ceil(math.log2(max(steps, 2)))
    return beginnings * settings.monte_carlo.completions


def _estimate_calls(
    settings: LabelSettings, data: DataSettings, judged: int, written: int, steps: int, length: int
) -> tuple[dict[str, str], float]:
    """Calls, tokens and dollars of a judge for so many solutions to judge and to write, and its seconds."""
    judge, calls = settings.judge, judged + written
    read = judged * (JUDGE_READS + QUESTION + length + PER_STEP_READ * steps) + written * (QUESTION + 50)
    answered = judged * (20 + PER_STEP_WRITTEN * steps) + written * length
    if isinstance(judge, LocalJudgeSettings):
        size = size_of_start(TextPolicySettings(path=judge.model))
        return {}, answered / length * text_seconds(size, data)
    if isinstance(judge, OwnJudgeSettings):
        return call_lines(judge, calls, (0, 0, 0), "", None), 0.0
    limit = judged * judge.max_tokens + written * data.max_response_length
    lines = call_lines(judge, calls, (read, answered, limit), "every solution is kept and no", settings.max_usd)
    return lines, calls / min(judge.concurrency / SECONDS_PER_CALL, (judge.requests_per_minute or math.inf) / 60)


def call_lines(
    judge: JudgeSettings, calls: int, tokens: tuple[int, int, int], when: str, max_usd: float | None
) -> dict[str, str]:
    """Calls, tokens and dollars of a judge, in words.

    Args:
        judge: which one.
        calls: how many are made at most.
        tokens: about how many are read and written, and how many are written at most.
        when: the usual price holds if this call fails.
        max_usd: the budget.
    """
    if not isinstance(judge, HttpJudgeSettings):
        return {"calls": f"at most {calls}, to {judge.model_name}"}
    read, answered, limit = tokens
    usual, long = ((read * judge.prices[0] + n * judge.prices[1]) / 1e6 for n in (answered, limit))
    stops = "" if max_usd is None else f"; stops before ${max_usd:.2f}"
    return {
        "calls": f"at most {calls}, to {judge.model_name} at {judge.url}; each that fails is made again, up to "
        f"{judge.retries} times",
        "tokens": f"about {_short(read)} read and {_short(answered)} written",
        "dollars": f"about ${usual:.2f} if {when} call fails; ${long:.2f} if every reply is as long as it may be"
        + stops,
    }


def estimate_search(study: Study) -> dict[str, Any]:
    """Questions, solutions, seconds and bytes of `guerdon search`."""
    settings, data = study.search, study.data
    if settings is None or data is None:
        return {}
    own = 0 if getattr(data, getattr(data, "validation_key", ""), None) else data.val_size
    questions = own if settings.questions is None else rows_of((settings.questions,))
    if not questions:
        return {"questions": f"those of {settings.questions or 'data'}, not counted here", "seconds": START}
    questions = min(questions, settings.limit or questions)
    solutions, size = questions * settings.n, size_of(study)
    rounds = 1 if settings.method == "best_of_n" else min(settings.rounds, _steps(data))
    found: dict[str, Any] = {"questions": questions, "solutions to sample": f"at most {solutions}"}
    if rounds > 1:
        found["extensions by a step"] = f"about {solutions * rounds}"
    if size.assumed:
        found["parameters"] = str(size)
    gpus = started(study).gpus
    found["seconds"] = START + solutions * text_seconds(size, data, gpus)
    found |= computed_on(gpus, alone=True)
    found["bytes"] = questions * (400 + 4 * solution_tokens(data))
    return found


def _steps(data: DataSettings) -> int:
    return data.task.steps if data.type == "generated" else STEPS


def _short(tokens: int) -> str:
    return f"{tokens / 1e6:.2f}M" if tokens >= 100_000 else f"{tokens / 1e3:.1f}k"


def total_seconds(parts: Sequence[Mapping[str, Any]], parallel: int) -> float:
    """Seconds for independent parts spread over `parallel` workers: at least the longest part."""
    seconds = [float(p.get("seconds") or 0.0) for p in parts]
    return max([sum(seconds) / max(parallel, 1), *seconds]) if seconds else 0.0


def total_bytes(parts: Sequence[Mapping[str, Any]], parallel: int) -> tuple[int, int]:
    """Bytes that independent parts leave, and the most there can be while `parallel` of them run at a time."""
    left = sum(int(p.get("bytes") or 0) for p in parts)
    more = sorted((int(p["peak_bytes"]) - int(p["bytes"]) for p in parts if "peak_bytes" in p), reverse=True)
    return left, left + sum(more[: max(parallel, 1)])


def readable(estimate: Mapping[str, Any] | str) -> list[str]:
    """Lines for a person."""
    if isinstance(estimate, str):
        return [estimate]
    lines = []
    for name, value in estimate.items():
        if value is None:
            lines.append(f"{'time' if name == 'seconds' else 'disk'}: {NO_LIMIT}")
        elif name == "seconds":
            where = estimate.get("computed on", "one core")
            lines.append(f"time: {where}" if where == UNCOUNTED else f"time: about {duration(value)} on {where}")
        elif name == "bytes":
            left, peak = (max(size / 1e6, 1) for size in (value, estimate.get("peak_bytes", value)))
            most = f"at most about {peak:.0f} MB while it runs, " if round(peak) > round(left) else ""
            lines.append(f"disk: {most}about {left:.0f} MB{' left at the end' if most else ''}")
        elif name not in ("peak_bytes", "computed on"):
            lines.append(f"{name}: {value}")
    return lines
