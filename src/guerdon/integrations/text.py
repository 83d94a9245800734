r"""How the responses of a language model reach a reward model: what all libraries for language models share.

A prompt is text or chat messages. A prompt that a chat template made is read back, because reward models apply a
template of their own. A response is cut into steps as in `guerdon run`; a response of nothing but blanks is one step.

    scorer = TextScorer(load_reward_model("runs/prm"), aggregation="min")
    scorer.rewards(["3+5=?"], ["3+5=8\n\nso 8"])         # [0.97], or [Failure(...)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from guerdon.collect.conversations import Call, Conversation, arrays_of
from guerdon.collect.text import Responses, TextRollout
from guerdon.config.loading import validate
from guerdon.errors import ConfigError, DataError, RewardFailure
from guerdon.models.scores import score_episodes
from guerdon.policies.batches.step_splitters import split
from guerdon.policies.batches.tokens import pad_id, response_texts, token_batch
from guerdon.policies.language.tiny_text import build_model, build_tokenizer
from guerdon.reading.chats import NoResponseError, answer_text, chat_messages, question_of, tool_schemas
from guerdon.rewards.failures import refuse_failures
from guerdon.rewards.source import SourceTerms, response_rewards
from guerdon.rewards.text_sources import TextReward, whole_value
from guerdon.rl.learner import decision_mask, source_advantages
from guerdon.serve.wires.wire_text import CutError, as_conversation, cutting, without_end
from guerdon.settings.algorithm import TextAlgorithmSettings
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.label import Splitter
from guerdon.settings.reward_source import TextSource
from guerdon.settings.text_policy import TinyModelSettings
from guerdon.tasks.answers import final_answer
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.quantities import same_number
from guerdon.types import (
    Advantages,
    BoolArray,
    Chunks,
    Episode,
    Failure,
    FloatArray,
    IntArray,
    RewardModel,
    Rewards,
    Rollout,
    Score,
    Tool,
    last_valid,
)

ESTIMATOR_KEYS = frozenset({"adv_estimator", "rloo_form", "normalize_advantages", "estimator_params"})

Text = str | Sequence[Mapping[str, Any]]
"""A text, or chat messages."""


class TextScorer:
    """A reward model of text with the way in which responses are read for it: the same in every library.

    Args:
        model: scores steps or whole responses.
        aggregation: how the values of steps become one value of a response; only for models that score steps, and
            needed there.
        splitter: where steps end; as in the model's training.
        separator: what ends a step, for the splitter `separator`.

    Raises:
        ConfigError: the model does not score text; `aggregation` is missing, or would do nothing.
    """

    def __init__(
        self,
        model: RewardModel,
        *,
        aggregation: Aggregation | None = None,
        splitter: Splitter = "blank_line",
        separator: str = "",
    ) -> None:
        info = model.info
        if info.modality != "text":
            raise ConfigError(f"{info.name} scores {info.modality}s, not text")
        if info.granularity == "step" and aggregation is None:
            raise ConfigError(
                f"{info.name} judges steps; say by aggregation how their values become one", key="aggregation"
            )
        if info.granularity != "step" and aggregation is not None:
            raise ConfigError(
                f"aggregation would do nothing, {info.name} judges whole responses; remove it", key="aggregation"
            )
        if bool(separator) != (splitter == "separator"):
            raise ConfigError(
                "separator and the splitter 'separator' go together: give both, or neither", key="separator"
            )
        self.model, self.aggregation, self.splitter, self.separator = model, aggregation, splitter, separator

    def score(
        self, prompts: Sequence[Text], responses: Sequence[Text], tools: Sequence[Any] | None = None
    ) -> list[Score]:
        """One Score per response, in order, with a value per step where the model has them.

        Args:
            prompts: of each response.
            responses: what the model scores.
            tools: of each prompt, as JSON schemas; None: no prompt has any.

        Raises:
            DataError: not as many prompts, or tools, as responses.
        """
        given: Sequence[Any] = [None] * len(responses) if tools is None else tools
        if len(given) != len(responses):
            raise DataError(f"{len(given)} lists of tools for {len(responses)} responses: give one each, or None")
        if len(prompts) != len(responses) or isinstance(prompts, str) or isinstance(responses, str):
            raise DataError(
                f"{len(prompts)} prompts for {len(responses)} responses: give a list of each, of one length"
            )
        read = [self._episode(n, *one) for n, one in enumerate(zip(prompts, responses, given, strict=True))]
        scores = iter(self.score_episodes([one for one in read if isinstance(one, Episode)]))
        return [Score(failure=one) if isinstance(one, Failure) else next(scores) for one in read]

    def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order; for callers that cut their steps themselves."""
        return score_episodes(self.model, episodes)

    def reward(self, score: Score) -> float | Failure:
        """One number for a response, or why there is none."""
        return whole_value(score, self.aggregation)

    def rewards(
        self, prompts: Sequence[Text], responses: Sequence[Text], tools: Sequence[Any] | None = None
    ) -> list[float | Failure]:
        """One number per response, in order, or why there is none; arguments, see `score`.

        Raises:
            DataError: not as many prompts, or tools, as responses.
        """
        return [self.reward(score) for score in self.score(prompts, responses, tools)]

    def numbers(self, prompts: Sequence[Text], responses: Sequence[Text]) -> list[float]:
        """One number per response, for libraries that take nothing else.

        Raises:
            RewardFailure: one could not be measured.
            DataError: not as many prompts as responses.
        """
        return numbers(self.rewards(prompts, responses))

    def _episode(self, n: int, prompt: Text, response: Text, tools: Any) -> Episode | Failure:
        try:
            asked, text = exchange(prompt, response, id=str(n), tools=tools)
        except CutError as error:
            return error.failure
        steps = split(text, self.splitter, separator=self.separator) or (text,)
        return Episode(id=asked.id, task=asked.question, texts=steps, context=asked.context, tools=asked.tools)


