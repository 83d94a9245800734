"""Requests and replies of the client: `/v1/rewards`, many items at a time, and `/score`, one video at a time.

Episodes become requests, replies become explained scores. An episode that cannot be sent fails alone, and so does an
item that the server names as the reason for a refusal; the others are sent without it. A number of a reply counts only
if it is finite and in the range that the model declares, for every row that was sent. Anything else (a missing field, a
string, NaN, one score too few) is a `Failure`, never a number. Connections and retries are in `client.py`.

A format is a class with the methods of `RewardsFormat` and an entry in `FORMATS`.

    read_items(results, [episode], info, ids=["0"])[0].score.failure      # Failure('out_of_range', ...)
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeGuard
from urllib.parse import quote

import numpy as np

from guerdon.errors import ConfigError, DataError, boundary
from guerdon.files.json_files import json_line
from guerdon.models.explained_score import PARSE_STATUSES, ExplainedScore, JudgeOptions, ParseStatus
from guerdon.models.frames import sample_frames
from guerdon.models.judges.rubric import REFERENCE, RUBRIC
from guerdon.models.scores import solution_value
from guerdon.policies.batches.tokens import split_steps
from guerdon.reading.chats import asked_key, chat_messages, unreadable
from guerdon.serve.score_answer import text_in
from guerdon.serve.update_store import UpdateId, UpdateResult
from guerdon.serve.wires.wire_text import CutError, cutting, from_messages
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.remote import RemoteSettings
from guerdon.types import ByteArray, Episode, Failure, RewardInfo, Score

UpdateOrder = Literal["none", "before", "after"]
MOST_BYTES = 16_000_000  # of frames in one request, before base64
MODEL_NOT_FOUND = "model_not_found"  # the server's code for an unknown model
NO_TOTAL = "no_total"  # the server's reason for an item that has values of steps only
SLACK = 1e-6  # of a range, for numbers that were float32
JPEG_QUALITY = 95
FILES = {  # field, file name and media type of an upload in a form
    "jpeg": ("frames", "{}.jpg", "image/jpeg"),
    "mp4": ("video", "episode.mp4", "video/mp4"),
    "npy": ("video", "episode.npy", "application/octet-stream"),
}
_NAMED = re.compile(r"items\[(\d+)\]")
_WORD = re.compile(r"[a-z0-9_]{1,64}\Z")


@dataclass(frozen=True)
class ServerReply:
    """The reply of a server, or why there is none.

    Attributes:
        value: the JSON of a reply with status 200.
        failure: the reason; None: there is a value.
        param: the field that the server names as wrong.
        code: the server's code of the error.
        transient: the last try failed in a way that another one might not.
    """

    value: Any = None
    failure: Failure | None = None
    param: str | None = None
    code: str | None = None
    transient: bool = False


Send = Callable[..., Awaitable[ServerReply]]
"""Posts to a path, with retries and the deadline of the call; a body is `content` in JSON, or `data` and `files`."""


def compared_with(episode: Episode) -> tuple[str, str]:
    """Equal for episodes that a model compares with each other."""
    return episode.group or "", asked_key(episode.task, episode.context, episode.tools)


@dataclass(frozen=True)
class RewardsFormat:
    """`POST /v1/rewards` and `POST /v1/update`."""

    settings: RemoteSettings

    @property
    def describe_path(self) -> str:
        """Path of the description of the model."""
        backend = self.settings.backend
        return "/v1/rewards" + ("" if backend is None else f"?model={quote(backend, safe='')}")

    def info(self, found: Any) -> RewardInfo | Failure:
        """The info in a description, `{"model", "info": {...}}`."""
        try:
            fields = dict(found["info"])
            low, high = fields.pop("range")
            low = -math.inf if low is None else float(low)
            high = math.inf if high is None else float(high)
            fields["keys"] = tuple(fields.get("keys", ()))
            known = fields.keys() & RewardInfo.__dataclass_fields__.keys()  # later servers may say more
            return RewardInfo(range=(low, high), **{name: fields[name] for name in known})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return Failure("bad_reply", f"no description of a reward model: {type(error).__name__}: {error}")

    def batches(self, episodes: Sequence[Episode], info: RewardInfo) -> list[list[Episode]]:
        """The episodes of each request, in order: at most `max_batch_items` and `MOST_BYTES`, or a group to compare."""
        if info.compares:
            return [list(group) for _, group in groupby(episodes, compared_with)]
        batches: list[list[Episode]] = []
        room = 0
        for episode in episodes:
            size = _bytes(episode, info, self.settings)
            if not batches or len(batches[-1]) == self.settings.max_batch_items or size > room:
                batches.append([])
                room = MOST_BYTES
            batches[-1].append(episode)
            room -= size
        return batches

    async def ask(
        self, send: Send, episodes: Sequence[Episode], info: RewardInfo, options: JudgeOptions | None
    ) -> list[ExplainedScore]:
        """One explained score per episode, in order; asks again without an item that the server names as wrong."""
        s = self.settings
        head: dict[str, Any] = {"deadline_s": min(s.read_timeout, s.timeout, 3600.0), **self._model()}
        if info.modality != "text" and (chosen := _options(s, options, whole=info.granularity == "total")):
            head["options"] = chosen
        found: dict[int, ExplainedScore] = {}
        with ExitStack() as files:
            items: dict[int, dict[str, Any]] = {}
            for place, episode in enumerate(episodes):
                item = self._item(episode, info, files)
                if isinstance(item, Failure):
                    found[place] = failed(item)
                else:
                    items[place] = item
            while items:
                places = list(items)
                body = {**head, "items": [{**items[p], "id": str(p)} for p in places]}
                reply = await send("/v1/rewards", content=json_line(body))
                if reply.failure is None:
                    scores = read_items(reply.value, [episodes[p] for p in places], info, ids=[str(p) for p in places])
                    found |= zip(places, scores, strict=True)
                    break
                wrong = _named_item(reply.param, places)
                if wrong is None:
                    found |= {place: failed(reply.failure) for place in places}
                    break
                found[wrong] = failed(reply.failure)
                del items[wrong]
        return [found[place] for place in range(len(episodes))]

    async def update(
        self, send: Send, episodes: Sequence[Episode], info: RewardInfo, when: UpdateOrder, update: UpdateId
    ) -> UpdateResult | Failure:
        """Let the model learn; all episodes in one request, and none is left out."""
        items = []
        for place, episode in enumerate(episodes):
            item = self._item(episode, info, ExitStack())
            if isinstance(item, Failure):
                return Failure(item.reason, f"item {place}: {item.detail}")
            outcome = None if episode.outcome is None else bool(episode.outcome)
            items.append({**item, "id": str(place), "outcome": outcome})
        once = {} if when == "none" else asdict(update)
        reply = await send("/v1/update", content=json_line({**self._model(), **once, "update": when, "items": items}))
        if reply.failure is not None:
            return reply.failure
        found = reply.value if isinstance(reply.value, Mapping) else {}
        metrics, updates = found.get("metrics"), found.get("updates")
        if not isinstance(metrics, Mapping) or not isinstance(updates, int | None):
            return Failure("bad_reply", "the reply has no metrics of the update")
        scores = read_items(found, episodes, info, ids=[str(p) for p in range(len(episodes))])
        numbers = {
            str(k): float(v)
            for k, v in metrics.items()
            if isinstance(v, float) or (isinstance(v, int) and abs(v) < 2**63)
        }
        return UpdateResult(scores, numbers, updates, found.get("repeated") is True)

    def _model(self) -> dict[str, Any]:
        return {} if self.settings.backend is None else {"model": self.settings.backend}

    def _item(self, episode: Episode, info: RewardInfo, files: ExitStack) -> dict[str, Any] | Failure:
        """The input of the model in an episode: never the outcome, nor rewards of the environment."""
        if episode.texts is not None and (info.modality == "text" or episode.frames is None):
            return _text_item(episode, episode.texts)
        if info.modality == "state" and episode.states is not None and episode.states.size:
            return _states(episode, info)
        frames = _frames(episode, info)
        if frames is None or not len(frames):
            held = ", ".join(episode.columns())
            return Failure("no_frames", f"the episode has neither frames nor text to send, only {held}")
        media = _media(frames, self.settings, files, whole=info.granularity == "total")
        if isinstance(media, Failure):
            return media
        item: dict[str, Any] = {"task": episode.task}
        if info.states and episode.states is not None:
            item["states"] = episode.states.tolist()
        return item | _named_media(media, self.settings.upload)


@dataclass(frozen=True)
class ScoreFormat:
    """`POST /score` of the LIBERO guide: one video, one score in [0, 1]."""

    settings: RemoteSettings
    describe_path = "/health"

    def info(self, found: Any) -> RewardInfo | Failure:
        """The guide's promise: one score in [0, 1] for a whole video."""
        if not isinstance(found, Mapping) or found.get("status") != "ok":
            return Failure("bad_reply", "its /health does not have status ok")
        name = self.settings.backend or str(found.get("default_backend") or "score")
        return RewardInfo(name=name, range=(0.0, 1.0), granularity="total", causal=False)

    def batches(self, episodes: Sequence[Episode], info: RewardInfo) -> list[list[Episode]]:
        """One episode per request."""
        return [[episode] for episode in episodes]

    async def ask(
        self, send: Send, episodes: Sequence[Episode], info: RewardInfo, options: JudgeOptions | None
    ) -> list[ExplainedScore]:
        """The explained score of one episode."""
        s, (episode,) = self.settings, episodes
        if episode.frames is None or not len(episode.frames):
            return [failed(Failure("no_frames", "the episode has no frames to send"))]
        if (why := unreadable(episode, task_only=True)) is not None:
            return [failed(why)]
        fields: dict[str, Any] = {"task_text": episode.task, **_options(s, options, whole=True)}
        kwargs: dict[str, Any] = {key: fields.pop(key) for key in ("score_mode", "prompt") if key in fields}
        fields |= {"backend": s.backend} if s.backend is not None else {}
        with ExitStack() as files:
            media = _media(episode.frames, s, files, whole=True)
            if isinstance(media, Failure):
                return [failed(media)]
            if isinstance(media, str):
                fields |= {"video_path": media} | ({"backend_kwargs": kwargs} if kwargs else {})
                reply = await send("/score", content=json_line(fields))
            else:
                fields |= {"backend_kwargs": json.dumps(kwargs)} if kwargs else {}
                name, file, media_type = FILES[s.upload]
                parts = [(name, (file.format(t), blob, media_type)) for t, blob in enumerate(media)]
                texts = {key: str(value).encode() for key, value in fields.items()}
                reply = await send("/score", data=texts, files=parts)
        return [read_score(reply.value, info) if reply.failure is None else failed(reply.failure)]


