"""The client of a reward server: everything that it does, for programs with an event loop.

An episode goes in, a `ExplainedScore` comes out: a score that passed every check, or a `Failure` that says why there is
none; in order, each exactly once, whatever the network does. Nothing is made up: true success takes the place of a
missing score only where `fallback: native` asks for it, and stays a counted failure. `RewardClient` is the same for
programs without a loop. This module does not know what the scores are for.

    async with AsyncRewardClient("http://127.0.0.1:18080/v1/rewards") as client:
        judged = await client.judge([Episode(id="0", task="3+5=?", texts=("3+5=8",))])
        rewards = await client.rewards(prompts=["3+5=?"], completions=["3+5=8"])     # 0.97, or None where it failed
"""

from __future__ import annotations

import asyncio
import difflib
import os
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Never

import httpx2
from numpy.typing import NDArray

from guerdon.errors import ConfigError, DataError, RewardRequestError
from guerdon.evaluate.scores import solution_value
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.vlm_frames import to_rgb_uint8
from guerdon.policies.tokens import split_steps
from guerdon.retry import MORE_BEGUN, Clock, Deadline
from guerdon.serve.client_read import all_failed
from guerdon.serve.client_send import NoReply, Sender
from guerdon.serve.client_wire import Learnt, NativeWire, When, Wire, wire_of
from guerdon.settings.evaluate_text import Aggregation
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode, Failure, RewardInfo, Score

FIRST_TRIES = 3  # of `info`: who forgot to start a server should not wait a minute to read that
MODEL_NOT_FOUND = "model_not_found"  # the server's code for a name that it does not know


@dataclass(frozen=True)
class Answer:
    """What is said of one episode to somebody who needs a number or nothing.

    Attributes:
        value: the score; None where there is none.
        failure: why there is no score.
        fallback: the value is true success in place of a score that failed.
        text: what the model wrote.
    """

    value: float | None
    failure: Failure | None = None
    fallback: bool = False
    text: str = ""


