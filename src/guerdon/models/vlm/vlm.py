"""Vision-language models as reward models: frames and a task in, values with their explanation out; and their files.

`qwen_vl` asks whether the task is completed, or how far it is; `primo_r1` lets the model reason over first picture,
video and last picture; `true_logprob` is the log-probability of "True" as the answer; `trend` and `preference` compare
the rows of short windows. A reply that cannot be parsed is a `Failure`, counted and masked like any other.

A trained checkpoint is a folder with `vlm.json` (question, frames, pixels, threshold), an adapter or whole weights,
and, for a model made in code, the base under `base/`. The question of training is the question of use; a configuration
that says otherwise is refused.

    model = load_vlm("qwen_vl", "runs/vlm")                      # what `guerdon train` wrote
    model = load_vlm("qwen_vl", vlm={"path": "Qwen/Qwen2.5-VL-7B-Instruct", "question": "progress"})
    judged = model.judge([episode], JudgeOptions(nframes=8))[0]
    judged.score.total, judged.text           # 0.72, "72"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import ValidationError

from guerdon.compute.devices import resolve_device
from guerdon.config.loading import validate
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.files.atomic import sealed_folder, verify_folder
from guerdon.models.checkpoint import read_card, write_card
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, ParseStatus, Scale, joined_status
from guerdon.models.vlm.answer_parser import Choices, Completed, Numbers, parse_answer
from guerdon.models.vlm.vlm_prompts import (
    NO,
    RUBRIC,
    TRUE,
    TRUE_CONTINUATION,
    YES,
    Answer,
    Backend,
    GenerationOptions,
    PromptTemplate,
    Question,
    VLMReply,
    WordLogProbs,
    find_prompt,
    make_question,
)
from guerdon.policies.batches.precision import uses_bf16
from guerdon.policies.pretrained.chat_template import set_arguments
from guerdon.processes.call_queue import concurrent
from guerdon.reading.chats import unreadable
from guerdon.settings.vlm import VLM_NAMES, VLMSettings, VLMType, implied_by
from guerdon.types import ALL_FRAMES, ByteArray, Episode, Failure, RewardInfo, Score

if TYPE_CHECKING:
    from guerdon.models.vlm.vlm_transformers import Heads, RobometerBackend

CARD, BASE, ADAPTER = "vlm.json", "base", "adapter"
ASKED = ("question", "input", "nframes", "max_pixels", "fps", "chat_template_kwargs")  # what training fixes
ANSWERS: dict[VLMType, tuple[Answer, ...]] = {
    "qwen_vl": ("completed", "number"),
    "primo_r1": ("number",),
    "true_logprob": ("true",),
    "trend": ("trend",),
    "preference": ("preference",),
    "robometer": ("head",),
    "roboreward": ("rubric",),
}
WIDEST = 200  # longer side of a frame over the shorter: more is refused by the models' image processors
LEAST_SHARE = 1e-3  # the least probability of yes and no together at which a soft answer counts
LOWEST_LOG_PROB = -100.0  # below it, the logarithm of a probability is given as this
_TRENDS = {"positive": 1.0, "negative": -0.2, "unclear": 0.0}  # values of the words
_WORDS: dict[str, tuple[Any, ...]] = {  # arguments of `Choices`
    "trend": ("trend", {"positive": "positive", "negative": "negative", "unclear": "unclear"}),
    "preference": ("nearer", {"second": "positive", "first": "negative", "same": "unclear"}),
    "rubric": ("answer", {form.format(n): n for n in RUBRIC for form in ("{}", "{}.0", "{}/5", "<{}>")}, RUBRIC),
}
_VALUES = _TRENDS | {str(n): (n - 1) / 4 for n in range(1, 6)}  # of the words


@dataclass(frozen=True)
class _Plan:
    """Options of one call of `judge`."""

    prompt: PromptTemplate
    nframes: int
    max_pixels: int
    scale: Scale


@dataclass(frozen=True)
class _Read:
    """The value of an answer, and its explanation."""

    value: float | Failure
    text: str = ""
    tokens: int = 0
    status: ParseStatus | None = None


class VLMRewardModel:
    """A vision-language model that judges episodes; a `RewardModel` and a `Judge`.

    Args:
        kind: kind of question.
        settings: of the questions.
        backend: the model that answers.
        card: of a trained checkpoint; None: it was not trained by guerdon.

    Raises:
        ConfigError: a setting that this kind does not have, or a prompt that does not fit.
    """

    def __init__(self, kind: VLMType, settings: VLMSettings, backend: Backend, card: VLMCard | None = None) -> None:
        _check(kind, settings)
        self.kind = kind
        self.settings = settings
        self.backend = backend
        self.card = card
        self._plan = self._planned(JudgeOptions())

    @property
    def info(self) -> RewardInfo:
        """Range and needs; values of videos look back over the whole episode."""
        limits = (0.0, 1.0)
        if self.kind == "true_logprob":
            limits = (LOWEST_LOG_PROB, 0.0)
        if self._windowed:
            limits = (min(_TRENDS.values()), max(_TRENDS.values()))
        card, heads = self.card, self._heads
        progress = self.kind == "roboreward" or (heads is not None and self.settings.question == "progress")
        threshold = None
        if card is not None:
            threshold = card.threshold
        elif heads is not None and not progress:
            threshold = heads.threshold
        if threshold is None and self._plan.prompt.answer == "completed":
            threshold = 0.5
        return RewardInfo(
            name=self.kind,
            range=limits,
            granularity="step" if self._all_rows else "total",
            frames_needed=self._looks_back,
            success_threshold=threshold,
            progress_horizon=None if card is None else card.horizon,
            progress=progress,
            camera=None if heads is None else heads.camera,
        )

    @property
    def _looks_back(self) -> int:
        """Trailing frames that a value needs."""
        if self._windowed:
            return self.settings.window
        if not self._plan.prompt.sees_video:
            return 1
        return ALL_FRAMES if self._all_rows else self.settings.nframes

    @property
    def _heads(self) -> RobometerBackend | None:
        if self.kind != "robometer":
            return None
        from guerdon.models.vlm.vlm_transformers import RobometerBackend

        assert isinstance(self.backend, RobometerBackend)
        return self.backend

    @concurrent
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order; what the model did not answer is a `Failure`."""
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One explained score per episode, in order; its text is the answer about the last scored row.

        Args:
            episodes: with frames and a task.
            options: see `JudgeOptions`; a prompt must ask for a kind of answer that this model gives.

        Raises:
            ConfigError: an option that this model does not have.
        """
        plan = self._planned(options)
        asked: dict[bytes, Question] = {}
        plans: list[list[bytes | None] | Failure] = []
        for episode in episodes:
            wrong = _unusable(episode)
            plans.append(wrong or self._keys(episode, plan, asked))
        answers = dict(zip(asked, self._ask(list(asked.values()), plan), strict=True))
        return [
            ExplainedScore(Score(failure=keys)) if isinstance(keys, Failure) else self._judged(episode, keys, answers)
            for episode, keys in zip(episodes, plans, strict=True)
        ]

    def values(self, questions: Sequence[Question]) -> list[float | Failure]:
        """Values of the answers to questions of the model's own prompt, in order."""
        return [read.value for read in self._ask(list(questions), self._plan)]

    def check_template(self) -> None:
        """Render the questions with the model's chat template; the template of other backends is not known.

        Raises:
            CheckpointError: the template refuses a question.
        """
        if self.settings.backend == "transformers":
            from guerdon.models.vlm.vlm_transformers import TransformersBackend

            assert isinstance(self.backend, TransformersBackend)
            asked: dict[bytes, Question] = {}
            self._keys(Episode(id="", task="do it", frames=np.zeros((2, 64, 64, 3), np.uint8)), self._plan, asked)
            for question in asked.values():
                with boundary(CheckpointError, f"{self.settings.path!r} cannot read a question"):
                    self.backend.inputs.render(question)

    @property
    def _windowed(self) -> bool:
        return self.kind in ("trend", "preference")

    @property
    def _all_rows(self) -> bool:
        if self._windowed:
            return True
        whole = self._plan.prompt.sees_video and self.kind != "robometer"
        rows: Literal["all", "last"] = self.settings.rows or ("last" if whole else "all")
        return rows == "all"

    def _planned(self, options: JudgeOptions) -> _Plan:
        s = self.settings
        name = options.prompt or s.prompt
        if name is None:
            name = self._default_prompt()
        prompt = find_prompt(name, answers=ANSWERS[self.kind])
        self._check_prompt(name, prompt, options)
        nframes = s.window if self._windowed else s.nframes
        return _Plan(
            prompt, options.nframes or nframes, options.max_pixels or s.max_pixels, options.score_mode or s.score_mode
        )

    def _default_prompt(self) -> str:
        """The name of the prompt where none is named."""
        if self.kind == "qwen_vl":
            return self.settings.prompt_name
        if self.kind == "true_logprob":
            return "topreward_v1" if self.settings.backend == "transformers" else "true_logprob_chat"
        return self.kind

    def _check_prompt(self, name: str, prompt: PromptTemplate, options: JudgeOptions) -> None:
        """Refuse a prompt that the backend cannot write, and settings that would do nothing with it.

        Raises:
            ConfigError: it is such.
        """
        s = self.settings
        if (prompt.open or not prompt.chat) and s.backend != "transformers":
            how = "ends inside the user's turn" if prompt.open else "has no chat template"
            raise ConfigError(f"the prompt {name!r} {how}; backend {s.backend} always writes the whole chat template")
        if not prompt.chat and s.chat_template_kwargs:
            raise ConfigError(
                f"the prompt {name!r} has no chat template: remove vlm.chat_template_kwargs",
                key="vlm.chat_template_kwargs",
            )
        if options.prompt is None and prompt.answer != "completed" and "answer" in s.model_fields_set:
            raise ConfigError(
                f"reward.model.vlm: answer would do nothing with prompt {name}; remove it",
                key="reward.model.vlm.answer",
            )
        if options.score_mode not in (None, "auto") and prompt.answer != "number":  # auto leaves it to the prompt
            raise ConfigError(
                f"score_mode would do nothing with the prompt {name!r}, whose answer is not a number", key="score_mode"
            )

    def _keys(self, episode: Episode, plan: _Plan, asked: dict[bytes, Question]) -> list[bytes | None]:
        """Key of the question about each row, None for a row without one; new questions are added to `asked`."""
        frames = episode.frames
        assert frames is not None
        words = plan.prompt.fill(episode.task)
        keys: list[bytes | None] = []
        for row in range(len(frames)) if self._all_rows else [len(frames) - 1]:
            if self._windowed and row == 0:
                keys.append(None)
                continue
            question = make_question(
                words,
                self._visible(frames, row, plan),
                nframes=plan.nframes,
                max_pixels=plan.max_pixels,
                fps=self.settings.fps,
                video_as=self.settings.video_as or ("video" if self.settings.backend == "transformers" else "images"),
            )
            asked.setdefault(question.key, question)
            keys.append(question.key)
        return keys

    def _visible(self, frames_T: ByteArray, row: int, plan: _Plan) -> ByteArray:
        """The frames that the value of a row may look at."""
        if self._windowed:
            return frames_T[max(row + 1 - self.settings.window, 0) : row + 1]
        return frames_T[: row + 1] if plan.prompt.sees_video else frames_T[row : row + 1]

    def _ask(self, questions: list[Question], plan: _Plan) -> list[_Read]:
        if not questions:
            return []
        s, answer = self.settings, plan.prompt.answer
        if self._heads is not None:
            return [_headed(found, s.question) for found in self._heads.read_heads(questions)]
        if answer == "true":
            words = TRUE_CONTINUATION if plan.prompt.open else TRUE
            return [_true(found) for found in self.backend.word_log_probs(questions, (words,))]
        if answer == "completed" and (s.answer or "soft") == "soft":
            return [_yes(found) for found in self.backend.word_log_probs(questions, (YES, NO))]
        options = GenerationOptions(s.max_tokens or plan.prompt.max_tokens, s.temperature, s.top_p, s.seed)
        replies = self.backend.generate(questions, options)
        return [self._read(found, asked.prompt.task, plan) for found, asked in zip(replies, questions, strict=True)]

    def _read(self, found: VLMReply | Failure, task: str, plan: _Plan) -> _Read:
        """The value of a reply to a question about a task."""
        if isinstance(found, Failure):
            return _Read(found)
        if not found.whole and plan.prompt.answer != "completed":
            cut = Failure("truncated", f"the answer did not end by itself ({found.stop}): {found.text[-80:]!r}")
            return _Read(cut, found.text, found.tokens)
        parsed = self._parse(found.text, task, plan)
        if isinstance(parsed, Failure):
            return _Read(parsed, found.text, found.tokens)
        value, status = parsed
        if not found.whole:
            status = "fallback"  # the rest of the answer is unknown
        if status == "fallback" and not self.settings.allow_fallback:
            how = "from a sentence, not from" if found.whole else "from an answer without its end, not from all of"
            detail = f"{value:g} was read {how} an answer in the form asked for: {found.text[:80]!r}"
            return _Read(Failure("fallback", f"{detail} (vlm.allow_fallback: true takes it)"), found.text, found.tokens)
        return _Read(value, found.text, found.tokens, status)

    def _parse(self, text: str, task: str, plan: _Plan) -> tuple[float, ParseStatus] | Failure:
        """The value in an answer, and whether it has the form that was asked for."""
        answer = plan.prompt.answer
        if answer in _WORDS:
            found = parse_answer(text, Choices(*_WORDS[answer]), [task])
            return found if isinstance(found, Failure) else (_VALUES[found.value], found.status)
        form = Completed() if answer == "completed" else Numbers(plan.scale, plan.prompt.scale)
        found = parse_answer(text, form, [task])
        return found if isinstance(found, Failure) else (found.value, found.status)

    def _judged(self, episode: Episode, keys: list[bytes | None], answers: dict[bytes, _Read]) -> ExplainedScore:
        """The explained score of an episode from the answers about its rows."""
        reads = [_Read(_TRENDS["unclear"]) if key is None else answers[key] for key in keys]
        text = reads[-1].text
        tokens = sum(read.tokens for read in reads)
        failures = [(row, read.value) for row, read in enumerate(reads) if isinstance(read.value, Failure)]
        if failures:
            row, first = failures[0]
            where = f"row {row} ({len(failures)} of {len(reads)} rows): " if len(reads) > 1 else ""
            return ExplainedScore(Score(failure=Failure(first.reason, where + first.detail)), text, tokens)
        values = np.array([read.value for read in reads], dtype=np.float64)
        total = float(values.mean() if self._windowed else values[-1])
        score = Score.from_values(values, total=total) if len(values) == len(episode) else Score(total=total)
        return ExplainedScore(score, text, tokens, parse_status=joined_status(read.status for read in reads))