FORMATS: dict[str, type[RewardsFormat] | type[ScoreFormat]] = {"native": RewardsFormat, "score": ScoreFormat}


def _options(settings: RemoteSettings, options: JudgeOptions | None, *, whole: bool) -> dict[str, Any]:
    """Options for vision-language models; those of the call take precedence over the settings."""
    chosen: dict[str, Any] = dict(settings.backend_kwargs)
    if whole:
        chosen |= {"nframes": settings.nframes, "max_pixels": settings.max_pixels}
    elif settings.max_pixels != type(settings).model_fields["max_pixels"].default:
        chosen["max_pixels"] = settings.max_pixels
    if options is not None:
        chosen |= {key: value for key, value in asdict(options).items() if value is not None}
    return chosen


def _named_item(param: str | None, places: Sequence[int]) -> int | None:
    """The place of the item that an error names as wrong, where others are left without it."""
    named = _NAMED.match(param or "")
    if named is None or len(places) < 2 or int(named[1]) >= len(places):
        return None
    return places[int(named[1])]


def _named_media(media: list[bytes] | str, upload: str) -> dict[str, Any]:
    """Frames under the name that the server knows them by: the path of a video, or contents of files in base64."""
    if isinstance(media, str):
        return {"video_path": media}
    texts = [base64.b64encode(blob).decode("ascii") for blob in media]
    if upload == "jpeg":
        return {"frames_base64": texts}
    return {"npy_base64" if upload == "npy" else "video_base64": texts[0]}