def numbers(rewards: Sequence[float | Failure]) -> list[float]:
    """The rewards, for libraries that take nothing but numbers.

    Raises:
        RewardFailure: one could not be measured.
    """
    missing = {n: str(reward) for n, reward in enumerate(rewards) if isinstance(reward, Failure)}
    values = [float("nan") if isinstance(reward, Failure) else reward for reward in rewards]
    if missing:
        raise RewardFailure(f"{len(missing)} of {len(rewards)} rewards", missing, result=values)
    return values


def or_none(rewards: Sequence[float | Failure]) -> list[float | None]:
    """The rewards, None where one could not be measured."""
    return [None if isinstance(reward, Failure) else reward for reward in rewards]


def as_prompt(prompt: Text, *, id: str = "", tools: Any = None) -> Prompt:
    """A prompt from chat messages, from what a chat template made of them, or from a question alone.

    Args:
        prompt: text, or chat messages.
        id: of the prompt.
        tools: functions that can be called in the chat, as JSON schemas; None: none.

    Raises:
        CutError: it has no turn of a user, or something else than text.
    """
    return Prompt(id, as_conversation(plain(prompt)), ground_truth="", data_source="", tools=_tools(tools))


def _tools(given: Any) -> tuple[Tool, ...]:
    with cutting():
        return tool_schemas(plain(given))


def exchange(prompt: Text, response: Text, *, id: str = "", tools: Any = None) -> tuple[Prompt, str]:
    """What a response answers, and its text without the tokens that end a turn.

    Of a response in messages the last one is scored, without reasoning in a field of its own; calls of tools and their
    results before it belong to the conversation that it answers.

    Args:
        prompt, id, tools: see `as_prompt`.
        response: text, or chat messages; one without a role is the assistant's.

    Raises:
        CutError: the prompt has no turn of a user, the response does not end with an answer in text (`no_response`), or
            there is something else than text.
    """
    asked = as_prompt(prompt, id=id, tools=tools)
    if isinstance(response, str):
        return asked, without_end(response)
    given = plain(response)
    if isinstance(given, list):
        given = [{"role": "assistant", **one} if isinstance(one, Mapping) else one for one in given]
    with cutting():
        if not given:
            raise NoResponseError("a response is a text or a list of messages; this one is missing or empty")
        *before, last = chat_messages(given)
        text = answer_text(last)
        question_of(conversation := (*asked.messages, *before))
    return replace(asked, messages=conversation), text