def _check(kind: VLMType, settings: VLMSettings) -> None:
    try:
        settings.check(kind)
    except ConfigError as error:
        raise ConfigError(f"reward.model.vlm: {error}", key=f"reward.model.vlm.{error.key}") from error


def _unusable(episode: Episode) -> Failure | None:
    if episode.frames is None or not episode.frames.size:
        return Failure("no_frames", "the episode has no frames")
    high, wide = episode.frames.shape[1:3]
    if max(high, wide) > WIDEST * min(high, wide):
        return Failure("bad_frames", f"frames of {high} x {wide} pixels are too narrow for a vision-language model")
    if not episode.task.strip():
        return Failure("no_task", "the episode does not say what its task was")
    return unreadable(episode, task_only=True)


def _yes(found: WordLogProbs | Failure) -> _Read:
    """p(yes) / (p(yes) + p(no)), if both together have at least `LEAST_SHARE`."""
    if isinstance(found, Failure):
        return _Read(found)
    yes = float(found.log_probs[0])
    no = float(found.log_probs[1])
    if not np.logaddexp(yes, no) >= np.log(LEAST_SHARE):
        detail = (
            f"p(yes) {np.exp(yes):.3g} and p(no) {np.exp(no):.3g}: the model begins its answer with something else "
            "(reasoning?); use vlm.answer: hard"
        )
        return _Read(Failure("low_probability", detail), tokens=found.tokens)
    value = float(np.exp(yes - np.logaddexp(yes, no)))
    return _Read(value, f"p(yes) {np.exp(yes):.3g}, p(no) {np.exp(no):.3g}", found.tokens)


