"""Clients of a reward server: `RewardClient`, `AsyncRewardClient` for programs with an event loop, `RemoteRewardModel`.

An episode goes in, an explained score that passed every check comes out, or a `Failure` with the reason; in order, each
exactly once, whatever the network does. No score is made up: true success replaces a missing score only with
`fallback: native`, and is still counted as a failure. A broken connection, silence, 408, 425, 429 and 5xx are tried
again after a pause, with the same `X-Request-ID`; nothing else is. The deadline of a call holds however slow a server
is.

    with RewardClient("http://127.0.0.1:18080/v1/rewards") as client:
        client.rewards(prompts=["3+5=?"], completions=["3+5=8"])                  # [0.97], or [None] if it failed
        client.score_videos(["open the drawer"], [frames_T_H_W_3])[0].value       # 0.8, or None

A `RemoteRewardModel` has the interface of a local reward model. All episodes of a call are sent together. For models
that score single frames, long episodes are sent in pieces whose values are joined again.

    model = load_remote(RemoteSettings(endpoint="http://127.0.0.1:18080/v1/rewards", backend="resnet"))
    model.score([episode])[0].steps                                               # as the model gives them there
"""

from __future__ import annotations

import asyncio
import difflib
import os
import random
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx2
import numpy as np
from numpy.typing import NDArray

from guerdon.config.loading import api_key, validate
from guerdon.errors import ConfigError, DataError, RewardRequestError, said_by
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, joined_status
from guerdon.models.frames import to_rgb_uint8
from guerdon.network.retry import (
    LOOPBACK,
    OPEN_PER_SLOT,
    Attempt,
    Clock,
    HttpFailure,
    Retry,
    affordable,
    check_proxies,
    error_message,
    is_transient,
    read_reply,
    retry_after,
    retry_async,
)
from guerdon.processes.async_calls import run_async
from guerdon.processes.call_queue import concurrent
from guerdon.serve.update_store import UpdateId, UpdateResult
from guerdon.serve.wires import client_wire as wire
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode, Failure, RewardInfo, Score