class AsyncRewardClient:
    """Asks one reward server.

    Args:
        settings: where and how; an address alone leaves the rest at its defaults.
        token: the server's; None: from the environment variable that `token_env` names.
        clock: time.
        rng: of pauses between tries.
        transport: in place of real sockets.
        new_id: makes request ids.
        client_id: of the updates that it sends, which it numbers; None: a new one.
        **unknown: refused, with what to write instead.

    Raises:
        ConfigError: an argument that there is not, or a setting that is wrong.
    """

    def __init__(
        self,
        settings: RemoteSettings | str,
        *,
        token: str | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        new_id: Callable[[], str] | None = None,
        client_id: str | None = None,
        **unknown: Never,
    ) -> None:
        self.settings = RemoteSettings(endpoint=settings) if isinstance(settings, str) else settings
        _refuse_unknown(unknown)
        given = token if token is not None else os.environ.get(self.settings.token_env)
        more = {} if new_id is None else {"new_id": new_id}
        self.sender = Sender(self.settings, given or None, clock=clock, rng=rng, transport=transport, **more)
        self._wire: Wire = wire_of(self.settings)
        self._info: RewardInfo | None = None
        self._client_id, self._updates = client_id or uuid.uuid4().hex, 0

    @property
    def counts(self) -> dict[str, int]:
        """Requests, tries, failures by reason, and how often true success took a score's place."""
        return dict(self.sender.counts)

    async def info(self) -> RewardInfo:
        """What the model promises; asked once.

        Raises:
            ConfigError: the server cannot be reached, refuses the token, or has no such model.
        """
        found = await self._known(tries=FIRST_TRIES)
        if isinstance(found, Failure):
            raise ConfigError(_no_description(NoReply(found), self.settings))
        return found

    async def _known(self, tries: int | None = None) -> RewardInfo | Failure:
        """What the model promises, or why the server does not say so now; asked again until it does.

        Raises:
            ConfigError: no later try would help: a wrong token, model, address or setting.
        """
        if self._info is None:
            s = self.settings
            reply = await self.sender.ask("GET", self._wire.describe_path, None, self._deadline(), tries)
            if isinstance(reply, NoReply) and reply.may_pass:
                return reply.failure
            found = reply if isinstance(reply, NoReply) else self._wire.info(reply.value)
            if isinstance(found, NoReply | Failure):
                raise ConfigError(_no_description(found if isinstance(found, NoReply) else NoReply(found), s))
            _refuse_idle(s, found)
            if found.granularity == "step" and s.upload in ("mp4", "path"):
                raise ConfigError(
                    f"the model {found.name!r} judges every frame, and a video does not keep them all: upload npy or "
                    "jpeg"
                )
            self._info = found
        return self._info

    async def judge(self, episodes: Sequence[Episode], options: JudgeOptions | None = None) -> list[ExplainedScore]:
        """One judgement per episode, in order; a server that cannot be reached is a failure of each, then as ever.

        Raises:
            RewardRequestError: one could not be scored, and `fail_on_request_error` is set.
            ConfigError: before the first judgement, where a token, model, address or setting is wrong.
        """
        if not episodes:
            return []
        info = await self._known()
        if isinstance(info, Failure):
            return self._counted(all_failed(info, len(episodes)))
        return self._counted(await self._ask(episodes, info, options))

    async def _ask(
        self, episodes: Sequence[Episode], info: RewardInfo, options: JudgeOptions | None
    ) -> list[ExplainedScore]:
        """One judgement per episode, in order, of a model whose promise is known."""
        deadline = self._deadline()
        begun = asyncio.Semaphore(self.settings.concurrency * MORE_BEGUN)  # requests held in memory
        batches = self._wire.batches(episodes, info)
        judged: list[ExplainedScore | None] = [None] * len(episodes)

        async def settle(places: Sequence[int]) -> None:
            async with begun:
                found = await self._wire.ask(self.sender, [episodes[i] for i in places], info, options, deadline)
            for place, judgement in zip(places, found, strict=True):
                judged[place] = judgement

        await asyncio.gather(*(settle(places) for places in batches))
        whole = [one for one in judged if one is not None]
        assert len(whole) == len(episodes)
        return whole

    def _counted(self, whole: list[ExplainedScore]) -> list[ExplainedScore]:
        """The same, failures counted; they raise where `fail_on_request_error` is set."""
        for one in whole:
            self.sender.counts["unscored"] += one.score.failure is not None
        failed = next((one.score.failure for one in whole if one.score.failure is not None), None)
        if failed is not None and self.settings.fail_on_request_error:
            raise RewardRequestError(
                f"the reward server at {self.settings.base} did not score an episode ({failed}), and "
                "fail_on_request_error is set"
            )
        return whole

    async def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """The scores alone."""
        return [one.score for one in await self.judge(episodes)]

    async def rewards(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        separator: str | None = None,
        aggregation: Aggregation | None = None,
    ) -> list[float | None]:
        """One number per completion, None where there is none: what a trainer of language models asks for.

        Args:
            prompts: text, or chat messages.
            completions: text, or chat messages of which the contents are judged.
            separator: what ends a step, for models that judge steps; None: a completion is one step.
            aggregation: how values of steps become one; None: the model's own total, else the last step's.

        Raises:
            DataError: not as many prompts as completions.
            RewardRequestError: as `judge`.
        """
        judged = await self.judge(text_episodes(prompts, completions, separator))
        return [value_of(one.score, aggregation) for one in judged]

    async def update(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        outcomes: Sequence[bool],
        *,
        when: When = "after",
        separator: str | None = None,
        number: int | None = None,
    ) -> Learnt:
        """Let the model on the server learn from rollouts whose outcome is known, and score them.

        Args:
            prompts: as in `rewards`.
            completions: as in `rewards`.
            outcomes: whether each is right.
            when: score, then learn (after); learn, then score (before); only score (none).
            separator: as in `rewards`.
            number: of this update among those of the client, which all tries of this call share; None: the next one.
                An update that was sent before under this number gets the same answer, and nothing is learnt twice.

        Raises:
            RewardRequestError: the server did not learn; by its own word or by silence.
            ConfigError: the endpoint cannot learn.
        """
        episodes = text_episodes(prompts, completions, separator, outcomes)
        wire = self._wire
        if not isinstance(wire, NativeWire):
            raise ConfigError("an endpoint /score cannot learn; end it with /v1/rewards")
        if number is None:
            number = self._updates + (when != "none")
        self._updates = max(self._updates, number)
        info = await self._known()
        found: Learnt | Failure = (
            info
            if isinstance(info, Failure)
            else await wire.update(self.sender, episodes, info, when, self._client_id, number, self._deadline())
        )
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
    ) -> list[Answer]:
        """A number for each video: what an environment asks for at the ends of its episodes, all in one batch.

        Args:
            tasks: in words.
            frames: of each episode, as `to_rgb_uint8` takes them; what it refuses is a failure of that episode.
            native_success: true success of each, for `fallback: native`; where it is None the failure stays.

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
        answers: dict[int, Answer] = {}
        for n, (task, video) in enumerate(zip(tasks, frames, strict=True)):
            try:
                episodes[n] = Episode(id=str(n), task=task, frames=to_rgb_uint8(video))
            except DataError as error:
                answers[n] = Answer(None, Failure("bad_frames", str(error)))
        if answers and self.settings.fail_on_request_error:
            raise RewardRequestError(f"frames that cannot be sent: {next(iter(answers.values())).failure}")
        for n, one in zip(episodes, await self.judge(list(episodes.values())), strict=True):
            answers[n] = Answer(value_of(one.score), one.score.failure, text=one.text)
        if native:
            for n, answer in answers.items():
                success = truths[n]
                if answer.value is None and success is not None:
                    self.sender.counts["fallback"] += 1
                    answers[n] = Answer(float(success), answer.failure, fallback=True)
        return [answers[n] for n in range(len(tasks))]

    async def close(self) -> None:
        """Close all connections."""
        await self.sender.close()

    async def __aenter__(self) -> AsyncRewardClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _deadline(self) -> Deadline:
        return Deadline.after(self.settings.timeout, self.sender.clock)


def text_episodes(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    separator: str | None,
    outcomes: Sequence[bool] | None = None,
) -> list[Episode]:
    """Prompts and completions as episodes with a row per step.

    Raises:
        DataError: not one of each, or a text where a list of texts belongs.
    """
    if isinstance(prompts, str) or isinstance(completions, str):
        raise DataError(
            "prompts and completions are lists; put a single one into brackets: rewards([prompt], [answer])"
        )
    known: Sequence[bool | None] = [None] * len(prompts) if outcomes is None else outcomes
    if not len(prompts) == len(completions) == len(known):
        raise DataError(f"{len(prompts)} prompts, {len(completions)} completions, {len(known)} outcomes: give one each")
    episodes = []
    for n, (prompt, completion, outcome) in enumerate(zip(prompts, completions, known, strict=True)):
        text = _text(completion)
        steps = (text,) if separator is None else tuple(split_steps(text, separator))
        episodes.append(Episode(id=str(n), task=_text(prompt), texts=steps, outcome=outcome))
    return episodes


def value_of(score: Score, aggregation: Aggregation | None = None) -> float | None:
    """One number for an episode: its steps put together, else its total, else its last row; None for a failure."""
    if aggregation is not None and score.steps is not None:
        value = solution_value(score, aggregation)
        return None if isinstance(value, Failure) else value
    if score.total is not None:
        return float(score.total)
    return None if score.steps is None or not len(score.steps) else float(score.steps[-1])


def _text(part: Any) -> str:
    """Text, or the contents of chat messages one after another."""
    if isinstance(part, str):
        return part
    return "\n".join(str(message["content"]) for message in part)


def _refuse_unknown(names: Iterable[str]) -> None:
    """Refuse arguments that the client does not have, with what was likely meant; their values may be secrets."""
    own, settings = ("token", "clock", "rng", "transport", "new_id", "client_id"), tuple(RemoteSettings.model_fields)
    for name in names:
        if name in settings:
            raise ConfigError(f"{name} is a setting, no argument of the reward client: RemoteSettings({name}=...)")
        near = difflib.get_close_matches(name, (*own, *settings), n=1, cutoff=0.6)
        hint = ""
        if near:
            hint = f"; did you mean {near[0]}?" if near[0] in own else f"; did you mean RemoteSettings({near[0]}=...)?"
        raise ConfigError(f"the reward client has no argument {name!r}{hint}")


def _refuse_idle(settings: RemoteSettings, info: RewardInfo) -> None:
    """Refuse what would do nothing for this model, unless it is the default."""
    idle = {"nframes"} if info.granularity == "step" else set()
    idle |= {"nframes", "max_pixels", "upload"} if info.modality == "text" else set()
    fields = type(settings).model_fields
    given = sorted(key for key in idle if getattr(settings, key) != fields[key].default)
    if given:
        what = "text" if info.modality == "text" else "every frame"
        raise ConfigError(f"{given[0]} would do nothing with the model {info.name!r}, which judges {what}; remove it")


def _no_description(reply: NoReply, settings: RemoteSettings) -> str:
    """Why the server does not say what its model promises, and what to do about it."""
    said, base = reply.failure, settings.base
    if reply.code == MODEL_NOT_FOUND:  # the server says which models it has
        words = said.detail.removeprefix("404: ")
        return f"the reward server at {base}: {words}; set backend (?model= behind an address) to one of them"
    return f"the reward server at {base} does not answer ({said}); {_advice(said, settings)}"


def _advice(failure: Failure, settings: RemoteSettings) -> str:
    if failure.reason == "unauthorized":
        return f"put its token into {settings.token_env}"
    if failure.reason == "not_found":
        return "it speaks another protocol: end the endpoint with /v1/rewards (guerdon serve) or /score"
    if failure.reason == "overloaded":
        return "it is loading its model, or busy: try again when its /ready says 200"
    return "start it with `guerdon serve`, or correct endpoint"
