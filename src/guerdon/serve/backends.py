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

import contextlib
import difflib
import gc
import logging
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize, is_exiting
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn

import numpy as np

from guerdon.config.loading import validate
from guerdon.config.registry import Registry, parameters_of
from guerdon.errors import ConfigError, DataError, GuerdonError, boundary, did_you_mean
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, judge
from guerdon.models.judges.rubric import read_rubric
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
from guerdon.models.text.adapters import ADAPTERS
from guerdon.processes.streams import keep_streams
from guerdon.processes.subprocess_worker import end_with_parent
from guerdon.serve.errors import ModelFailed, ModelHung, NotReady
from guerdon.serve.logs import log_to_stderr
from guerdon.serve.media import MediaRoot
from guerdon.serve.wires.client_wire import failed, video_file
from guerdon.settings.base import names_in
from guerdon.settings.reward_models import MODEL_FORMS, REWARD_MODELS, OwnModelSettings, VLMModelSettings
from guerdon.settings.serve import ServedModelSettings, ServeSettings
from guerdon.settings.vlm import VLM_NAMES
from guerdon.types import Episode, Failure, RewardInfo, RewardModel, Score

# ---------------------------------------------------------------------------------------------------------------------
# Copies of a model, each in its own process: for several cores, or several GPUs, and away from the event loop.
#
# A batch goes to a free copy; call from as many threads as there are copies. A copy that died, or whose answer was not
# waited for, is started again before the next batch is sent. If a copy dies with a single episode, that is sent once
# more: something else may have killed it. A copy that has no answer in time is killed and started again at once. Copies
# end with the object, with the server, and when the server is killed. They do not learn: their weights would drift
# apart.
#
#     model = Replicas("prm", build, count=2, threads=1)
#     model.judge(episodes, JudgeOptions())
# ---------------------------------------------------------------------------------------------------------------------


END_S = 5.0  # time limit of a copy that must end
FOREVER = 1e9  # seconds: no limit that a system call takes


class CopyDied(ModelFailed):
    """The process of a copy ended without an answer."""


class ModelCopy(NamedTuple):
    """A process, the pipe to it, and another whose closing ends it: at once if idle, else within `END_S`."""

    process: BaseProcess
    pipe: Connection
    life: Connection