def _headed(found: Heads | Failure, question: Literal["completed", "progress"]) -> _Read:
    """What one of the heads says."""
    if isinstance(found, Failure):
        return _Read(found)
    said = f"progress {found.progress:.3f}, p(success) {found.success:.3f}"
    return _Read(found.progress if question == "progress" else found.success, said, found.tokens)


def _true(found: WordLogProbs | Failure) -> _Read:
    """Logarithm of p(True)."""
    if isinstance(found, Failure):
        return _Read(found)
    value = max(float(found.log_probs[0]), LOWEST_LOG_PROB)
    return _Read(value, f"log p(True) {value:.3f}", found.tokens)


@dataclass(frozen=True)
class VLMCard:
    """Content of `vlm.json`.

    Attributes:
        asked: values of `ASKED`.
        base: folder or hub id of the model; `base`: inside the checkpoint.
        adapter: whether the checkpoint has one.
        threshold: probability above which an episode counts as successful.
        horizon: see `RewardInfo.progress_horizon`.
        label: meaning of a value, for reports.
        data_hash: of the training data, of several sets with spaces between them.
        transformers_version: version of transformers whose processors made the training inputs.
    """

    asked: dict[str, Any]
    base: str
    adapter: bool
    threshold: float | None = None
    horizon: float | None = None
    label: str = ""
    data_hash: str = ""
    transformers_version: str = ""