def _text_item(episode: Episode, texts: Sequence[str]) -> dict[str, Any] | Failure:
    """The input of a model of text; with the true answer and the rubric, which judges may be shown."""
    if (why := unreadable(episode)) is not None:
        return why
    if not all(texts):
        return Failure("empty_text", "a step or response without text cannot be scored")
    known = {"label": episode.meta.get(REFERENCE), "rubric": episode.meta.get(RUBRIC)}
    more = {key: value for key, value in known.items() if value and isinstance(value, str | list)}
    return {**_asked(episode), "steps": list(texts), **more}


def _asked(episode: Episode) -> dict[str, Any]:
    """The question, or the conversation and its tools."""
    tools = {"tools": [dict(tool) for tool in episode.tools]} if episode.tools else {}
    if not episode.context and not tools:
        return {"prompt": episode.task}
    messages = episode.context or ({"role": "user", "content": episode.task},)
    return {"messages": [dict(message) for message in messages], **tools}


def _states(episode: Episode, info: RewardInfo) -> dict[str, Any] | Failure:
    """The parts of the states that a model looks at; of unnamed parts, whole states."""
    from guerdon.models.images.image import state_rows

    rows = state_rows(episode, info.keys, actions=info.actions)
    if rows is None:
        return Failure("no_states", f"its states lack parts that the model looks at ({', '.join(info.keys)})")
    return {"task": episode.task, "states": rows.tolist()}


