"""From the settings of a served model to the function that loads it, and checks before the server listens.

A backend is a name of the first reward server (`qwen2_5_vl_vllm`, `PRIMO-R1`), a type of reward model, `text`, or is
inferred from the contents of `model_path`. Nothing heavy is imported before a model is loaded.

A backend of a user is `--custom-backend module:factory`. The factory gets the settings of the model (`model_path`,
`tensor_parallel_size`, ...) and returns a reward model, or an object with the method of the first reward server,
`score_video(task_text, video_path, nframes, max_pixels, backend_kwargs) -> (score, raw_text)`. The latter gets each
item as an MP4 file that is removed afterwards.

`refuse_early` is quick and part of every start; `refuse_all` imports the modules of the models and looks into their
folders, for `--dry-run`. A damaged weight or too little memory shows only when a model is loaded.

    loader = model_loader("prm", ServedModelSettings(model_path="runs/prm"))
    model = loader.load()
"""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.config import validate
from guerdon.errors import ConfigError, DataError, boundary, did_you_mean
from guerdon.models.adapters import ADAPTERS
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.load import (
    IMAGE_KINDS,
    JUDGE,
    ROBOT_KINDS,
    TEXT,
    is_rubric,
    kind_at,
    load_reward_model,
    options_of,
    refuse_missing,
)
from guerdon.models.rubric import read_rubric
from guerdon.registry import Registry
from guerdon.serve.client_wire import failed, video_file
from guerdon.serve.media import MediaRoot
from guerdon.settings.base import names_in
from guerdon.settings.reward_models import MODEL_FORMS, REWARD_MODELS, OwnModelSettings, VLMModelSettings
from guerdon.settings.serve import ServedModelSettings, ServeSettings
from guerdon.settings.vlm import VLM_NAMES
from guerdon.types import Episode, Failure, RewardInfo, RewardModel, Score

QWEN, PRIMO = "qwen2_5_vl_vllm", "PRIMO-R1"
ALIASES = {"primo_r1_vllm": PRIMO}
WRITING: dict[str, dict[str, Any]] = {
    QWEN: {"temperature": 0.0, "max_tokens": 64},  # top_p has no effect at temperature 0
    PRIMO: {"temperature": 0.1, "top_p": 0.9, "max_tokens": 4096},
}
ENGINES: dict[str, dict[str, Any]] = {
    QWEN: {"tensor_parallel_size": 2, "max_model_len": 16384, "gpu_memory_utilization": 0.8},
    PRIMO: {"tensor_parallel_size": 1, "max_model_len": 16384, "gpu_memory_utilization": 0.9},
}
WRITING_KNOBS, ENGINE_KNOBS = ("temperature", "top_p", "max_tokens"), tuple(ENGINES[QWEN])
QWEN_PATH = "Qwen/Qwen2.5-VL-7B-Instruct"
FROM_FOLDER = (TEXT, *IMAGE_KINDS)  # that `guerdon train` writes
# options of `load_online_image_model`, whose module imports torch, so that a wrong one is refused before that
LEARNING = ("data_path", "device", "bf16", "steps", "frames_per_episode", "learning_rate", "weight_decay", "batch_size",
            "replay_size", "replay_ratio", "augment", "seed")  # fmt: skip

FRAMES, PIXELS, FPS = 16, 200_704, 4  # defaults of the first reward server, for `score_video`
_FACTORIES = Registry("custom_backend", group="", builtins={})
log = logging.getLogger("guerdon.serve")
_IMPORTING = threading.Lock()  # the lazy imports of transformers are not thread-safe


@dataclass(frozen=True)
class ModelLoader:
    """How a served model is loaded.

    Attributes:
        load: builds it; called again for a reload.
        aliases: other names of it.
        update_dir: where it keeps what it learns; None: it does not learn.
        keep_updates: newest states kept there.
        lanes: batches that it takes at a time, each in a thread of its own; 1 for a model that learns.
        path: where it is read from, as its settings say; its card may lie there.
    """

    load: Callable[[], RewardModel]
    aliases: tuple[str, ...] = ()
    update_dir: Path | None = None
    keep_updates: int = 2
    lanes: int = 1
    path: str | None = None


def backend_name(given: str | None) -> str | None:
    """The first name of a backend that has several."""
    return None if given is None else ALIASES.get(given, given)


def known_backends() -> tuple[str, ...]:
    """Names of all backends."""
    return tuple(dict.fromkeys((QWEN, PRIMO, *ALIASES, TEXT, *MODEL_FORMS, *REWARD_MODELS.registered())))