def write_vlm_checkpoint(folder: Path, card: VLMCard, write_weights: Callable[[Path], None]) -> Path:
    """Write a checkpoint in one piece.

    Args:
        folder: replaced if it exists.
        card: content of `vlm.json`.
        write_weights: writes `adapter/` or `base/` (or both) into the folder that it is given.

    Returns:
        The folder.
    """
    with sealed_folder(folder) as temporary:
        write_weights(temporary)
        write_card(temporary / CARD, card, type="qwen_vl")
    return folder


def find_card(path: str | Path) -> tuple[Path, VLMCard]:
    """The folder of a checkpoint (`path` or its `model/`) and its card; the hash of every file is checked.

    Raises:
        CheckpointError: there is none, it is incomplete or altered.
    """
    folder = _own_folder(path)
    if folder is None:
        raise CheckpointError(
            f"no vision-language reward model at {path}: expected a folder with {CARD}; write one with `guerdon train`"
        )
    verify_folder(folder)
    return folder, read_card(folder / CARD, VLMCard)


def load_vlm(
    name: str,
    checkpoint_path: str | Path | None = None,
    *,
    vlm: VLMSettings | Mapping[str, Any] | None = None,
    device: str | torch.device | None = None,
) -> VLMRewardModel:
    """Build a vision-language reward model.

    Args:
        name: of `VLM_NAMES`; some imply a backend or a question.
        checkpoint_path: folder that `guerdon train` wrote (then `vlm` may not name another model or question), or any
            model (folder or hub id), which then is `vlm.path`.
        vlm: settings of questions and backend.
        device: of the transformers backend; None for the GPU when there is one.

    Raises:
        ConfigError: settings that do not fit, or a model is missing.
        CheckpointError: it cannot be read.
        MissingDependencyError: the backend is not installed.
    """
    kind = VLM_NAMES[name]
    given = vlm.model_dump(exclude_unset=True) if isinstance(vlm, VLMSettings) else dict(vlm or {})
    trained = _trained(given, checkpoint_path)
    card = None if trained is None else trained[1]
    fixed = {} if card is None else {"question": card.asked["question"]}
    heads = None
    if kind == "robometer" and given.get("path") is not None:
        from guerdon.models.vlm.vlm_transformers import read_robometer_config

        heads = read_robometer_config(given["path"])
        given = {"question": heads.question, "nframes": heads.max_frames, **given}
    given = {k: v for k, v in implied_by(name, {**fixed, **given}).items() if k in given or k not in fixed}
    settings = validate(VLMSettings, given, origin="reward.model.vlm")
    if trained is not None:
        settings = _from_checkpoint(kind, *trained, settings)
    elif settings.backend != "openai" and settings.path is None:
        raise ConfigError(
            f"the reward model {kind} needs a model: checkpoint_path (a folder that `guerdon train` wrote), "
            "vlm.path, or vlm.backend: openai with an endpoint",
            key="vlm.path",
        )
    _check(kind, settings)
    backend = open_backend(settings, device) if heads is None else heads.open(settings, device)
    model = VLMRewardModel(kind, settings, backend, card)
    model.check_template()
    return model