class Replicas:
    """A reward model in several copies.

    Args:
        name: of the model.
        build: builds it; is sent to the processes, so it is picklable.
        count: number of copies.
        threads: CPU threads of each.
        deadline_s: seconds in which a copy must answer a call.

    Attributes:
        info: the model's declaration of its scores.
        card: its card; None: it has none.

    Raises:
        GuerdonError: it could not be built, as `build` raised it.
        ModelFailed: a process ended while it was being built.
    """

    info: RewardInfo
    card: Any

    def __init__(
        self, name: str, build: Callable[[], RewardModel], *, count: int, threads: int, deadline_s: float = FOREVER
    ) -> None:
        self._name, self._build, self._threads, self._deadline_s = name, build, threads, deadline_s
        self._copies: dict[int, ModelCopy] = {}
        self._lock = threading.Lock()
        self._free: SimpleQueue[int] = SimpleQueue()
        # called at exit before the process waits for its children, or when the object is deleted
        self.close = Finalize(self, _end_all, (self._copies, self._lock), exitpriority=100)
        try:
            for number in range(count):
                self._start(number)
            for number in range(count):
                self.info, self.card = self._loaded(number)
                self._free.put(number)
        except BaseException:
            self.close()
            raise

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order."""
        return [explained.score for explained in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One explained score per episode, in order; waits for a free copy. Safe to call from several threads.

        Raises:
            GuerdonError: as the model raised it.
            ModelFailed: the model raised something else, or its process died (of a single episode: twice).
            ModelHung: there was no answer in time; the process was killed, and another one is ready.
            NotReady: the copies are being ended, or one that died or was killed cannot be started again.
        """
        number = self._free.get()
        try:
            return self._judge(number, episodes, options)
        except CopyDied as error:
            if len(episodes) != 1:
                raise
            log.warning("%s; its item is sent once more", error)
            return self._judge(number, episodes, options)
        finally:
            self._free.put(number)

    def _judge(self, number: int, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        copy = self._copies.get(number)
        if copy is not None and not copy.process.is_alive():
            log.warning("copy %d of the model %s has died; it is started again", number, self._name)
            _end(self._copies, number)
            copy = None
        if copy is None:
            copy = self._restart(number)
        try:
            _send(copy, (episodes, options))
            scores: list[ExplainedScore] = self._receive(number)
        except BlockingIOError:
            self._replace(number, copy)
        return scores

    def _replace(self, number: int, copy: ModelCopy) -> NoReturn:
        """Kill a copy that does not answer, and start it again.

        Raises:
            ModelHung: always.
            NotReady: it cannot be started again.
        """
        log.error("copy %d of the model %s has no answer; it is killed and started again", number, self._name)
        copy.process.kill()
        _end(self._copies, number)
        copy.process.join(END_S)
        self._restart(number)
        raise ModelHung(f"no result within {self._deadline_s:g} s; the process of the model was killed")

    def _loaded(self, number: int) -> tuple[RewardInfo, Any]:
        """What a copy says when its model is loaded, for which there is no limit; from then on there is one."""
        info, card = self._receive(number)
        _limit(self._copies[number].pipe, self._deadline_s)
        return info, card

    def _restart(self, number: int) -> ModelCopy:
        copy = self._start(number)
        try:
            self._loaded(number)
        except NotReady:
            raise
        except GuerdonError as error:
            log.error("copy %d of the model %s cannot be started again", number, self._name, exc_info=error)
            raise NotReady(f"a copy of the model {self._name} cannot be started again") from error
        return copy

    def _start(self, number: int) -> ModelCopy:
        """Start a copy, unless the others are being ended."""
        context = get_context("spawn")
        with self._lock:
            if not self.close.still_active():
                raise NotReady(f"the copies of the model {self._name} are being ended")
            pipe, theirs = context.Pipe()
            their_life, life = context.Pipe(duplex=False)
            arguments = (theirs, their_life, self._build, gpu_of(number), self._threads)
            process = context.Process(target=_work, args=arguments, name=f"guerdon-{self._name}-{number}")
            process.start()
            theirs.close()
            their_life.close()
            self._copies[number] = copy = ModelCopy(process, pipe, life)
            return copy

    def _receive(self, number: int) -> Any:
        """The answer of a copy; a copy that ended without one, or has no model, is ended.

        Raises:
            BlockingIOError: there is none in time.
        """
        copy = self._copies.get(number)
        if copy is None:
            raise NotReady(f"the copies of the model {self._name} are being ended")
        try:
            kind, answer = copy.pipe.recv()
        except BlockingIOError:
            raise
        except (EOFError, OSError) as error:
            _end(self._copies, number)
            copy.process.join(2 * END_S)
            status = copy.process.exitcode
            raise CopyDied(f"copy {number} of the model {self._name} ended with status {status}") from error
        except BaseException:  # interrupted: a late answer must not be taken for that of the next batch
            _end(self._copies, number)
            raise
        if kind == "unbuilt":
            _end(self._copies, number)
        if kind != "answer":
            raise answer
        return answer


def _send(copy: ModelCopy, message: object) -> None:
    """Send a message to a copy; that it has died its answer will show.

    Raises:
        BlockingIOError: it reads nothing in time.
    """
    try:
        copy.pipe.send(message)
    except BlockingIOError:
        raise
    except OSError:
        pass


def _limit(pipe: Connection, seconds: float) -> None:
    """Let a read or a write raise `BlockingIOError` where the other end does nothing for so long."""
    limit = struct.pack("ll", *divmod(int(min(max(seconds, 1e-3), FOREVER) * 1e6), 1_000_000))
    with socket.socket(fileno=os.dup(pipe.fileno())) as shared:
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            shared.setsockopt(socket.SOL_SOCKET, direction, limit)


def _end(copies: dict[int, ModelCopy], number: int) -> None:
    """End one copy; does not wait for that."""
    copy = copies.pop(number, None)
    if copy is not None:
        copy.pipe.close()
        copy.life.close()


def _end_all(copies: dict[int, ModelCopy], lock: threading.Lock) -> None:
    with lock:
        processes = [copy.process for copy in copies.values()]
        for number in list(copies):
            _end(copies, number)
    if is_exiting():  # Python waits for its children: one whose model never lets another thread run would not end
        limit = time.monotonic() + 2 * END_S
        for process in processes:
            process.join(max(0.0, limit - time.monotonic()))
            process.kill()


def gpu_of(number: int) -> str | None:
    """The GPU of a copy, if the server sees several."""
    from guerdon.compute.devices import visible_gpus  # imports torch

    visible = visible_gpus()
    return visible[number % len(visible)] if len(visible) > 1 else None


def _end_with(life: Connection) -> None:
    """Wait until the pipe closes, then end the process within `END_S`."""
    with contextlib.suppress(EOFError, OSError):
        life.recv()
    time.sleep(END_S)
    os._exit(1)


def _work(pipe: Connection, life: Connection, build: Callable[[], RewardModel], gpu: str | None, threads: int) -> None:
    """Body of a process: build the model, then judge until the pipe closes."""
    keep_streams()
    end_with_parent(spawned=True)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    for name in (signal.SIGINT, signal.SIGTERM):  # the server handles a signal to the group
        signal.signal(name, signal.SIG_IGN)
    log_to_stderr()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the other cores are for the other copies
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            with boundary(ModelFailed, "the model could not be built"):
                model = build()
                pipe.send(("answer", (model.info, getattr(model, "card", None))))
        except GuerdonError as error:
            pipe.send(("unbuilt", _plain(error)))
            return
        gc.collect()
        gc.freeze()  # objects that live on are not scanned again by the garbage collector
        while True:
            episodes, options = pipe.recv()
            try:
                with boundary(ModelFailed, f"the model raised on {len(episodes)} items"):
                    pipe.send(("answer", judge(model, episodes, options)))
            except GuerdonError as error:
                log.error("%s", error, exc_info=error)
                pipe.send(("raised", _plain(error)))


def _plain(error: GuerdonError) -> GuerdonError:
    """An error that can be pickled: of its class if that takes a message alone, else a `ModelFailed`."""
    kinds = type(error).__mro__
    own = [kind for kind in kinds[: kinds.index(GuerdonError)] if kind not in (ConfigError, DataError)]
    plain = not any("__init__" in vars(kind) for kind in own)
    return (type(error) if plain else ModelFailed)(str(error))


# ---------------------------------------------------------------------------------------------------------------------


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


def model_loader(name: str, settings: ServedModelSettings, *, deadline_s: float = FOREVER) -> ModelLoader:
    """How a model is loaded, without loading it.

    Args:
        name: of the model.
        settings: of the model.
        deadline_s: seconds in which a copy in a process of its own must answer a call.

    Raises:
        ConfigError: there is no such backend, or a setting would do nothing with it.
    """
    backend = backend_name(settings.backend)
    if backend is not None:
        _refuse_backend(name, backend, settings)
    _refuse_idle_knobs(name, backend, settings)
    size = settings.tensor_parallel_size or ENGINES.get(backend or "", {}).get("tensor_parallel_size", 1)
    copies = settings.processes if isinstance(settings.processes, int) else None
    if copies is not None and size > 1:
        raise ConfigError(
            f"models.{name}: a copy of a model has one GPU, and tensor_parallel_size is {size}; remove processes, or "
            "set tensor_parallel_size to 1",
            key=f"models.{name}.processes",
        )
    load = partial(build_model, name, settings)
    if copies is not None:
        load = partial(_replicas, name, settings, copies, deadline_s)
    return ModelLoader(
        load=load,
        aliases=tuple(sorted(_aliases(name, backend, settings))),
        update_dir=None if settings.update_dir is None else Path(settings.update_dir),
        keep_updates=settings.keep_updates,
        lanes=copies or 1,
        path=settings.model_path,
    )


def _refuse_idle_knobs(name: str, backend: str | None, settings: ServedModelSettings) -> None:
    """Refuse settings of engines and of writing answers for a model that has neither."""
    if backend in VLM_NAMES or settings.custom_backend is not None:
        return
    given = [knob for knob in (*WRITING_KNOBS, *ENGINE_KNOBS) if getattr(settings, knob) is not None]
    if given:
        what = "a model read from its folder" if backend is None else f"backend {backend}"
        raise ConfigError(
            f"models.{name}: {', '.join(given)} would do nothing with {what}; remove it",
            key=f"models.{name}.{given[0]}",
        )


def _aliases(name: str, backend: str | None, settings: ServedModelSettings) -> set[str]:
    """Other names of a model: those of its settings, and all of its backend where it is called as that."""
    aliases = set(settings.aliases)
    if backend is not None and backend_name(name) == backend:
        aliases |= {backend, *(alias for alias, known in ALIASES.items() if known == backend)} - {name}
    return aliases


def card_forecast(loader: ModelLoader, name: str) -> dict[str, Any] | None:
    """The forecast on the card of a model; one that cannot be read is logged, and the model is served."""
    from guerdon.evaluation.gate.gate_card import card_folders, read_forecast

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
        raise ConfigError(
            f"models.{name}: unknown backend {settings.backend!r}; {hint}known are {', '.join(known)}",
            key=f"models.{name}.backend",
        )
    kind = plain_name(backend)
    if settings.model_path is None and kind in FROM_FOLDER:
        raise ConfigError(f"models.{name}: backend {backend} needs model_path", key=f"models.{name}.model_path")
    if settings.model_path is not None and (kind in ("constant", "remote") or REWARD_MODELS.is_own(kind)):
        raise ConfigError(
            f"models.{name}: model_path would do nothing with backend {backend}; remove it",
            key=f"models.{name}.model_path",
        )
    if kind == JUDGE and settings.processes not in (None, "auto"):
        raise ConfigError(
            f"models.{name}: a judge computes elsewhere, so that copies would do nothing; remove processes",
            key=f"models.{name}.processes",
        )
    if settings.update_dir is not None and kind not in FROM_FOLDER:
        raise ConfigError(
            f"models.{name}: backend {backend} cannot learn while it is served; remove update_dir",
            key=f"models.{name}.update_dir",
        )


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
        with boundary(ConfigError, f"models.{name} cannot be loaded", key=f"models.{name}"):
            if settings.update_dir is not None and plain_name(kind) in IMAGE_KINDS:
                from guerdon.models.images.online import load_online_image_model

                function, options["kind"] = load_online_image_model, plain_name(kind)
            model = function(settings.model_path, **options)
        if plain_name(kind) in IMAGE_KINDS:
            _refuse_actions(name, model.info.actions)
        return model


def _refuse_actions(name: str, actions: bool) -> None:
    if actions:
        raise ConfigError.about(
            f"models.{name}",
            "looks at the action that led to each state (actions: true), and requests have no actions: "
            "serve a model that was trained without, or use this one where it is, by its checkpoint_path",
        )


def _replicas(name: str, settings: ServedModelSettings, count: int, deadline_s: float) -> RewardModel:
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is one number per level of nesting
    threads = max(1, (int(given) if given.isdigit() else 1) // count)
    build = partial(build_model, name, settings)
    return Replicas(name, build, count=count, threads=threads, deadline_s=deadline_s)


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
    if kind is None and is_rubric(settings.model_path):
        kind = JUDGE
    kinds = (TEXT, *ROBOT_KINDS) if kind is None else (plain_name(kind),)
    own = kind is not None and REWARD_MODELS.is_own(kind)
    options: dict[str, Any] = {"params": settings.options} if own else dict(settings.options)
    known = _known_options(kinds, learns=settings.update_dir is not None)
    if unknown := sorted(options.keys() - known):
        hint = did_you_mean(unknown[0], known) or ";"
        raise ConfigError.about(f"models.{name}.options", f"has no {unknown[0]}{hint} there are {', '.join(known)}")
    if TEXT in kinds and options.get("adapter", "auto") not in ("auto", "guerdon", *ADAPTERS):
        raise ConfigError(
            f"unknown adapter {options['adapter']!r}: choose one of {', '.join(ADAPTERS)}",
            key=f"models.{name}.options.adapter",
        )
    if kind in VLM_NAMES:
        options["vlm"] = vlm_options(name, kind, settings)
        _refuse_no_path(name, kind, settings.model_path, options["vlm"])
    learns = settings.update_dir is not None and kinds[0] in IMAGE_KINDS
    if kind is not None and not learns:
        _check_values(name, kind, settings.model_path, options)
    return options


def _known_options(kinds: Sequence[str], *, learns: bool) -> dict[str, None]:
    """Names of the options of kinds of models, in order; an image model that learns has options of its own."""
    known: dict[str, None] = {}
    for kind in kinds:
        known |= dict.fromkeys(LEARNING if learns and kind in IMAGE_KINDS else options_of(kind))
    return known


def _refuse_no_path(name: str, kind: str, path: str | None, vlm: Mapping[str, Any]) -> None:
    if path is None and vlm.get("path") is None and vlm.get("backend") != "openai":
        raise ConfigError(
            f"models.{name}: backend {kind} needs model_path (or options.vlm.path)", key=f"models.{name}.model_path"
        )


def _check_values(name: str, kind: str, path: str | None, options: Mapping[str, Any]) -> None:
    form = MODEL_FORMS.get(kind, OwnModelSettings)
    at = {} if path is None else {form.path_key: path}
    section = f"models.{name}.options"
    try:
        checked = validate(form, {"model_type": kind, **at, **options}, origin=section)
    except ConfigError as error:
        key = section if error.key is None else f"{section}.{error.key}"
        raise ConfigError(str(error), key=key) from error
    if isinstance(checked, VLMModelSettings) and checked.vlm is not None and checked.vlm.path is not None:
        refuse_missing(checked.vlm.path)


def vlm_options(name: str, kind: str, settings: ServedModelSettings) -> dict[str, Any]:
    """Settings of a vision-language model: `options.vlm`, the flags, and the defaults of the first reward server.

    Raises:
        ConfigError: `options.vlm` has the key of a flag too, or is not a mapping.
    """
    given = settings.options.get("vlm") or {}
    if not isinstance(given, dict) or not isinstance(given.get("vllm") or {}, dict):
        raise ConfigError.about(
            f"models.{name}.options.vlm", "(and vllm in it) must be keys and values, such as {nframes: 8}"
        )
    asked: dict[str, Any] = dict(given)
    writing = {knob: value for knob in WRITING_KNOBS if (value := getattr(settings, knob)) is not None}
    engine = {knob: value for knob in ENGINE_KNOBS if (value := getattr(settings, knob)) is not None}
    twice = sorted((writing.keys() & asked.keys()) | (engine.keys() & dict(asked.get("vllm") or {}).keys()))
    if twice:
        raise ConfigError(
            f"models.{name}: {twice[0]} is given here and in options.vlm; give one of them",
            key=f"models.{name}.{twice[0]}",
        )
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
            factory(model.custom_backend, key=f"models.{name}.custom_backend")
            continue
        path = model.model_path or ""
        kind = backend_name(model.backend) or kind_at(path)
        options = loader_options(name, kind, model)
        if kind == TEXT:
            from guerdon.models.text.text_load import check_text_model

            check_text_model(path, adapter=options.get("adapter", "auto"))
        elif kind == JUDGE and path:
            read_rubric(Path(path))
        elif plain_name(kind) in IMAGE_KINDS:
            from guerdon.models.images.image import load_config

            _refuse_actions(name, load_config(path, type=plain_name(kind)).actions)


def load_custom(name: str, settings: ServedModelSettings) -> RewardModel:
    """The model that the factory returns.

    Raises:
        ConfigError: there is no such factory, it raised, or it returned something else.
    """
    spec = settings.custom_backend
    assert spec is not None
    key = f"models.{name}.custom_backend"
    build = factory(spec, key=key)
    with boundary(ConfigError, f"custom_backend {spec} raised", key=key):
        built = build(settings)
    if isinstance(built, RewardModel):
        return built
    if hasattr(built, "score_video"):
        return VideoScorer(name, built)
    raise ConfigError(
        f"custom_backend {spec} returned a {type(built).__name__}: it has neither score nor score_video",
        key=key,
    )


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


def factory(spec: str, *, key: str = "custom_backend") -> Callable[[ServedModelSettings], Any]:
    """The function `module:factory`, imported and not called.

    Args:
        spec: it.
        key: that names it.

    Raises:
        ConfigError: there is none, or it takes no argument.
    """
    try:
        found = _FACTORIES.factory(spec)
    except ConfigError as error:
        raise ConfigError(str(error), key=key) from error
    if parameters_of(found) == {}:
        raise ConfigError(f"custom_backend {spec} must take the model's settings as its argument", key=key)
    return found