def model_loader(name: str, settings: ServedModelSettings) -> ModelLoader:
    """How a model is loaded, without loading it.

    Raises:
        ConfigError: there is no such backend, or a setting would do nothing with it.
    """
    backend = backend_name(settings.backend)
    if backend is not None:
        _refuse_backend(name, backend, settings)
    given = [knob for knob in (*WRITING_KNOBS, *ENGINE_KNOBS) if getattr(settings, knob) is not None]
    if given and backend not in VLM_NAMES and settings.custom_backend is None:
        what = "a model read from its folder" if backend is None else f"backend {backend}"
        raise ConfigError(f"models.{name}: {', '.join(given)} would do nothing with {what}; remove it")
    size = settings.tensor_parallel_size or ENGINES.get(backend or "", {}).get("tensor_parallel_size", 1)
    copies = settings.processes if isinstance(settings.processes, int) else None
    if copies is not None and size > 1:
        raise ConfigError(
            f"models.{name}: a copy of a model has one GPU, and tensor_parallel_size is {size}; remove processes, or "
            "set tensor_parallel_size to 1"
        )
    aliases = set(settings.aliases)
    if backend is not None and backend_name(name) == backend:
        aliases |= {backend, *(alias for alias, known in ALIASES.items() if known == backend)} - {name}
    return ModelLoader(
        load=partial(build_model, name, settings) if copies is None else partial(_replicas, name, settings, copies),
        aliases=tuple(sorted(aliases)),
        update_dir=None if settings.update_dir is None else Path(settings.update_dir),
        keep_updates=settings.keep_updates,
        lanes=copies or 1,
        path=settings.model_path,
    )


def card_forecast(loader: ModelLoader, name: str) -> dict[str, Any] | None:
    """The forecast on the card of a model; one that cannot be read is logged, and the model is served."""
    from guerdon.evaluate.gate_card import card_folders, read_forecast

    try:
        return None if loader.path is None else read_forecast(*card_folders(loader.path))
    except DataError as error:
        log.warning("the card of %s has no forecast: %s", name, error)
        return None


def _refuse_backend(name: str, backend: str, settings: ServedModelSettings) -> None:
    """Refuse an unknown backend, and settings that it would not use or needs."""
    if backend not in known_backends() and ":" not in backend:
        known = known_backends()
        by_case = {one.lower(): one for one in known}
        near = difflib.get_close_matches(backend.lower(), by_case, n=1, cutoff=0.6)
        hint = f"did you mean {by_case[near[0]]!r}? " if near else ""
        raise ConfigError(f"models.{name}: unknown backend {settings.backend!r}; {hint}known are {', '.join(known)}")
    kind = plain_name(backend)
    if settings.model_path is None and kind in FROM_FOLDER:
        raise ConfigError(f"models.{name}: backend {backend} needs model_path")
    if settings.model_path is not None and (kind in ("constant", "remote") or REWARD_MODELS.is_own(kind)):
        raise ConfigError(f"models.{name}: model_path would do nothing with backend {backend}; remove it")
    if kind == JUDGE and settings.processes not in (None, "auto"):
        raise ConfigError(
            f"models.{name}: a judge computes elsewhere, so that copies would do nothing; remove processes"
        )
    if settings.update_dir is not None and kind not in FROM_FOLDER:
        raise ConfigError(f"models.{name}: backend {backend} cannot learn while it is served; remove update_dir")


def plain_name(backend: str) -> str:
    """The first name of a type of model that has several."""
    return names_in(MODEL_FORMS[backend], "model_type")[0] if backend in MODEL_FORMS else backend


def build_model(name: str, settings: ServedModelSettings) -> RewardModel:
    """The model, in this process.

    Args:
        name: of the model.
        settings: of the model.

    Raises:
        GuerdonError: it cannot be loaded.
    """
    if settings.custom_backend is not None:
        return load_custom(name, settings)
    with _IMPORTING:
        kind = backend_name(settings.backend) or kind_at(settings.model_path or "")
        options = loader_options(name, kind, settings)
        function: Callable[..., RewardModel] = partial(load_reward_model, kind)
        with boundary(ConfigError, f"models.{name} cannot be loaded"):
            if settings.update_dir is not None and plain_name(kind) in IMAGE_KINDS:
                from guerdon.models.online import load_online_image_model

                function, options["kind"] = load_online_image_model, plain_name(kind)
            model = function(settings.model_path, **options)
        if plain_name(kind) in IMAGE_KINDS:
            _refuse_actions(name, model.info.actions)
        return model