def _trained(given: dict[str, Any], checkpoint_path: str | Path | None) -> tuple[Path, VLMCard] | None:
    """The folder and card of a model that `guerdon train` wrote; any other model is put into `given["path"]`.

    Args:
        given: settings; a path of such a folder is taken out of them.
        checkpoint_path: see `load_vlm`.
    """
    path = given.get("path")
    if checkpoint_path is None:
        if path is None or not is_checkpoint(path):
            return None
        return find_card(given.pop("path"))
    if is_checkpoint(checkpoint_path):
        return find_card(checkpoint_path)
    if path is not None:
        raise ConfigError(
            f"both vlm.path and checkpoint_path {str(checkpoint_path)!r} are given; give one of them", key="vlm.path"
        )
    given["path"] = str(checkpoint_path)
    return None


def is_checkpoint(path: str | Path) -> bool:
    """Whether a trained vision-language reward model lies there."""
    return _own_folder(path) is not None


def _own_folder(path: str | Path) -> Path | None:
    return next((folder for folder in (Path(path), Path(path) / "model") if (folder / CARD).is_file()), None)


def open_backend(settings: VLMSettings, device: str | torch.device | None = None) -> Backend:
    """Load the model, or reach the endpoint."""
    if settings.backend == "openai":
        from guerdon.models.vlm.vlm_chat import OpenAIBackend

        assert settings.openai is not None
        return OpenAIBackend(settings.openai, template=settings.chat_template_kwargs)
    assert settings.path is not None
    if settings.backend == "vllm":
        from guerdon.models.vlm.vlm_chat import VLLMBackend

        return VLLMBackend(settings.path, settings.adapter, settings.vllm, template=settings.chat_template_kwargs)
    from guerdon.models.vlm.vlm_transformers import TransformersBackend, read_vlm

    where = resolve_device(device)
    bf16 = uses_bf16(settings.bf16, where)
    loaded = read_vlm(settings.path, settings.adapter, dtype=torch.bfloat16 if bf16 else torch.float32)
    set_arguments(loaded.inputs.tokenizer, settings.chat_template_kwargs, "vlm.chat_template_kwargs")
    return TransformersBackend(
        *loaded, batch_size=settings.batch_size, bf16=bf16, device=where,
        checkpoint_generation=settings.checkpoint_generation,
    )  # fmt: skip