FIRST_TRIES = 3  # of `info`: a server that was not started is reported within seconds
MOST_BYTES = 64_000_000  # of a reply
MOST_CHARACTERS = 600  # of the message of an error reply: enough for the names of many models
ROWS = 64  # frames of one item, for models that score each
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
        client_id: of the updates that it sends, which it numbers; None: a new one.
        **keys: of `RemoteSettings`, next to an address: `timeout=5`, `backend="prm"`.

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
        client_id: str | None = None,
        **keys: Any,
    ) -> None:
        self.settings = _settings(settings, keys)
        check_proxies(self.settings.base)
        self._token = api_key(self.settings.token_env, given=token, required=False)
        self._clock, self._rng = clock or Clock(), rng or random.Random()
        self._transport = transport
        self._counts: Counter[str] = Counter()
        self._format = wire.FORMATS[self.settings.form](self.settings)
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
            raise wire.no_description(wire.ServerReply(failure=found), self.settings)
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
            found = [wire.failed(info) for _ in episodes]
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
            completions: text, or chat messages of which the last one is scored.
            separator: end of a step, for models that score steps; None: a completion is one step.
            aggregation: how values of steps become one; None: the model's own total, else the last step's.

        Raises:
            DataError: not as many prompts as completions.
            RewardRequestError: as `judge`.
        """
        read = wire.text_episodes(prompts, completions, separator)
        found = iter(await self.judge([one for one in read if isinstance(one, Episode)]))
        return [None if isinstance(one, Failure) else wire.number_of(next(found).score, aggregation) for one in read]

    async def update(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        outcomes: Sequence[bool],
        *,
        when: wire.UpdateOrder = "after",
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
                update that was sent before under this number gets the same result, and nothing is learned twice.

        Raises:
            DataError: a prompt or completion cannot be read.
            RewardRequestError: the server did not learn, or did not answer.
            ConfigError: the endpoint cannot learn.
        """
        read = wire.text_episodes(prompts, completions, separator, outcomes)
        episodes = [one for one in read if isinstance(one, Episode)]
        if len(episodes) < len(read):
            place, why = next((n, one) for n, one in enumerate(read) if isinstance(one, Failure))
            raise DataError(f"prompt {place} or its completion cannot be read ({why}); leave it out of the update")
        if not isinstance(self._format, wire.RewardsFormat):
            raise ConfigError("an endpoint /score cannot learn; end it with /v1/rewards", key="endpoint")
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
                f"update again with number={number}: nothing is learned twice"
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
            raise ConfigError(
                "fallback: native needs native_success: the true success of every episode", key="fallback"
            )
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
            scores[n] = VideoScore(wire.number_of(one.score), one.score.failure, text=one.text)
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
            reply = await self._sender(tries)(self._format.describe_path)
            if reply.transient and reply.failure is not None:
                return reply.failure
            found = self._format.info(reply.value) if reply.failure is None else reply.failure
            if isinstance(found, Failure):
                raise wire.no_description(replace(reply, failure=found), self.settings)
            wire.refuse_idle(self.settings, found)
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

        order, first = list(range(len(episodes))), dict[Any, int]()
        if info.compares:  # what is compared stands together
            order.sort(key=lambda i: first.setdefault(wire.compared_with(episodes[i]), i))
        batches = self._format.batches([episodes[i] for i in order], info)
        found = [one for scores in await asyncio.gather(*map(ask, batches)) for one in scores]
        return [one for _, one in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]

    def _sender(self, tries: int | None = None) -> Callable[..., Coroutine[Any, Any, wire.ServerReply]]:
        """Sends requests with one deadline, from now on.

        Args:
            tries: of each request, at most; None: as many as the settings allow.
        """
        return partial(
            self._send,
            until=self._clock.now() + self.settings.timeout,
            retry=Retry(min(tries or self.settings.tries, self.settings.tries)),
        )

    async def _send(self, path: str, *, until: float, retry: Retry, **body: Any) -> wire.ServerReply:
        """The reply to a POST, or to a GET without body, or why there is none."""
        headers = {"X-Request-ID": uuid.uuid4().hex, "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if "content" in body:
            headers["Content-Type"] = "application/json"
        self._counts["requests"] += 1
        request = partial(self._client().stream, "POST" if body else "GET", path, headers=headers, **body)
        one_try, slots = partial(self._try, request), self._slots
        reply = await retry_async(one_try, retry, until, self._clock, slots, self._rng, _late)
        if reply.failure is not None:
            self._counts[reply.failure.reason] += 1
        return reply

    async def _try(self, request: Callable[[], Any], seconds: float) -> Attempt[wire.ServerReply]:
        self._counts["tries"] += 1
        try:
            status, headers, value = await read_reply(request(), seconds, MOST_BYTES)
        except TimeoutError:
            return Attempt(_no("deadline", f"no complete reply within {self.settings.timeout:g} s", transient=True))
        except httpx2.TimeoutException as error:
            return Attempt(_no("timeout", said_by(error), transient=True), again=True)
        except httpx2.TransportError as error:
            return Attempt(_no("connection", said_by(error), transient=True), again=True)
        except (httpx2.DecodingError, httpx2.InvalidURL) as error:
            return Attempt(_no("bad_reply", said_by(error)))
        except HttpFailure as error:
            return Attempt(_no(error.reason, str(error)))
        if status == 200:
            return Attempt(wire.ServerReply(value))
        said = f"{status}: {error_message(value, MOST_CHARACTERS)}"
        if is_transient(status):
            reason = "overloaded" if status in _OVERLOADED else _REASONS.get(status, "server_error")
            asked = retry_after(headers, self._clock, status)
            return Attempt(_no(reason, said, transient=True), again=True, retry_after=asked)
        return Attempt(_refused(status, value, said))

    def _client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:  # connections belong to the loop that opened them
            self._loop = loop
            s = self.settings
            slots = affordable(s.concurrency)
            self._slots = asyncio.Semaphore(slots)
            self._http = httpx2.AsyncClient(
                base_url=s.base,
                timeout=httpx2.Timeout(s.read_timeout, connect=s.connect_timeout, pool=None),
                limits=httpx2.Limits(max_connections=slots, max_keepalive_connections=slots),
                transport=self._transport,
                trust_env=httpx2.URL(s.base).host not in LOOPBACK,
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

    Requests run in another thread (`async_calls.run_async`), so that deadlines hold exactly and many requests can be
    under way, also where the caller's thread runs an event loop. Safe to use from several threads, and after a fork.
    """

    def __init__(self, settings: RemoteSettings | str, *, token: str | None = None, **more: Any) -> None:
        self._make: Callable[[], AsyncRewardClient] = partial(AsyncRewardClient, settings, token=token, **more)
        self._client, self._process = self._make(), os.getpid()

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
        """Close all connections; the next call opens new ones."""
        if self._process == os.getpid():
            run_async(self._client.close())

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
        if self._process != os.getpid():  # connections of the parent
            self._client, self._process = self._make(), os.getpid()
        return run_async(method(self._client, *args, **options))


class RemoteRewardModel:
    """A RewardModel and a Judge.

    Args:
        client: of the server.

    Attributes:
        info: the declaration of the model on the server, requested once.

    Raises:
        ConfigError: the server cannot be reached, refuses the token, or has no such model.
    """

    def __init__(self, client: RewardClient) -> None:
        self.client = client
        self.info = client.info()

    @concurrent
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order.

        Raises:
            RewardRequestError: one is missing, and `fail_on_request_error` is set.
        """
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One explained score per episode, in order.

        Raises:
            RewardRequestError: one is missing, and `fail_on_request_error` is set.
        """
        pieces = [self._pieces(episode) for episode in episodes]
        found = iter(self.client.judge([piece for parts in pieces for piece in parts], options))
        return [self._joined([next(found) for _ in parts]) for parts in pieces]

    def close(self) -> None:
        """Close all connections."""
        self.client.close()

    def _pieces(self, episode: Episode) -> list[Episode]:
        """The episode as it is sent: neighbouring pieces share the rows that a value needs."""
        info, step = self.info, ROWS - self._shared
        whole = info.granularity == "total" or info.modality == "text" or not info.causal
        if whole or len(episode) <= ROWS or step <= 0:
            return [episode]
        return [episode[start : start + ROWS] for start in range(0, len(episode) - self._shared, step)]

    @property
    def _shared(self) -> int:
        return max(self.info.frames_needed - 1, 0)

    def _joined(self, pieces: list[ExplainedScore]) -> ExplainedScore:
        """The explained score of an episode from those of its pieces; one that failed makes it fail."""
        first = next((piece for piece in pieces if piece.score.failure is not None), pieces[0])
        if len(pieces) == 1 or first.score.failure is not None:
            return first
        steps = [piece.score.steps for piece in pieces if piece.score.steps is not None]
        rows = np.concatenate([steps[0], *(part[self._shared :] for part in steps[1:])])
        tokens = [piece.tokens for piece in pieces if piece.tokens is not None]
        return replace(
            pieces[0],
            score=Score(steps=rows, total=pieces[-1].score.total),
            tokens=sum(tokens) if len(tokens) == len(pieces) else None,
            truncated=any(piece.truncated for piece in pieces),
            parse_status=joined_status(piece.parse_status for piece in pieces),
        )


def load_remote(settings: RemoteSettings | None = None, **client: Any) -> RemoteRewardModel:
    """Connect to a reward server.

    Args:
        settings: address and limits.
        **client: further arguments of `RewardClient`.

    Raises:
        ConfigError: it cannot be reached, refuses the token, or has no such model.
    """
    return RemoteRewardModel(RewardClient(settings or RemoteSettings(), **client))


def _settings(settings: RemoteSettings | str, keys: Mapping[str, Any]) -> RemoteSettings:
    """The settings of a client, of an address and keys of `RemoteSettings`.

    Unknown keys are refused with a suggestion and without their values, which may be secrets.
    """
    own, known = ("token", "clock", "rng", "transport", "client_id"), tuple(RemoteSettings.model_fields)
    for name in keys:
        if name in known and isinstance(settings, str):
            continue
        if name in known:
            raise ConfigError(
                f"{name} is a setting: change the RemoteSettings, or give an address and {name}=...", key=name
            )
        near = difflib.get_close_matches(name, (*own, *known), n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"the reward client has no argument {name!r}{hint}", key=name)
    if not isinstance(settings, str):
        return settings
    return validate(RemoteSettings, {"endpoint": settings, **keys}, origin="the reward client")


def _refused(status: int, value: Any, said: str) -> wire.ServerReply:
    """The reply of a request that would be refused again; of a failed measurement the item's own failure.

    Args:
        status: of HTTP.
        value: the JSON of the reply, or something else.
        said: the status and the message in it.
    """
    problem = value.get("error") if isinstance(value, Mapping) else None
    fields: Mapping[str, Any] = problem if isinstance(problem, Mapping) else {}
    if fields.get("code") == "failed_measurement":  # as "reason: detail"
        reason, _, detail = str(fields.get("message")).partition(":")
        failure = wire.server_failure(reason, detail.strip()[:200])
        if failure.reason != reason:
            failure = replace(failure, detail=said)
        return wire.ServerReply(failure=failure)
    param, code = (one if isinstance(one := fields.get(key), str) else None for key in ("param", "code"))
    return wire.ServerReply(None, Failure(_REASONS.get(status, "rejected"), said), param, code)


def _no(reason: str, detail: str, *, transient: bool = False) -> wire.ServerReply:
    return wire.ServerReply(failure=Failure(reason, detail), transient=transient)


def _late(reply: wire.ServerReply | None, note: str) -> wire.ServerReply:
    """The reply of a request without time left."""
    if reply is None:
        return _no("deadline", note.removeprefix("; "), transient=True)
    failure = reply.failure
    return reply if failure is None else replace(reply, failure=Failure(failure.reason, failure.detail + note))
