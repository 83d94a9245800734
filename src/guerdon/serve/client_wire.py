"""The two protocols that a client speaks: `/v1/rewards`, many items at a time, and `/score`, one video at a time.

Episodes become requests and replies become judgements. What cannot be sent fails by itself; an item that the server
names as the reason for a refusal fails alone, and the others are sent without it. This module does not know how
requests travel.

    wire = wire_of(settings)
    judged = await wire.ask(sender, episodes, info, None, deadline)
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol
from urllib.parse import quote

import httpx2

from guerdon.errors import DataError, boundary
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.retry import Deadline
from guerdon.serve.client_media import chosen_frames, jpeg_bytes, mp4_bytes, npy_bytes, video_file
from guerdon.serve.client_read import all_failed, failed, read_items, read_score
from guerdon.serve.client_send import Body, NoReply, Sender
from guerdon.settings.remote import RemoteSettings
from guerdon.types import ByteArray, Episode, Failure, RewardInfo

When = Literal["none", "before", "after"]
MOST_BYTES = 16_000_000  # of frames in one request, before they are written as text
_NAMED = re.compile(r"items\[(\d+)\]")


@dataclass(frozen=True)
class Learnt:
    """What came of an update.

    Attributes:
        judgements: one per rollout, by the weights before or after.
        metrics: what the model says about it.
        updates: how many it has learnt in all; None where none was asked for.
        repeated: it had been learnt before, and this is the answer of then.
    """

    judgements: list[ExplainedScore]
    metrics: dict[str, float]
    updates: int | None
    repeated: bool


class Wire(Protocol):
    """A protocol."""

    @property
    def describe_path(self) -> str:
        """Where the server says what its model promises."""
        ...

    def info(self, found: Any) -> RewardInfo | Failure:
        """What it says there."""
        ...

    def batches(self, episodes: Sequence[Episode], info: RewardInfo) -> list[list[int]]:
        """Places of the episodes that go together in one request, in order."""
        ...

    async def ask(
        self,
        sender: Sender,
        episodes: Sequence[Episode],
        info: RewardInfo,
        options: JudgeOptions | None,
        deadline: Deadline,
    ) -> list[ExplainedScore]:
        """One judgement per episode, in order."""
        ...


def wire_of(settings: RemoteSettings) -> Wire:
    """The protocol of an endpoint."""
    return ScoreWire(settings) if settings.form == "score" else NativeWire(settings)


class NativeWire:
    """`POST /v1/rewards`."""

    def __init__(self, settings: RemoteSettings) -> None:
        self.settings = settings

    @property
    def describe_path(self) -> str:
        """Of the model that `backend` names."""
        backend = self.settings.backend
        return "/v1/rewards" + ("" if backend is None else f"?model={quote(backend, safe='')}")

    def info(self, found: Any) -> RewardInfo | Failure:
        """From `{"model", "info": {...}}`."""
        try:
            words = dict(found["info"])
            low, high = words.pop("range")
            low = -math.inf if low is None else float(low)
            high = math.inf if high is None else float(high)
            return RewardInfo(range=(low, high), **words)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return Failure("bad_reply", f"no description of a reward model: {type(error).__name__}: {error}")

    def batches(self, episodes: Sequence[Episode], info: RewardInfo) -> list[list[int]]:
        """Neighbours, at most `max_batch_items` of them and not too many bytes."""
        batches: list[list[int]] = []
        room = 0
        for place, episode in enumerate(episodes):
            size = _bytes(episode, info, self.settings)
            if not batches or len(batches[-1]) == self.settings.max_batch_items or size > room:
                batches.append([])
                room = MOST_BYTES
            batches[-1].append(place)
            room -= size
        return batches

    async def ask(
        self,
        sender: Sender,
        episodes: Sequence[Episode],
        info: RewardInfo,
        options: JudgeOptions | None,
        deadline: Deadline,
    ) -> list[ExplainedScore]:
        """Ask about all; about the others again where the server names one item as wrong."""
        judged: dict[int, ExplainedScore] = {}
        with ExitStack() as files:
            items: dict[int, dict[str, Any]] = {}
            for place, episode in enumerate(episodes):
                item = self._item(episode, info, files)
                if isinstance(item, Failure):
                    judged[place] = failed(item.reason, item.detail)
                else:
                    items[place] = item
            while items:
                places = list(items)
                body = {**self._head(info, options), "items": [{**items[p], "id": str(p)} for p in places]}
                reply = await sender.ask("POST", "/v1/rewards", _json(body), deadline)
                if isinstance(reply, NoReply):
                    named = _NAMED.match(reply.param or "")
                    if named and int(named[1]) < len(places) and len(places) > 1:
                        wrong = places[int(named[1])]
                        judged[wrong] = failed(reply.failure.reason, reply.failure.detail)
                        del items[wrong]
                        continue
                    found = all_failed(reply.failure, len(places))
                else:
                    results = reply.value.get("results") if isinstance(reply.value, Mapping) else None
                    found = read_items(results, [episodes[p] for p in places], info, ids=[str(p) for p in places])
                judged |= zip(places, found, strict=True)
                break
        return [judged[place] for place in range(len(episodes))]

    async def update(
        self,
        sender: Sender,
        episodes: Sequence[Episode],
        info: RewardInfo,
        when: When,
        client_id: str,
        number: int,
        deadline: Deadline,
    ) -> Learnt | Failure:
        """Let the model learn; all episodes in one request, and nothing is left out."""
        items = []
        for place, episode in enumerate(episodes):
            item = self._item(episode, info, ExitStack())
            if isinstance(item, Failure):
                return Failure(item.reason, f"item {place}: {item.detail}")
            outcome = None if episode.outcome is None else bool(episode.outcome)
            items.append({**item, "id": str(place), "outcome": outcome})
        named = {} if self.settings.backend is None else {"model": self.settings.backend}
        once = {} if when == "none" else {"client_id": client_id, "number": number}
        body = _json({**named, **once, "update": when, "items": items})
        reply = await sender.ask("POST", "/v1/update", body, deadline)
        if isinstance(reply, NoReply):
            return reply.failure
        found = reply.value if isinstance(reply.value, Mapping) else {}
        metrics, updates = found.get("metrics"), found.get("updates")
        if not isinstance(metrics, Mapping) or not isinstance(updates, int | None):
            return Failure("bad_reply", "the server does not say what it learnt")
        judged = read_items(found.get("results"), episodes, info, ids=[str(p) for p in range(len(episodes))])
        known = {
            str(k): float(v)
            for k, v in metrics.items()
            if isinstance(v, float) or (isinstance(v, int) and abs(v) < 2**63)
        }
        return Learnt(judged, known, updates, found.get("repeated") is True)

    def _head(self, info: RewardInfo, options: JudgeOptions | None) -> dict[str, Any]:
        s = self.settings
        head: dict[str, Any] = {"deadline_s": min(s.read_timeout, s.timeout, 3600.0)}
        if s.backend is not None:
            head["model"] = s.backend
        if info.modality != "text":
            chosen = _options(s, options, whole=info.granularity == "total")
            head |= {"options": chosen} if chosen else {}
        return head

    def _item(self, episode: Episode, info: RewardInfo, files: ExitStack) -> dict[str, Any] | Failure:
        if episode.texts is not None:
            if not all(episode.texts):
                return Failure("empty_text", "there is nothing to judge in a step or response without text")
            return {"prompt": episode.task, "steps": list(episode.texts)}
        if episode.frames is None:
            return Failure("no_frames", "the episode has neither frames nor text to send")
        try:
            with boundary(DataError, "the frames cannot be written"):
                return {"task": episode.task, **self._media(episode.frames, info, files)}
        except DataError as error:
            return Failure("cannot_send", str(error)[:300])

    def _media(self, frames_T_H_W_3: ByteArray, info: RewardInfo, files: ExitStack) -> dict[str, Any]:
        s, frames = self.settings, frames_T_H_W_3
        if info.granularity == "total":
            frames = chosen_frames(frames, s.nframes)
        if s.upload == "npy":
            return {"npy_base64": _base64(npy_bytes(frames))}
        if s.upload == "jpeg":
            return {"frames_base64": [_base64(jpeg_bytes(frame)) for frame in frames]}
        if s.upload == "mp4":
            return {"video_base64": _base64(mp4_bytes(frames, s.fps, s.temp_video_dir))}
        path = files.enter_context(video_file(frames, s.temp_video_dir, s.fps, keep=s.keep_temp_video))
        return {"video_path": str(path.resolve())}


class ScoreWire:
    """`POST /score`, as the LIBERO guide has it: one video, one score in [0, 1]."""

    describe_path = "/health"

    def __init__(self, settings: RemoteSettings) -> None:
        self.settings = settings

    def info(self, found: Any) -> RewardInfo | Failure:
        """The guide's promise: one score in [0, 1] for a whole video."""
        if not isinstance(found, Mapping) or found.get("status") != "ok":
            return Failure("bad_reply", "its /health does not say that all is well")
        name = self.settings.backend or str(found.get("default_backend") or "score")
        return RewardInfo(name=name, range=(0.0, 1.0), granularity="total", causal=False)

    def batches(self, episodes: Sequence[Episode], info: RewardInfo) -> list[list[int]]:
        """One at a time."""
        return [[place] for place in range(len(episodes))]

    async def ask(
        self,
        sender: Sender,
        episodes: Sequence[Episode],
        info: RewardInfo,
        options: JudgeOptions | None,
        deadline: Deadline,
    ) -> list[ExplainedScore]:
        """One request each."""
        return [await self._one(sender, episode, info, options, deadline) for episode in episodes]

    async def _one(
        self, sender: Sender, episode: Episode, info: RewardInfo, options: JudgeOptions | None, deadline: Deadline
    ) -> ExplainedScore:
        s = self.settings
        if episode.frames is None:
            return failed("no_frames", "the episode has no frames to send")
        words: dict[str, Any] = {"task_text": episode.task, **_options(s, options, whole=True)}
        kwargs: dict[str, Any] = {key: words.pop(key) for key in ("score_mode", "prompt") if key in words}
        words |= {"backend": s.backend} if s.backend is not None else {}
        with ExitStack() as held:
            try:
                with boundary(DataError, "the frames cannot be written"):
                    body = self._body(words, kwargs, chosen_frames(episode.frames, s.nframes), held)
            except DataError as error:
                return failed("cannot_send", str(error)[:300])
            reply = await sender.ask("POST", "/score", body, deadline)
        if isinstance(reply, NoReply):
            return failed(reply.failure.reason, reply.failure.detail)
        return read_score(reply.value, info)

    def _body(self, words: dict[str, Any], kwargs: dict[str, Any], frames_T_H_W_3: ByteArray, held: ExitStack) -> Body:
        s = self.settings
        if s.upload != "path":
            return _form(
                words | ({"backend_kwargs": json.dumps(kwargs)} if kwargs else {}), self._files(frames_T_H_W_3)
            )
        path = held.enter_context(video_file(frames_T_H_W_3, s.temp_video_dir, s.fps, keep=s.keep_temp_video))
        return _json(words | {"video_path": str(path.resolve())} | ({"backend_kwargs": kwargs} if kwargs else {}))

    def _files(self, frames_T_H_W_3: ByteArray) -> list[tuple[str, tuple[str, bytes, str]]]:
        s = self.settings
        if s.upload == "jpeg":
            return [("frames", (f"{t}.jpg", jpeg_bytes(frame), "image/jpeg")) for t, frame in enumerate(frames_T_H_W_3)]
        if s.upload == "mp4":
            return [("video", ("episode.mp4", mp4_bytes(frames_T_H_W_3, s.fps, s.temp_video_dir), "video/mp4"))]
        return [("video", ("episode.npy", npy_bytes(frames_T_H_W_3), "application/octet-stream"))]