def _from_checkpoint(kind: VLMType, folder: Path, card: VLMCard, settings: VLMSettings) -> VLMSettings:
    """The settings with those of a checkpoint, which they may not contradict."""
    if kind != "qwen_vl":
        raise ConfigError(
            f"{folder} is a qwen_vl model; model_type {kind} has no checkpoints: give vlm.path", key="vlm.path"
        )
    given = settings.model_dump(exclude_unset=True)
    if settings.backend == "openai":
        raise ConfigError(
            "checkpoint_path would do nothing with backend openai, whose endpoint has its own model",
            key="checkpoint_path",
        )
    for name in ("path", "adapter", "prompt"):
        if given.get(name) is not None:
            raise ConfigError.about(f"vlm.{name}", "and checkpoint_path, which contains it, are both given; remove one")
    for name in ASKED:
        if name in given and given[name] is not None and given[name] != card.asked.get(name):
            raise CheckpointError(
                f"{name} mismatch: {folder} was trained with {card.asked.get(name)!r}, asked for {given[name]!r}; "
                f"remove vlm.{name}, or train with it"
            )
    base = str(folder / BASE) if card.base == BASE else card.base
    unused = {"fps"} if settings.backend == "vllm" else set()  # vLLM takes no frame rate
    asked = {name: value for name, value in card.asked.items() if name in set(ASKED) - unused}
    whole = {**given, **asked, "path": base} | ({"adapter": str(folder / ADAPTER)} if card.adapter else {})
    try:
        return VLMSettings(**whole)
    except ValidationError as error:
        raise CheckpointError(f"{folder / CARD} does not fit this version: {error.errors()[0]['msg']}") from error