def _frames(episode: Episode, info: RewardInfo) -> ByteArray | None:
    """Frames of an episode; tiny ones for a model that uses none, but has a value for every row."""
    if info.frames_needed == 0 and info.modality != "text" and len(episode):
        return np.zeros((len(episode), 8, 8, 3), np.uint8)
    return episode.frames


def _bytes(episode: Episode, info: RewardInfo, settings: RemoteSettings) -> int:
    """Approximate size of an episode in a request."""
    frames = _frames(episode, info)
    if frames is None or not len(frames):
        return sum(map(len, episode.texts or ())) + len(asked_key(episode.task, episode.context, episode.tools))
    count = min(len(frames), settings.nframes) if info.granularity == "total" else len(frames)
    return count * int(frames[0].nbytes)


def _media(
    frames_T_H_W_3: ByteArray, settings: RemoteSettings, files: ExitStack, *, whole: bool
) -> list[bytes] | str | Failure:
    """The frames as one NPY or MP4 file, as a JPEG file each, or as the path of a video; or why that failed.

    Args:
        frames_T_H_W_3: of an episode.
        settings: what to send.
        files: the video of a path exists until it is closed.
        whole: the model scores whole episodes: `nframes` are sent.
    """
    s, frames = settings, frames_T_H_W_3
    try:
        with boundary(DataError, "the frames cannot be encoded"):
            if whole:
                frames = frames[sample_frames(len(frames), s.nframes)]
            if s.upload == "jpeg":
                return [_jpeg(frame) for frame in frames]
            if s.upload == "npy":
                np.save(buffer := io.BytesIO(), np.ascontiguousarray(frames), allow_pickle=False)
                return [buffer.getvalue()]
            if s.upload == "path":
                path = files.enter_context(video_file(frames, s.temp_video_dir, s.fps, keep=s.keep_temp_video))
                return str(path.resolve())
            with video_file(frames, s.temp_video_dir, s.fps, keep=s.temp_video_dir is not None) as path:
                return [path.read_bytes()]
    except DataError as error:
        return Failure("cannot_send", str(error)[:300])