def plain(value: Any) -> Any:
    """Lists and maps of arrays and mappings, as pandas and Arrow read messages; anything else as it is."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def ragged(ids: Any, mask: Any) -> list[IntArray]:
    """Rows of tokens of a padded tensor, without padding."""
    return [row[keep.bool()].cpu().numpy() for row, keep in zip(ids, mask, strict=True)]


def step_source(name: str, model: RewardModel, *, min_form: float | None = None, **settings: Any) -> TextReward:
    """A reward model as a source of rewards at tokens, as an entry of `reward.sources` makes one.

    Args:
        name: in logs.
        model: scores steps or whole responses.
        min_form: temperature of the min form of credit (`per_step`); None: rewards add up to their sum.
        **settings: keys of an entry of `reward.sources`: `reward_mode` (`per_step` unless given), `shaping` (`raw`
            unless given), `splitter`, `reward_weight`, `gamma`, `on_failure` and so on.

    Raises:
        ConfigError: a key that does not exist, or that would do nothing.
    """
    judge = {"model_type": "text", "checkpoint_path": model.info.name}  # it is there already; this says: it judges text
    own = {"model": judge, "reward_mode": "per_step", "shaping": "raw"}
    section = validate(TextSource, {**own, **settings}, origin=f"the source {name!r}")
    return TextReward(SourceTerms.of(name, section, gamma=1.0), model, section, min_form=min_form)


def rollout_of(
    prompts: Sequence[Text],
    prompt_ids: Sequence[IntArray],
    response_ids: Sequence[IntArray],
    tokenizer: Any,
    *,
    groups_B: IntArray | None = None,
    tools: Sequence[Any] | None = None,
) -> TextRollout:
    """Responses that another library generated, as sources of rewards see them; nothing is known of their success.

    Args:
        prompts: of each row.
        prompt_ids: ragged rows of tokens.
        response_ids: ragged rows of tokens, the end-of-sequence token included.
        tokenizer: of the policy that wrote.
        groups_B: rows with the same prompt share an id.
        tools: of each prompt, as JSON schemas; None: no prompt has any.

    Raises:
        CutError: a prompt has no turn of a user.
    """
    ids = [np.asarray(row, dtype=np.int64) for row in response_ids]
    finished_B = np.array([bool(len(row)) and int(row[-1]) == tokenizer.eos_token_id for row in ids])
    batch = token_batch(
        [np.asarray(row, dtype=np.int64) for row in prompt_ids], ids, finished_B, pad_id=pad_id(tokenizer)
    )
    given: Sequence[Any] = [None] * len(prompts) if tools is None else tools
    asked = tuple(as_prompt(p, id=str(n), tools=t) for n, (p, t) in enumerate(zip(prompts, given, strict=True)))
    inputs = Responses(batch, asked, tuple(response_texts(tokenizer, batch)), tokenizer)
    log_probs = np.zeros(batch.mask_B_T.shape, dtype=np.float32)
    return _without_outcomes(inputs, batch.mask_B_T, log_probs, groups_B, steps=len(batch))


def _without_outcomes(
    inputs: Responses,
    mask_B_T: BoolArray,
    log_probs: FloatArray,
    groups_B: IntArray | None,
    *,
    steps: int,
    chunks: Chunks | None = None,
) -> TextRollout:
    """A rollout of which no reward and no success is known; with `chunks` one of conversations."""
    no = np.zeros(mask_B_T.shape, dtype=np.bool_)
    return Rollout(
        inputs=inputs,
        log_probs=log_probs,
        mask=mask_B_T,
        terminated=last_valid(mask_B_T),
        truncated=no,
        success=no,
        success_known=no,
        rewards=np.zeros(mask_B_T.shape, dtype=np.float32),
        failed=no,
        group_ids=groups_B,
        steps=steps,
        chunks=chunks,
        conversations=chunks is not None,
    )


class AnsweredTurn(NamedTuple):
    """An answer of a language model in a conversation.

    Attributes:
        messages: before it.
        reply: the answer, with its calls of tools.
        before: ids of the prompt.
        ids: that were sampled.
    """

    messages: Sequence[Mapping[str, Any]]
    reply: Mapping[str, Any]
    before: IntArray
    ids: IntArray


def conversations_of(
    conversations: Sequence[Sequence[AnsweredTurn]],
    tokenizer: Any,
    *,
    groups_B: IntArray,
    tools: Sequence[Any] | None = None,
) -> TextRollout:
    """Conversations of several answers that another library led, as `rollout_of` gives responses.

    Args:
        conversations: the answers of each, in order; at least one.
        tokenizer: of the policy that wrote.
        groups_B: conversations with the same prompt share an id.
        tools: of each conversation, as JSON schemas; None: none has any.

    Raises:
        CutError: messages cannot be read, or there is no turn of a user.
    """
    made = []
    for n, turns in enumerate(conversations):
        prompt = as_prompt(turns[0].messages, id=str(n), tools=None if tools is None else tools[n])
        calls = tuple(_call(turn, prompt, tokenizer) for turn in turns)
        made.append(Conversation(prompt, calls[-1].messages, calls))
    arrays = arrays_of(made, tokenizer)
    asked = tuple(made[b].prompt for b in arrays.stream_R)
    texts = tuple(response_texts(tokenizer, arrays.batch))
    inputs = Responses(arrays.batch, asked, texts, tokenizer, conversations=tuple(made))
    return _without_outcomes(inputs, arrays.mask, arrays.log_probs, groups_B, steps=len(made), chunks=arrays.chunks)


def _call(turn: AnsweredTurn, prompt: Prompt, tokenizer: Any) -> Call:
    ids = np.asarray(turn.ids, dtype=np.int64)
    with cutting():
        messages = chat_messages([*plain(turn.messages), plain(turn.reply)])
    finished = int(ids[-1]) == tokenizer.eos_token_id
    before, log_probs = np.asarray(turn.before, dtype=np.int64), np.zeros(len(ids), dtype=np.float32)
    return Call(before, ids, log_probs, finished, messages=messages, tools=prompt.tools)


def token_advantages(
    rollout: TextRollout,
    sources: Mapping[str, tuple[Rewards, SourceTerms]],
    algorithm: Mapping[str, Any],
    *,
    progress: float = 0.0,
) -> Advantages:
    """Advantages of tokens from the rewards of several sources, as `guerdon run` computes them.

    Args:
        rollout: responses or conversations, with groups; the tokens of an answer in a conversation share its advantage.
        sources: name to rewards and how they count.
        algorithm: `adv_estimator` (`rloo`, `grpo`, `dr_grpo`, `reinforce`, `reinforce_pp`, `turn_rloo` of
            conversations, or `package.module:factory`) and those of `rloo_form`, `normalize_advantages`,
            `estimator_params` that it has.
        progress: how much of the training is over, from 0 to 1, for weights that change.

    Raises:
        ConfigError: a key of `algorithm` that would do nothing here, or an estimator that needs a critic or greedy
            responses.
        TooManyFailuresError: a source whose `on_failure` is `raise` has failed.
    """
    settings = checked_algorithm(algorithm)
    rewards = {name: found for name, (found, _) in sources.items()}
    _check_turns(rewards, settings, conversations=rollout.conversations)
    terms = {name: own for name, (_, own) in sources.items()}
    refuse_failures({name: own.on_failure for name, own in terms.items()}, rewards)
    weights = {name: own.weight(progress) for name, own in terms.items()}
    found = source_advantages(rollout, rewards, terms, weights, settings)
    return found if rollout.chunks is None else _of_tokens(found, rollout.chunks)


def _check_turns(rewards: Mapping[str, Rewards], settings: TextAlgorithmSettings, *, conversations: bool) -> None:
    """Refuse an estimator of turns for single responses, and one of outcomes where turns are paid."""
    estimator = settings.adv_estimator
    if estimator == "turn_rloo" and not conversations:
        raise ConfigError(
            "adv_estimator turn_rloo compares turns of conversations, and these are single responses",
            key="adv_estimator",
        )
    dense = next((name for name, found in rewards.items() if found.paid is None), None)
    if conversations and settings.needs.groups and estimator != "turn_rloo" and dense is not None:
        raise ConfigError(
            f"the source {dense!r} pays every turn, for which {estimator} is biased: take turn_rloo",
            key="adv_estimator",
        )


def _of_tokens(found: Advantages, chunks: Chunks) -> Advantages:
    """Advantages of turns as those of their tokens."""
    turns = decision_mask(chunks)

    def spread(array_B_K: Any) -> Any:
        return chunks.on_steps(np.repeat(array_B_K[turns][:, None], chunks.size, axis=1))

    return replace(
        found,
        advantages=spread(found.advantages),
        returns=spread(found.returns),
        per_source={name: spread(one) for name, one in found.per_source.items()},
        known={name: spread(one) for name, one in found.known.items()},
    )


def checked_algorithm(algorithm: Mapping[str, Any]) -> TextAlgorithmSettings:
    """The settings of an estimator inside another trainer; its loss and its steps are that trainer's.

    Raises:
        ConfigError: as `token_advantages`.
    """
    idle = sorted(algorithm.keys() - ESTIMATOR_KEYS)
    if idle:
        raise ConfigError(
            f"algorithm: {', '.join(idle)} would do nothing, the trainer has its own loss and optimiser; the keys are "
            f"{', '.join(sorted(ESTIMATOR_KEYS))}",
            key=idle[0],
        )
    settings = validate(TextAlgorithmSettings, dict(algorithm), origin="algorithm")
    if settings.needs.critic or settings.needs.greedy:
        what = "value heads" if settings.needs.critic else "greedy responses"
        raise ConfigError(
            f"adv_estimator {settings.adv_estimator} needs {what}, which the trainer does not have", key="adv_estimator"
        )
    return settings


def outcome_rewards(values_B: Sequence[float | None], mask_B_T: BoolArray, *, reason: str = "no_reward") -> Rewards:
    """One reward per response, paid at its last token; None or NaN where it could not be measured."""
    values = np.array([np.nan if value is None else value for value in values_B], dtype=np.float64)
    missing = {int(row): Failure(reason) for row in np.flatnonzero(~np.isfinite(values))}
    last = last_valid(mask_B_T)
    paid = np.where(last, np.where(np.isfinite(values), values, 0.0)[:, None], 0.0)
    return response_rewards(paid, mask_B_T, missing, paid=last)


def is_right(response: str, truth: str) -> bool | None:
    """Whether the final answer of a response is the true number.

    Returns:
        None: one of them is no number.
    """
    return same_number(truth, final_answer(response) or "")


def tiny_model(
    alphabet: str, *, hidden_size: int = 32, layers: int = 1, heads: int = 2, seed: int = 0
) -> tuple[Any, Any]:
    """A random causal language model whose tokens are letters, and its tokenizer: for examples, without a download.

    Args:
        alphabet: the letters.
        hidden_size: of the model.
        layers: of the model.
        heads: of attention.
        seed: of its weights.
    """
    settings = TinyModelSettings(alphabet=alphabet, hidden_size=hidden_size, layers=layers, heads=heads)
    tokenizer = build_tokenizer(settings)
    return build_model(settings, tokenizer, seed=seed), tokenizer