def _options(settings: RemoteSettings, options: JudgeOptions | None, *, whole: bool) -> dict[str, Any]:
    """What the caller chose for vision-language models; a choice of the call comes before the settings'."""
    chosen: dict[str, Any] = dict(settings.backend_kwargs)
    if whole:
        chosen |= {"nframes": settings.nframes, "max_pixels": settings.max_pixels}
    elif settings.max_pixels != type(settings).model_fields["max_pixels"].default:
        chosen["max_pixels"] = settings.max_pixels
    if options is not None:
        chosen |= {key: value for key, value in asdict(options).items() if value is not None}
    return chosen


def _bytes(episode: Episode, info: RewardInfo, settings: RemoteSettings) -> int:
    """About how much an episode adds to a request."""
    frames = episode.frames
    if frames is None or not len(frames):
        return sum(map(len, episode.texts or ())) + len(episode.task)
    count = min(len(frames), settings.nframes) if info.granularity == "total" else len(frames)
    return count * int(frames[0].nbytes)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _json(words: Mapping[str, Any]) -> Body:
    """Halves of characters, which UTF-8 cannot say, become question marks."""
    text = json.dumps(words, allow_nan=False, ensure_ascii=False)
    return Body(text.encode("utf-8", "replace"), "application/json")


def _form(words: Mapping[str, Any], files: list[tuple[str, tuple[str, bytes, str]]]) -> Body:
    fields = {key: value if isinstance(value, str) else str(value) for key, value in words.items()}
    request = httpx2.Request("POST", "http://form", data=fields, files=files)
    return Body(request.read(), request.headers["Content-Type"])