def _jpeg(frame_H_W_3: ByteArray) -> bytes:
    """A JPEG file of one frame, without chroma subsampling."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame_H_W_3)).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


@contextmanager
def video_file(frames_T_H_W_3: ByteArray, folder: str | None, fps: int, *, keep: bool) -> Iterator[Path]:
    """An MP4 file in a folder (None: a temporary one), removed afterwards unless kept.

    A single frame is written twice, because video readers need two.

    Raises:
        MissingDependencyError: PyAV is not installed.
    """
    from guerdon.episodes.video import VideoWriter

    frames = frames_T_H_W_3 if len(frames_T_H_W_3) > 1 else np.repeat(frames_T_H_W_3, 2, axis=0)
    with ExitStack() as temporary:
        place = Path(folder or temporary.enter_context(tempfile.TemporaryDirectory(prefix="guerdon-")))
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"guerdon-{uuid.uuid4().hex}.mp4"
        try:
            with VideoWriter(path, height=frames.shape[1], width=frames.shape[2], fps=fps) as video:
                video.add(frames)
            yield path
        finally:
            if not keep:
                path.unlink(missing_ok=True)


def text_episodes(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    separator: str | None,
    outcomes: Sequence[bool] | None = None,
) -> list[Episode | Failure]:
    """Prompts and completions as episodes with a row per step, or why one of them cannot be read.

    Raises:
        DataError: not one of each, or a text instead of a list of texts.
    """
    if isinstance(prompts, str) or isinstance(completions, str):
        raise DataError(
            "prompts and completions are lists; put a single one into brackets: rewards([prompt], [answer])"
        )
    known: Sequence[bool | None] = [None] * len(prompts) if outcomes is None else outcomes
    if not len(prompts) == len(completions) == len(known):
        raise DataError(f"{len(prompts)} prompts, {len(completions)} completions, {len(known)} outcomes: give one each")
    episodes: list[Episode | Failure] = []
    for n, (prompt, completion, outcome) in enumerate(zip(prompts, completions, known, strict=True)):
        try:
            asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            said = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
            with cutting():
                pair = from_messages((*chat_messages(asked), *chat_messages(said)))
        except CutError as error:
            episodes.append(error.failure)
            continue
        text = pair.response
        steps = (text,) if separator is None else tuple(split_steps(text, separator))
        episodes.append(Episode(id=str(n), task=pair.task, texts=steps, outcome=outcome, context=pair.context))
    return episodes


def value_of(score: Score, how: Aggregation | None = None) -> float | Failure:
    """One number for an item: its total, else its last row; with `how`, its rows aggregated. Or why there is none."""
    if how is None and score.total is not None:
        return float(score.total)
    if how is None and score.steps is not None and score.steps.size:
        return float(score.steps[-1])
    return solution_value(score, how or "last")


def number_of(score: Score, how: Aggregation | None = None) -> float | None:
    """As `value_of`; None where there is none."""
    value = value_of(score, how)
    return None if isinstance(value, Failure) else value


def failed(failure: Failure, text: str = "") -> ExplainedScore:
    """A score that is missing, and the text of the model."""
    return ExplainedScore(Score(failure=failure), text)


def read_items(found: Any, episodes: Sequence[Episode], info: RewardInfo, ids: Sequence[str]) -> list[ExplainedScore]:
    """Explained scores from a reply with `results`.

    Args:
        found: the reply's JSON.
        episodes: those of the request, in order.
        info: the model's declaration.
        ids: name of each item in the request, which the reply repeats.

    Returns:
        One per episode. If the number of items is wrong, none is used: it is unknown which ones are missing.
    """
    items = found.get("results") if isinstance(found, Mapping) else None
    if not isinstance(items, list):
        return [failed(Failure("bad_reply", f"no list of items but {_shown(items)}"))] * len(episodes)
    if len(items) != len(episodes):
        return [failed(Failure("wrong_count", f"{len(items)} items for {len(episodes)} episodes"))] * len(episodes)
    return [_read_item(item, episode, info, name) for item, episode, name in zip(items, episodes, ids, strict=True)]


def _read_item(item: Any, episode: Episode, info: RewardInfo, name: str) -> ExplainedScore:
    if not isinstance(item, Mapping):
        return failed(Failure("bad_reply", f"no item but {_shown(item)}"))
    if item.get("id") != name:
        return failed(Failure("bad_reply", f"item {_shown(item.get('id'))} where {name} was asked about"))
    failure = _failure_of(item)
    if failure is not None:
        return failed(failure)
    steps = _read_steps(item.get("step_scores"), len(episode), info)
    if isinstance(steps, Failure):
        return failed(steps)
    total = None if item.get("score") is None else _number(item["score"], info, "score")
    if isinstance(total, Failure):
        return failed(total)
    if steps is None and (info.granularity == "step" or total is None):
        what = "score" if info.granularity == "total" else "step_scores"
        return failed(Failure("bad_reply", f"neither {what} nor a failure"))
    text, tokens, spread = item.get("text"), item.get("n_tokens"), item.get("spread")
    if spread is not None and not _is_spread(spread):
        return failed(Failure("bad_reply", f"spread is {_shown(spread)}, not a number from 0"))
    return ExplainedScore(
        Score(steps=steps, total=total, spread=spread),
        text=text if isinstance(text, str) else "",
        tokens=tokens if _is_count(tokens) else None,
        truncated=item.get("truncated") is True,
        parse_status=_status(item),
    )


def _failure_of(item: Mapping[str, Any]) -> Failure | None:
    """The failure that an item states; None also where only its total is missing."""
    said = item.get("failure")
    if said is None:
        return None
    fields = said if isinstance(said, Mapping) else {"reason": said}
    if fields.get("reason") == NO_TOTAL and isinstance(said, Mapping) and item.get("step_scores") is not None:
        return None
    detail = fields.get("detail")
    return server_failure(fields.get("reason"), _shown(detail) if detail else "")


def _is_spread(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 <= value < math.inf


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_score(found: Any, info: RewardInfo) -> ExplainedScore:
    """The explained score in an answer of `POST /score`."""
    if not isinstance(found, Mapping) or "score" not in found:
        return failed(Failure("bad_reply", f"no score in {_shown(found)}"))
    value = _number(found["score"], info, "score")
    text = text_in(found)
    if isinstance(value, Failure):
        return failed(value, text)
    return ExplainedScore(Score(total=value), text, parse_status=_status(found))


def _status(found: Mapping[str, Any]) -> ParseStatus | None:
    return next((status for status in PARSE_STATUSES if status == found.get("parse_status")), None)


def _number(value: Any, info: RewardInfo, what: str) -> float | Failure:
    """A finite number in the declared range, or why it is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Failure("bad_reply", f"{what} is {_shown(value)}, not a number")
    try:
        known = float(value)
    except OverflowError:
        known = math.inf
    if not math.isfinite(known) or abs(known) > float(np.finfo(np.float32).max):
        return Failure("non_finite", f"{what} is {_shown(value)}")
    low, high = info.range
    slack = SLACK * max([1.0, *(abs(end) for end in (low, high) if math.isfinite(end))])
    if not low - slack <= known <= high + slack:
        return Failure("out_of_range", f"{what} is {known:g}; {info.name} declares {low:g} to {high:g}")
    return min(max(known, low), high)


