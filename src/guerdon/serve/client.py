"""Clients of a reward server: `RewardClient`, and `AsyncRewardClient` for programs with an event loop.

An episode goes in, an explained score that passed every check comes out, or a `Failure` with the reason; in order, each
exactly once, whatever the network does. No score is made up: true success replaces a missing score only with
`fallback: native`, and is still counted as a failure. A broken connection, silence, 408, 425, 429 and 5xx are tried
again after a pause, with the same `X-Request-ID`; nothing else is. The deadline of a call holds however slow a server
is.

    with RewardClient("http://127.0.0.1:18080/v1/rewards") as client:
        client.rewards(prompts=["3+5=?"], completions=["3+5=8"])                  # [0.97], or [None] if it failed
        client.score_videos(["open the drawer"], [frames_T_H_W_3])[0].value       # 0.8, or None
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Concatenate, Never, ParamSpec, TypeVar

import httpx2
from numpy.typing import NDArray

from guerdon.errors import ConfigError, DataError, RewardRequestError
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.vlm_frames import to_rgb_uint8
from guerdon.retry import OPEN_PER_SLOT, Attempt, Clock, Deadline, Retry, is_transient, retry_after, retry_async
from guerdon.serve.client_wire import (
    FORMATS,
    Body,
    RewardsFormat,
    ServerReply,
    UpdateOrder,
    failed,
    server_failure,
    text_episodes,
    value_of,
)
from guerdon.serve.update_store import UpdateId, UpdateResult
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode, Failure, RewardInfo, Score

FIRST_TRIES = 3  # of `info`: a server that was not started is reported within seconds
MOST_BYTES = 64_000_000  # of a reply
MOST_CHARACTERS = 600  # of the message of an error reply: enough for the names of many models
MODEL_NOT_FOUND = "model_not_found"  # the server's code for an unknown model
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_REASONS = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 408: "timeout", 413: "too_large"}
_OVERLOADED = {429, 503}
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class VideoScore:
    """The score of one video.

    Attributes:
        value: the score; None: there is none.
        failure: why there is no score.
        fallback: the value is true success in place of a score that failed.
        text: text that the model generated.
    """

    value: float | None
    failure: Failure | None = None
    fallback: bool = False
    text: str = ""


class AsyncRewardClient:
    """Client of one reward server.

    Args:
        settings: address and limits; a URL alone leaves the rest at its defaults.
        token: the server's; None: from the environment variable that `token_env` names.
        clock: time.
        rng: of pauses between tries.
        transport: replaces real sockets.
        new_id: makes request ids.
        client_id: of the updates that it sends, which it numbers; None: a new one.
        **unknown: refused, with a suggestion.

    Attributes:
        settings: address and limits.

    Raises:
        ConfigError: an unknown argument, or a setting that is wrong.
    """

    def __init__(
        self,
        settings: RemoteSettings | str,
        *,
        token: str | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        client_id: str | None = None,
        **unknown: Never,
    ) -> None:
        self.settings = RemoteSettings(endpoint=settings) if isinstance(settings, str) else settings
        _refuse_unknown(unknown)
        self._token = token if token is not None else os.environ.get(self.settings.token_env)
        self._clock, self._rng = clock or Clock(), rng or random.Random()
        self._transport, self._new_id = transport, new_id
        self._counts: Counter[str] = Counter()
        self._format = FORMATS[self.settings.form](self.settings)
        self._info: RewardInfo | None = None
        self._client_id, self._updates = client_id or uuid.uuid4().hex, 0
        self._http: httpx2.AsyncClient | None = None
        self._slots = asyncio.Semaphore(self.settings.concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def counts(self) -> dict[str, int]:
        """`requests`, `tries`, failures by reason, `unscored` episodes, and `fallback`: true success used as score."""
        return dict(self._counts)

    async def info(self) -> RewardInfo:
        """The model's declaration of its scores; requested once.

        Raises:
            ConfigError: the server cannot be reached, refuses the token, or has no such model.
        """
        found = await self._description(tries=FIRST_TRIES)
        if isinstance(found, Failure):
            raise ConfigError(_no_description(ServerReply(failure=found), self.settings))
        return found

    async def judge(self, episodes: Sequence[Episode], options: JudgeOptions | None = None) -> list[ExplainedScore]:
        """One explained score per episode, in order; if the server cannot be reached, each is a failure.

        Raises:
            RewardRequestError: one could not be scored, and `fail_on_request_error` is set.
            ConfigError: before the first score, if a token, model, address or setting is wrong.
        """
        if not episodes:
            return []
        info = await self._description()
        if isinstance(info, Failure):
            found = [failed(info) for _ in episodes]
        else:
            found = await self._judge(episodes, info, options)
        failures = [one.score.failure for one in found if one.score.failure is not None]
        self._counts["unscored"] += len(failures)
        if failures and self.settings.fail_on_request_error:
            raise RewardRequestError(
                f"the reward server at {self.settings.base} did not score an episode ({failures[0]}), and "
                "fail_on_request_error is set"
            )
        return found

    async def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """The scores without explanation."""
        return [one.score for one in await self.judge(episodes)]

    async def rewards(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        separator: str | None = None,
        aggregation: Aggregation | None = None,
    ) -> list[float | None]:
        """One number per completion, None if it failed; for trainers of language models.

        Args:
            prompts: text, or chat messages.
            completions: text, or chat messages whose contents are scored.
            separator: end of a step, for models that score steps; None: a completion is one step.
            aggregation: how values of steps become one; None: the model's own total, else the last step's.

        Raises:
            DataError: not as many prompts as completions.
            RewardRequestError: as `judge`.
        """
        found = await self.judge(text_episodes(prompts, completions, separator))
        return [value_of(one.score, aggregation) for one in found]

    async def update(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        outcomes: Sequence[bool],
        *,
        when: UpdateOrder = "after",
        separator: str | None = None,
        number: int | None = None,
    ) -> UpdateResult:
        """Let the model on the server learn from rollouts whose outcome is known, and score them.

        Args:
            prompts: as in `rewards`.
            completions: as in `rewards`.
            outcomes: whether each is right.
            when: score, then learn (after); learn, then score (before); only score (none).
            separator: as in `rewards`.
            number: number of this update among those of the client, the same for all tries; None: the next one. An
                update that was sent before under this number gets the same result, and nothing is learnt twice.

        Raises:
            RewardRequestError: the server did not learn, or did not answer.
            ConfigError: the endpoint cannot learn.
        """
        episodes = text_episodes(prompts, completions, separator, outcomes)
        if not isinstance(self._format, RewardsFormat):
            raise ConfigError("an endpoint /score cannot learn; end it with /v1/rewards")
        if number is None:
            number = self._updates + (when != "none")
        self._updates = max(self._updates, number)
        found: RewardInfo | Failure | UpdateResult = await self._description()
        if isinstance(found, RewardInfo):
            update = UpdateId(self._client_id, number)
            found = await self._format.update(self._sender(), episodes, found, when, update)
        if isinstance(found, Failure):
            raise RewardRequestError(
                f"the reward server at {self.settings.base} did not learn, or did not say so ({found}); send the same "
                f"update again with number={number}: nothing is learnt twice"
            )
        return found

    async def score_videos(
        self,
        tasks: Sequence[str],
        frames: Sequence[NDArray[Any]],
        *,
        native_success: Sequence[bool | None] | None = None,
    ) -> list[VideoScore]:
        """A number for each video, all in one batch; for environments at the ends of their episodes.

        Args:
            tasks: in words.
            frames: of each episode, as `to_rgb_uint8` takes them; what it refuses is a failure of that episode.
            native_success: true success of each, for `fallback: native`; with None the failure stays.

        Raises:
            DataError: the numbers of tasks, videos and successes differ.
            ConfigError: `fallback: native` without `native_success`.
            RewardRequestError: as `judge`.
        """
        truths: Sequence[bool | None] = native_success if native_success is not None else [None] * len(tasks)
        if not len(tasks) == len(frames) == len(truths):
            raise DataError(f"{len(tasks)} tasks, {len(frames)} videos, {len(truths)} successes: give one each")
        native = self.settings.fallback == "native"
        if native and native_success is None:
            raise ConfigError("fallback: native needs native_success: the true success of every episode")
        episodes: dict[int, Episode] = {}
        scores: dict[int, VideoScore] = {}
        for n, (task, video) in enumerate(zip(tasks, frames, strict=True)):
            try:
                episodes[n] = Episode(id=str(n), task=task, frames=to_rgb_uint8(video))
            except DataError as error:
                scores[n] = VideoScore(None, Failure("bad_frames", str(error)))
        if scores and self.settings.fail_on_request_error:
            raise RewardRequestError(f"frames that cannot be sent: {next(iter(scores.values())).failure}")
        for n, one in zip(episodes, await self.judge(list(episodes.values())), strict=True):
            scores[n] = VideoScore(value_of(one.score), one.score.failure, text=one.text)
        if native:
            for n, found in scores.items():
                success = truths[n]
                if found.value is None and success is not None:
                    self._counts["fallback"] += 1
                    scores[n] = VideoScore(float(success), found.failure, fallback=True)
        return [scores[n] for n in range(len(tasks))]

    async def close(self) -> None:
        """Close all connections."""
        http, self._http = self._http, None
        if http is not None and self._loop is asyncio.get_running_loop():
            await http.aclose()

    async def __aenter__(self) -> AsyncRewardClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _description(self, tries: int | None = None) -> RewardInfo | Failure:
        """The model's declaration, or why the server does not give it now; requested again until it does.

        Raises:
            ConfigError: no later try would help: a wrong token, model, address or setting.
        """
        if self._info is None:
            reply = await self._sender(tries)(self._format.describe_path, None)
            if reply.transient and reply.failure is not None:
                return reply.failure
            found = self._format.info(reply.value) if reply.failure is None else reply.failure
            if isinstance(found, Failure):
                raise ConfigError(_no_description(replace(reply, failure=found), self.settings))
            _refuse_idle(self.settings, found)
            self._info = found
        return self._info

    async def _judge(
        self, episodes: Sequence[Episode], info: RewardInfo, options: JudgeOptions | None
    ) -> list[ExplainedScore]:
        """One explained score per episode, in order, of a model whose declaration is known."""
        send = self._sender()
        begun = asyncio.Semaphore(self.settings.concurrency * OPEN_PER_SLOT)  # requests in memory

        async def ask(batch: Sequence[Episode]) -> list[ExplainedScore]:
            async with begun:
                return await self._format.ask(send, batch, info, options)

        batches = self._format.batches(episodes, info)
        found = [one for scores in await asyncio.gather(*map(ask, batches)) for one in scores]
        assert len(found) == len(episodes)
        return found

    def _sender(self, tries: int | None = None) -> Callable[[str, Body | None], Coroutine[Any, Any, ServerReply]]:
        """Sends requests with one deadline, from now on.

        Args:
            tries: of each request, at most; None: as many as the settings allow.
        """
        return partial(
            self._send,
            deadline=Deadline.after(self.settings.timeout, self._clock),
            retry=Retry(min(tries or self.settings.tries, self.settings.tries)),
        )

    async def _send(self, path: str, body: Body | None, *, deadline: Deadline, retry: Retry) -> ServerReply:
        """The reply to a POST, or to a GET without body, or why there is none."""
        headers = {"X-Request-ID": self._new_id(), "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = body.media_type
        self._counts["requests"] += 1
        request = partial(
            self._client().stream,
            "GET" if body is None else "POST",
            path,
            content=None if body is None else body.content,
            headers=headers,
        )
        reply = await retry_async(partial(self._try, request, deadline), retry, deadline, self._slots, self._rng, _late)
        if reply.failure is not None:
            self._counts[reply.failure.reason] += 1
        return reply

    async def _try(self, request: Callable[[], Any], deadline: Deadline) -> Attempt[ServerReply]:
        self._counts["tries"] += 1
        try:
            async with asyncio.timeout(deadline.left), request() as response:
                return await self._read(response)
        except TimeoutError:
            return Attempt(_no("deadline", f"no complete reply within {self.settings.timeout:g} s", transient=True))
        except httpx2.TimeoutException as error:
            return Attempt(_no("timeout", _described(error), transient=True), again=True)
        except httpx2.TransportError as error:
            return Attempt(_no("connection", _described(error), transient=True), again=True)
        except (httpx2.DecodingError, httpx2.InvalidURL) as error:
            return Attempt(_no("bad_reply", _described(error)))

    async def _read(self, response: httpx2.Response) -> Attempt[ServerReply]:
        data = bytearray()
        async for piece in response.aiter_bytes():
            data += piece
            if len(data) > MOST_BYTES:
                return Attempt(_no("bad_reply", f"longer than {MOST_BYTES} bytes"))
        status, value = response.status_code, None
        try:
            value = json.loads(bytes(data))
        except (ValueError, RecursionError):
            if status == 200:
                return Attempt(_no("bad_reply", f"not JSON: {bytes(data[:80])!r}"))
        if status == 200:
            return Attempt(ServerReply(value))
        said = f"{status}: {_message(value)}"
        if is_transient(status):
            reason = "overloaded" if status in _OVERLOADED else _REASONS.get(status, "server_error")
            asked = retry_after(response.headers, self._clock)
            return Attempt(_no(reason, said, transient=True), again=True, retry_after=asked)
        error = value.get("error") if isinstance(value, Mapping) else None
        fields = error if isinstance(error, Mapping) else {}
        if fields.get("code") == "failed_measurement":  # the item's own failure, as "reason: detail"
            reason, _, detail = str(fields.get("message")).partition(":")
            failure = server_failure(reason, detail.strip()[:200])
            return Attempt(ServerReply(failure=failure if failure.reason == reason else replace(failure, detail=said)))
        param, code = (one if isinstance(one := fields.get(key), str) else None for key in ("param", "code"))
        return Attempt(ServerReply(None, Failure(_REASONS.get(status, "rejected"), said), param, code))

    def _client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:  # connections belong to the loop that opened them
            self._loop = loop
            s = self.settings
            self._slots = asyncio.Semaphore(s.concurrency)
            self._http = httpx2.AsyncClient(
                base_url=s.base,
                timeout=httpx2.Timeout(s.read_timeout, connect=s.connect_timeout, pool=None),
                limits=httpx2.Limits(max_connections=s.concurrency, max_keepalive_connections=s.concurrency),
                transport=self._transport,
                trust_env=httpx2.URL(s.base).host not in _LOOPBACK,  # no proxy for this machine
            )
        return self._http


def _blocking(
    method: Callable[Concatenate[AsyncRewardClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RewardClient, P], T]:
    """The form of a method for programs without an event loop, with its arguments and its documentation."""

    @wraps(method)
    def call(client: RewardClient, /, *args: P.args, **options: P.kwargs) -> T:
        return client._run(method, *args, **options)

    return call


class RewardClient:
    """`AsyncRewardClient` as plain functions, with the same arguments and methods.

    Its event loop runs in a daemon thread that the first call starts, so that deadlines hold exactly and many requests
    can be under way. Safe to use from several threads; after a fork the child starts a thread of its own.
    """

    def __init__(self, settings: RemoteSettings | str, *, token: str | None = None, **more: Any) -> None:
        self._make: Callable[[], AsyncRewardClient] = partial(AsyncRewardClient, settings, token=token, **more)
        self._client, self._process = self._make(), os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @property
    def settings(self) -> RemoteSettings:
        """Address and limits."""
        return self._client.settings

    @property
    def counts(self) -> dict[str, int]:
        """As `AsyncRewardClient.counts`."""
        return self._client.counts

    info = _blocking(AsyncRewardClient.info)
    judge = _blocking(AsyncRewardClient.judge)
    score = _blocking(AsyncRewardClient.score)
    rewards = _blocking(AsyncRewardClient.rewards)
    update = _blocking(AsyncRewardClient.update)
    score_videos = _blocking(AsyncRewardClient.score_videos)

    def close(self) -> None:
        """Close all connections and end the thread; the next call starts a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._process == os.getpid():
            asyncio.run_coroutine_threadsafe(self._client.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(timeout=5.0)
            if not self._thread.is_alive():
                loop.close()

    def __enter__(self) -> RewardClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        method: Callable[Concatenate[AsyncRewardClient, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """The result of a method of the client, cancelled if the caller is interrupted."""
        with self._lock:
            if self._process != os.getpid():  # threads do not survive a fork
                self._loop, self._client, self._process = None, self._make(), os.getpid()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="guerdon-client", daemon=True)
                self._thread.start()
            loop, client = self._loop, self._client
        future = asyncio.run_coroutine_threadsafe(method(client, *args, **options), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _refuse_unknown(names: Iterable[str]) -> None:
    """Refuse unknown arguments, with a suggestion and without their values, which may be secrets."""
    own, settings = ("token", "clock", "rng", "transport", "new_id", "client_id"), tuple(RemoteSettings.model_fields)
    for name in names:
        if name in settings:
            raise ConfigError(f"{name} is a setting, not an argument of the reward client: RemoteSettings({name}=...)")
        near = difflib.get_close_matches(name, (*own, *settings), n=1, cutoff=0.6)
        meant = [one if one in own else f"RemoteSettings({one}=...)" for one in near]
        hint = f"; did you mean {meant[0]}?" if meant else ""
        raise ConfigError(f"the reward client has no argument {name!r}{hint}")


def _refuse_idle(settings: RemoteSettings, info: RewardInfo) -> None:
    """Refuse settings that would do nothing for this model, or cannot work with it."""
    idle = {"nframes"} if info.granularity == "step" else set()
    idle |= {"nframes", "max_pixels", "upload"} if info.modality == "text" else set()
    fields = type(settings).model_fields
    given = sorted(key for key in idle if getattr(settings, key) != fields[key].default)
    if given:
        what = "text" if info.modality == "text" else "every frame"
        raise ConfigError(f"{given[0]} would do nothing with the model {info.name!r}, which scores {what}; remove it")
    if info.granularity == "step" and settings.upload in ("mp4", "path"):
        raise ConfigError(
            f"the model {info.name!r} scores every frame, and a video does not keep them all: upload npy or jpeg"
        )


def _no_description(reply: ServerReply, settings: RemoteSettings) -> str:
    """Message for a server that does not describe its model."""
    failure, base = reply.failure, settings.base
    assert failure is not None
    if reply.code == MODEL_NOT_FOUND:  # the message has the names of its models
        words = failure.detail.removeprefix("404: ")
        return f"the reward server at {base}: {words}; set backend (?model= behind an address) to one of them"
    advice = {
        "unauthorized": f"put its token into {settings.token_env}",
        "not_found": "it speaks another protocol: end the endpoint with /v1/rewards (guerdon serve) or /score",
        "overloaded": "it is loading its model, or busy: try again when its /ready says 200",
    }
    what = advice.get(failure.reason, "start it with `guerdon serve`, or correct endpoint")
    return f"the reward server at {base} does not answer ({failure}); {what}"


def _no(reason: str, detail: str, *, transient: bool = False) -> ServerReply:
    return ServerReply(failure=Failure(reason, detail), transient=transient)


def _late(reply: ServerReply | None, note: str) -> ServerReply:
    """The reply of a request without time left."""
    if reply is None:
        return _no("deadline", note.removeprefix("; "), transient=True)
    failure = reply.failure
    return reply if failure is None else replace(reply, failure=Failure(failure.reason, failure.detail + note))


def _described(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _message(value: Any) -> str:
    """The message of an error reply, in one line."""
    if isinstance(value, Mapping):
        error = value.get("error", value.get("detail", value))
        value = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(value if value is not None else "no reason given").split())[:MOST_CHARACTERS]