def _refuse_actions(name: str, actions: bool) -> None:
    if actions:
        raise ConfigError(
            f"models.{name} looks at the action that led to each state (actions: true), and requests have no actions: "
            "serve a model that was trained without, or use this one where it is, by its checkpoint_path"
        )


def _replicas(name: str, settings: ServedModelSettings, count: int) -> RewardModel:
    from guerdon.serve.replicas import Replicas

    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is one number per level of nesting
    threads = max(1, (int(given) if given.isdigit() else 1) // count)
    return Replicas(name, partial(build_model, name, settings), count=count, threads=threads)


def loader_options(name: str, kind: str | None, settings: ServedModelSettings) -> dict[str, Any]:
    """The options of the loader of a model, checked without importing its module.

    Args:
        name: of the model.
        kind: a backend; None: only the folder of the model has it, so the options of every kind that a folder can have
            are known, and their values are not checked.
        settings: of the model.

    Raises:
        ConfigError: an unknown option, which the message names with the nearest known one; or a wrong value.
    """
    kind = JUDGE if kind is None and is_rubric(settings.model_path) else kind
    kinds = (TEXT, *ROBOT_KINDS) if kind is None else (plain_name(kind),)
    learning = set() if settings.update_dir is None else set(IMAGE_KINDS)
    own = kind is not None and REWARD_MODELS.is_own(kind)
    options: dict[str, Any] = {"params": settings.options} if own else dict(settings.options)
    known = dict.fromkeys(option for one in kinds for option in (LEARNING if one in learning else options_of(one)))
    if unknown := sorted(options.keys() - known):
        hint = did_you_mean(unknown[0], known) or ";"
        raise ConfigError(f"models.{name}.options has no {unknown[0]}{hint} there are {', '.join(known)}")
    if TEXT in kinds and options.get("adapter", "auto") not in ("auto", "guerdon", *ADAPTERS):
        raise ConfigError(f"unknown adapter {options['adapter']!r}: choose one of {', '.join(ADAPTERS)}")
    if kind in VLM_NAMES:
        options["vlm"] = vlm = vlm_options(name, kind, settings)
        if settings.model_path is None and vlm.get("path") is None and vlm.get("backend") != "openai":
            raise ConfigError(f"models.{name}: backend {kind} needs model_path (or options.vlm.path)")
    if kind is not None and kinds[0] not in learning:
        form = MODEL_FORMS.get(kind, OwnModelSettings)
        path = {} if settings.model_path is None else {form.path_key: settings.model_path}
        checked = validate(form, {"model_type": kind, **path, **options}, origin=f"models.{name}.options")
        if isinstance(checked, VLMModelSettings) and checked.vlm is not None and checked.vlm.path is not None:
            refuse_missing(checked.vlm.path)
    return options


def vlm_options(name: str, kind: str, settings: ServedModelSettings) -> dict[str, Any]:
    """Settings of a vision-language model: `options.vlm`, the flags, and the defaults of the first reward server.

    Raises:
        ConfigError: `options.vlm` has the key of a flag too, or is not a mapping.
    """
    given = settings.options.get("vlm") or {}
    if not isinstance(given, dict) or not isinstance(given.get("vllm") or {}, dict):
        raise ConfigError(f"models.{name}.options.vlm (and vllm in it) must be keys and values, such as {{nframes: 8}}")
    asked: dict[str, Any] = dict(given)
    writing = {knob: value for knob in WRITING_KNOBS if (value := getattr(settings, knob)) is not None}
    engine = {knob: value for knob in ENGINE_KNOBS if (value := getattr(settings, knob)) is not None}
    twice = sorted((writing.keys() & asked.keys()) | (engine.keys() & dict(asked.get("vllm") or {}).keys()))
    if twice:
        raise ConfigError(f"models.{name}: {twice[0]} is given here and in options.vlm; give one of them")
    default = dict(WRITING.get(kind, {}))
    if {**default, **writing, **asked}.get("temperature") == 0:
        default.pop("top_p", None)
    engine = {**engine, **dict(asked.pop("vllm", None) or {})}
    if asked.get("backend", "vllm") == "vllm":
        engine = {**ENGINES.get(kind, {}), **engine}
    return {**default, **writing, **asked, **({"vllm": engine} if engine else {})}


def refuse_early(settings: ServeSettings) -> None:
    """Refuse unknown backends, settings that would do nothing, missing folders.

    Raises:
        ConfigError: one of these.
    """
    for name, model in settings.models.items():
        model_loader(name, model)
        if model.custom_backend is None:
            loader_options(name, backend_name(model.backend), model)
            if model.model_path is not None:
                images = plain_name(model.backend or "") in IMAGE_KINDS  # never a hub id
                refuse_missing(str(Path(model.model_path).absolute()) if images else model.model_path)
    if settings.media.root is not None:
        MediaRoot(settings.media.root)


def refuse_all(settings: ServeSettings) -> None:
    """Refuse everything that a start would refuse before it reads weights.

    Raises:
        ConfigError: as `refuse_early`; or an unknown option, or a factory that cannot be imported.
        CheckpointError: there is no model in a folder.
        MissingDependencyError: a package that a model needs is not installed.
    """
    refuse_early(settings)
    for name, model in settings.models.items():
        if model.custom_backend is not None:
            factory(model.custom_backend)
            continue
        path = model.model_path or ""
        kind = backend_name(model.backend) or kind_at(path)
        options = loader_options(name, kind, model)
        if kind == TEXT:
            from guerdon.models.text_load import check_text_model

            check_text_model(path, adapter=options.get("adapter", "auto"))
        elif kind == JUDGE and path:
            read_rubric(Path(path))
        elif plain_name(kind) in IMAGE_KINDS:
            from guerdon.models.image import load_config

            _refuse_actions(name, load_config(path, type=plain_name(kind)).actions)


def load_custom(name: str, settings: ServedModelSettings) -> RewardModel:
    """The model that the factory returns.

    Raises:
        ConfigError: there is no such factory, it raised, or it returned something else.
    """
    spec = settings.custom_backend
    assert spec is not None
    build = factory(spec)
    with boundary(ConfigError, f"custom_backend {spec} raised"):
        built = build(settings)
    if isinstance(built, RewardModel):
        return built
    if hasattr(built, "score_video"):
        return VideoScorer(name, built)
    raise ConfigError(f"custom_backend {spec} returned a {type(built).__name__}: it has neither score nor score_video")


class VideoScorer:
    """An object with `score_video` as a reward model of whole videos.

    Args:
        name: of the model.
        scorer: the object, with `score_video(task_text, video_path, nframes, max_pixels, backend_kwargs)`, which
            returns a score between 0 and 1, alone or with the text of the model.
    """

    def __init__(self, name: str, scorer: Any) -> None:
        self._scorer = scorer
        self.info = RewardInfo(name=name, range=(0.0, 1.0), granularity="total", frames_needed=FRAMES)

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode."""
        return [explained.score for explained in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One explained score per episode; a score outside [0, 1] is a `Failure("out_of_range")`."""
        return [self._judge(episode, options) for episode in episodes]

    def _judge(self, episode: Episode, options: JudgeOptions) -> ExplainedScore:
        if episode.frames is None or not len(episode.frames):
            return failed(Failure("no_frames", "the item has no frames"))
        chosen = {"score_mode": options.score_mode, "prompt": options.prompt}
        chosen = {key: value for key, value in chosen.items() if value is not None}
        nframes = min(options.nframes or FRAMES, len(episode.frames))
        with video_file(episode.frames, None, FPS, keep=False) as path:
            answer = self._scorer.score_video(episode.task, str(path), nframes, options.max_pixels or PIXELS, chosen)
        value, text = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
        try:
            if isinstance(value, str | bytes | bool):
                raise TypeError
            total = float(value)
        except (TypeError, ValueError):
            got = f"{value!r:.80} in a {type(answer).__name__}"
            return failed(Failure("bad_answer", f"score_video must return a number, or (number, text); got {got}"))
        if not np.isfinite(total):
            return failed(Failure("non_finite", "the backend's score is not finite"), str(text))
        if not 0.0 <= total <= 1.0:
            return failed(Failure("out_of_range", f"{total:g} is not within 0 and 1"), str(text))
        return ExplainedScore(Score(total=total), str(text))


def factory(spec: str) -> Callable[[ServedModelSettings], Any]:
    """The function `module:factory`, imported and not called.

    Raises:
        ConfigError: there is none, or it takes no argument.
    """
    found = _FACTORIES.factory(spec)
    if not inspect.signature(found).parameters:
        raise ConfigError(f"custom_backend {spec} must take the model's settings as its argument")
    return found