def _read_steps(values: Any, rows: int, info: RewardInfo) -> np.ndarray | Failure | None:
    if values is None:
        return None
    if not isinstance(values, list):
        return Failure("bad_reply", f"step_scores is {_shown(values)}, not a list")
    if len(values) != rows:
        return Failure("wrong_length", f"{len(values)} step_scores for {rows} rows")
    read = [_number(value, info, f"step_scores[{row}]") for row, value in enumerate(values)]
    wrong = next((value for value in read if isinstance(value, Failure)), None)
    return wrong if wrong is not None else np.array(read, dtype=np.float32)


def server_failure(reason: object, detail: str) -> Failure:
    """A failure by the server's reason if that is a short word, otherwise `server_failure`."""
    known = isinstance(reason, str) and _WORD.match(reason) is not None
    return Failure(str(reason) if known else "server_failure", detail)


def _shown(value: Any) -> str:
    """The beginning of a foreign value, in one line."""
    text = value if isinstance(value, str) else repr(value)[:300]
    return " ".join(text[:300].split())[:200]


def refuse_idle(settings: RemoteSettings, info: RewardInfo) -> None:
    """Refuse settings that would do nothing for this model, or cannot work with it."""
    idle = {"nframes"} if info.granularity == "step" else set()
    idle |= {"nframes", "max_pixels", "upload"} if info.modality != "image" else set()
    fields = type(settings).model_fields
    given = sorted(key for key in idle if getattr(settings, key) != fields[key].default)
    if given:
        what = {"text": "text", "state": "states"}.get(info.modality, "every frame")
        raise ConfigError(
            f"{given[0]} would do nothing with the model {info.name!r}, which scores {what}; remove it", key=given[0]
        )
    if info.granularity == "step" and settings.upload in ("mp4", "path"):
        raise ConfigError(
            f"the model {info.name!r} scores every frame, and a video does not keep them all: upload npy or jpeg",
            key="upload",
        )


def no_description(reply: ServerReply, settings: RemoteSettings) -> ConfigError:
    """The error of a server that does not describe its model."""
    failure, base = reply.failure, settings.base
    assert failure is not None
    if reply.code == MODEL_NOT_FOUND:  # the message has the names of its models
        words = failure.detail.removeprefix("404: ")
        said = f"the reward server at {base}: {words}; set backend (?model= behind an address) to one of them"
        return ConfigError(said, key="backend")
    advice = {
        "unauthorized": f"put its token into {settings.token_env}",
        "not_found": "it speaks another protocol: end the endpoint with /v1/rewards (guerdon serve) or /score",
        "overloaded": "it is loading its model, or busy: try again when its /ready says 200",
    }
    what = advice.get(failure.reason, "start it with `guerdon serve`, or correct endpoint")
    return ConfigError(f"the reward server at {base} does not answer ({failure}); {what}")
