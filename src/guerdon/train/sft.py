"""Supervised fine-tuning of a language model on prompts and responses (`guerdon train policy=sft`).

Minimises the mean negative log-likelihood of the response tokens, the end-of-sequence token included; prompt tokens
have no loss. Of a conversation with calls of tools, each turn of the assistant is a response, with its calls.
Held-out prompts never share a question with the training pairs. Token ids and log-probabilities come from the same
functions as in RL, so the policy starts RL exactly as it was trained. The result is one model without
adapters (they are merged), which `policy.path` can name.

    pairs = [((({"role": "user", "content": "3+5=?"}),), "3+5=8")]
    folder, metrics = train_sft(pairs, SFTSettings(save_dir="runs/sft"), TextPolicySettings(tiny=TinyModelSettings()))
    folder, metrics = train_sft_study(study, resume=False)     # on the worked solutions of the study's prompts
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.errors import ConfigError, DataError
from guerdon.plan.stages import section
from guerdon.policies.batches.dialogues import tool_form, turn_ids
from guerdon.policies.batches.passes import passes
from guerdon.policies.batches.tokens import pad_id, prompt_ids, response_ids, stop_ids, token_batch
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import (
    check_disk,
    check_form,
    load_policy,
    outline,
    save_policy,
    written_bytes,
)
from guerdon.processes.progress import log_once
from guerdon.reading.shown import ReadAs, read_as_facts
from guerdon.settings.agent import ToolAgentSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import MistakesSettings, SFTSettings
from guerdon.tasks.prompt_files import check_here, load_prompts
from guerdon.tasks.prompts import Prompt, insert_system_prompt, without_system
from guerdon.tasks.reasoning import TaskFamily, family_of
from guerdon.tasks.tools import schemas_of
from guerdon.train.trainer import FREE, BaseTrainer, TrainingFolder
from guerdon.types import IntArray, Message, Tool

# ---------------------------------------------------------------------------------------------------------------------
# Worked solutions of generated problems, with false beliefs.
#
# A fact is what a line asks one to know (`3*7`). For a share of all facts a demonstration states, at a given rate, a
# wrong result, always the same one, and continues from it. A policy trained on them starts with errors of its own that
# no better decoding removes.
#
#     demonstrate(prompt, MistakesSettings(facts=0.2, rate=0.8), np.random.default_rng(0))
# ---------------------------------------------------------------------------------------------------------------------


def demonstrate(prompt: Prompt, mistakes: MistakesSettings, rng: np.random.Generator) -> str:
    """A solution in which every line follows from the lines before, but for false beliefs.

    Where several lines are right, each of them is as likely.

    Args:
        prompt: a generated problem.
        mistakes: which facts are believed wrongly, how often that shows.
        rng: decides where it shows.

    Raises:
        DataError: the prompt is not a generated problem.
    """
    family = family_of(prompt)
    problem = family.solve(prompt.question)
    lines: list[str] = []
    for k in range(len(problem.lines)):
        right = problem.next_lines(k, lines)
        assert right, f"line {k + 1} of {prompt.question!r} has no successor after {lines}"  # every rule gives one
        line = right[0] if len(right) == 1 else right[int(rng.integers(len(right)))]
        wrong = rng.random() < mistakes.rate
        lines.append(believed(family, line, mistakes) if wrong else line)
    return "".join(line + family.separator for line in lines)


def believed(family: TaskFamily[Any], line: str, mistakes: MistakesSettings) -> str:
    """A true line as the false beliefs change it; most lines stay as they are."""
    digest = hashlib.sha256(f"{mistakes.seed}|{family.fact(line)}".encode()).digest()
    belief = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return family.mistaken(line, belief) if belief.random() < mistakes.facts else line


# ---------------------------------------------------------------------------------------------------------------------


class TurnPair(NamedTuple):
    """A turn of the assistant in a conversation with calls of tools.

    Attributes:
        messages: before it.
        reply: the turn.
        tools: that can be called.
        begun: the conversation before its first turn of the assistant.
    """

    messages: Sequence[Message]
    reply: Message
    tools: Sequence[Tool]
    begun: Sequence[Message]


Pair = tuple[Sequence[Message], str] | tuple[Sequence[Message], str, Sequence[Tool]] | TurnPair
_FREE = FREE | {"eval_every"}  # may be others on resume


def train_sft_study(study: Study, *, resume: bool) -> tuple[Path, dict[str, Any]]:
    """Fine-tune on the training prompts that come with a worked solution.

    Args:
        study: with `data` and `sft`.
        resume: continue from the newest checkpoint, if there is one.

    Returns:
        The model's folder, and numbers; see `train_sft`.

    Raises:
        StudyError: the study has no `sft` section.
        ConfigError: it has no `data` section.
        DataError: no prompt has a solution, or `mistakes` is set for problems that were not generated.
    """
    settings: SFTSettings = section(study, "sft")
    read_as: list[ReadAs] = []
    check_form(settings.policy or study.text_policy)
    pairs = _pairs_of(study, settings, read_as)
    torch.set_num_threads(study.runner.threads)
    chosen = settings.model_copy(update={"resume": True}) if resume else settings
    return train_sft(pairs, chosen, settings.policy or study.text_policy, read_as=read_as)


def check_sft(study: Study) -> None:
    """Refuse what `train_sft_study` refuses of its data, its model and the disk; no weights are read.

    Raises:
        StudyError: as `train_sft_study`.
        ConfigError: as `train_sft_study`.
        DataError: as `train_sft_study`.
        MissingDependencyError: the model or the data are not on this machine.
    """
    settings: SFTSettings = section(study, "sft")
    if study.data is not None:
        check_here(study.data)
    check_form(settings.policy or study.text_policy)
    pairs = _pairs_of(study, settings, [])
    policy = outline(settings.policy or study.text_policy)
    _tokens_to_learn(policy, pairs, settings)
    check_disk(Path(settings.save_dir), written_bytes(policy, merged=True))


def _pairs_of(study: Study, settings: SFTSettings, read_as: list[ReadAs]) -> list[Pair]:
    """Prompts with their worked solutions; `read_as` receives what the columns of the data were taken for."""
    if study.data is None:
        raise ConfigError(
            "policy=sft needs a data section (prompts with solutions) and an sft section (save_dir)", key="data"
        )
    train, _ = load_prompts(study.data, answered=False, read_as=read_as)
    solved = [p for p in train if p.solution is not None]
    if not solved:
        raise DataError(
            f"none of the {len(train)} training prompts has a worked solution to train on: give the rows a "
            "`solution` or `answer` with its steps"
        )
    if unsolved := len(train) - len(solved):
        log_once(f"{unsolved} of {len(train)} training prompts have no worked solution and are left out")
    texts = [p.solution or "" for p in solved]
    if settings.mistakes is not None:
        rng = np.random.default_rng([settings.mistakes.seed, 6])
        texts = [demonstrate(p, settings.mistakes, rng) for p in solved]
    schemas = schemas_of(study.agent.tools) if isinstance(study.agent, ToolAgentSettings) else None
    pairs: list[Pair] = []
    for prompt, text in zip(solved, texts, strict=True):
        messages = insert_system_prompt(prompt.messages, study.data.system_prompt)
        pairs += _pairs_of_prompt(prompt, messages, text, schemas)
    return pairs


def _pairs_of_prompt(
    prompt: Prompt, messages: Sequence[Message], text: str, schemas: Sequence[Tool] | None
) -> list[Pair]:
    """The pairs of one worked solution: each turn where the prompt has calls of tools, else the last one.

    Args:
        prompt: with the solution.
        messages: of it, with the system prompt.
        text: the solution.
        schemas: of the agent's tools; None: there is no agent with tools.
    """
    tools = prompt.tools if schemas is None else schemas
    whole = (*messages, *(prompt.worked or ()))
    own = len(without_system(prompt.given or messages)) if prompt.worked is None else len(prompt.worked)
    turns = turns_of(whole, text, tools, own=own)
    if any(message.get("tool_calls") for message in whole):
        return list(turns)
    return [(messages, text, tools) if schemas is None else turns[-1]]


def turns_of(
    messages: Sequence[Message], answer: str, tools: Sequence[Tool], *, own: int | None = None
) -> list[TurnPair]:
    """The turns of the assistant in a conversation with its answer.

    Args:
        messages: up to the answer.
        answer: the last turn.
        tools: that can be called.
        own: how many messages, at the end, are of the conversation; those before are worked examples. None: all.
    """
    whole: list[Message] = [*messages, {"role": "assistant", "content": answer}]
    first = 0 if own is None else len(messages) - own
    places = [k for k, message in enumerate(whole) if k >= first and message["role"] == "assistant"]
    return [TurnPair(whole[:k], whole[k], tools, whole[: places[0]]) for k in places]


def _tokens_to_learn(
    policy: TextPolicy, pairs: Sequence[Pair], settings: SFTSettings
) -> tuple[TokenPairs, IntArray, IntArray]:
    """Pairs as token ids, with the indices to train on and to hold out."""
    longest = settings.max_length or policy.base.positions
    stops = stop_ids(policy.tokenizer, policy.base.model.generation_config)
    tokens = tokenize_pairs(policy.tokenizer, pairs[: settings.examples], longest, stops)
    return tokens, *split_by_prompt(tokens, settings.val_split, settings.seed)


def train_sft(
    pairs: Sequence[Pair],
    settings: SFTSettings,
    policy_settings: TextPolicySettings,
    *,
    read_as: Sequence[ReadAs] = (),
) -> tuple[Path, dict[str, Any]]:
    """Fine-tune the model of the `policy` section.

    Args:
        pairs: chat messages, the response to train on, and the tools of the chat, if any; or turns of conversations.
        settings: the `sft` section.
        policy_settings: the `policy` section; adapters are trained and then merged.
        read_as: what the columns of the data were taken for; `metrics.json` has it as cards of reward models have it.

    Returns:
        The model's folder (`save_dir/model`), and numbers: `val_loss` (nats per response token on held-out prompts,
        None without any), `train_loss` (of the last logged steps), `steps`, counts and `seconds`.

    Raises:
        DataError: no pairs, or too few to hold some out.
        NonFiniteError: the loss is not finite.
        ConfigError: resuming with other settings or data than the training started with, or the disk has no room.
        CheckpointError: the model cannot be read.
    """
    started = time.perf_counter()
    distributed.check_offload(policy_settings, distributed.peers())
    policy = load_policy(policy_settings, seed=settings.seed)
    policy.dropout = policy_settings.dropout is not False
    tokens, train, val = _tokens_to_learn(policy, pairs, settings)
    record = {
        "settings": settings.model_dump(mode="json", exclude=_FREE),
        "policy": policy_settings.model_dump(mode="json", exclude={"device", "cpu_offload"}),
        "data": tokens.digest(),
    }
    run = TrainingFolder(settings.save_dir, record, resume=settings.resume)
    model = run.save_dir / "model"
    if run.metrics is not None:
        return model, run.metrics
    check_disk(run.save_dir, written_bytes(policy, merged=True))
    run.begin()
    trainer = ResponseTrainer(policy, tokens, train, val, settings, run.checkpoints)
    run.train(trainer)
    metrics = {
        "val_loss": trainer.evaluate()["eval_loss"] if len(val) else None,
        **trainer.summary(),
        "pairs": len(train),
        "val_pairs": len(val),
        "left_out": tokens.left_out,
        "response_tokens": tokens.count(train),
        "seconds": round(time.perf_counter() - started, 3),
        **(read_as_facts(read_as) if read_as else {}),
    }

    def write() -> None:
        save_policy(policy, model, merged=True)
        run.finish(metrics)

    distributed.led(write)
    return model, metrics


class TokenPairs(NamedTuple):
    """Pairs as token ids.

    Attributes:
        prompts: with chat template and the opening of the assistant's turn.
        responses: with the end-of-sequence token.
        left_out: number of pairs that were longer than `max_length`.
        names: of the prompts; turns of a conversation have that of its first.
    """

    prompts: list[IntArray]
    responses: list[IntArray]
    left_out: int
    names: list[str]

    def count(self, rows: Sequence[int] | IntArray) -> int:
        """Response tokens of these pairs."""
        return sum(len(self.responses[i]) for i in rows)

    def digest(self) -> str:
        """A hash of all ids."""
        digest = hashlib.sha256()
        for prompt, response in zip(self.prompts, self.responses, strict=True):
            digest.update(len(prompt).to_bytes(8, "little") + len(response).to_bytes(8, "little"))
            digest.update(prompt.tobytes() + response.tobytes())
        return digest.hexdigest()


def tokenize_pairs(
    tokenizer: Any, pairs: Sequence[Pair], max_length: int | None, stops: IntArray | None = None
) -> TokenPairs:
    """Ids of all pairs; those longer than `max_length` are left out and counted.

    Args:
        tokenizer: of the model.
        pairs: what was asked and answered.
        max_length: tokens of a pair; None: any number.
        stops: ids that end a turn of a conversation with tools; None: those of the tokenizer.

    Raises:
        DataError: nothing is left.
    """
    prompts, responses, names = [], [], list[str]()
    form = tool_form(tokenizer) if any(isinstance(pair, TurnPair) for pair in pairs) else None
    for pair in pairs:
        if isinstance(pair, TurnPair):
            assert form is not None
            prompt, response = turn_ids(tokenizer, form, pair.messages, pair.reply, pair.tools, stops)
            begun = prompt_ids(tokenizer, *form.shown(pair.begun, pair.tools))
        else:
            messages, text, *tools = pair
            prompt, response = prompt_ids(tokenizer, messages, *tools), response_ids(tokenizer, text)
            begun = prompt
        if max_length is None or len(prompt) + len(response) <= max_length:
            prompts.append(prompt)
            responses.append(response)
            names.append(hashlib.sha256(begun.tobytes()).hexdigest())
    if not prompts:
        raise DataError(
            f"none of {len(pairs)} pairs of prompt and response is left to train on"
            + (f": all are longer than {max_length} tokens" if pairs else "; does the data have solutions?")
        )
    return TokenPairs(prompts, responses, len(pairs) - len(prompts), names)


def split_by_prompt(tokens: TokenPairs, val_split: float, seed: int) -> tuple[IntArray, IntArray]:
    """Indices to train on and to hold out; all pairs of a prompt, and turns of a conversation, are on one side.

    Raises:
        DataError: a share is to be held out and there is only one prompt.
    """
    names = np.array(tokens.names)
    distinct = np.unique(names)
    if val_split == 0:
        return np.arange(len(names)), np.zeros(0, dtype=np.int64)
    if len(distinct) < 2:
        raise DataError("one prompt is too few to hold some out: give more, or set sft.val_split: 0")
    count = int(np.clip(round(len(distinct) * val_split), 1, len(distinct) - 1))
    held = np.isin(names, np.random.default_rng([seed, 5]).permutation(distinct)[:count])
    return np.flatnonzero(~held), np.flatnonzero(held)


class _ResponseLoss(nn.Module):
    """Summed negative log-likelihood of the responses of some pairs."""

    def __init__(self, policy: TextPolicy, tokens: TokenPairs) -> None:
        super().__init__()
        self.model = policy.base.model
        self._policy, self._tokens = policy, tokens
        self.tensors, self.load_tensors = policy.tensors, policy.load_tensors

    def forward(self, rows: Sequence[int]) -> Tensor:
        prompts, responses = ([column[i] for i in rows] for column in self._tokens[:2])
        whole = np.ones(len(rows), dtype=np.bool_)
        batch = token_batch(prompts, responses, whole, pad_id=pad_id(self._policy.tokenizer))
        return -self._policy.log_probs(batch).sum()


class ResponseTrainer(BaseTrainer):
    """Trainer over indices of pairs; the loss is a mean over response tokens.

    Args:
        policy: what is trained, in place.
        tokens: all pairs.
        train: indices to train on.
        val: indices held out; may be empty.
        settings: the `sft` section.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` in its parent.
    """

    rate_key = "sft.learning_rate"

    def __init__(
        self,
        policy: TextPolicy,
        tokens: TokenPairs,
        train: IntArray,
        val: IntArray,
        settings: SFTSettings,
        folder: Path,
    ) -> None:
        total = settings.max_steps or math.ceil(settings.epochs * math.ceil(len(train) / settings.batch_size))
        network, every = _ResponseLoss(policy, tokens), settings.eval_every
        super().__init__(network, settings, folder, train, val, total=total, every=every, device=policy.device)
        self._tokens, self._most = tokens, policy.base.tokens_per_pass

    def parts(self, rows: list[int]) -> list[list[int]]:
        """A batch in forward passes; of like length where the tokens of a pass are limited."""
        if self._most is None:
            return super().parts(rows)
        lengths = [len(self._tokens.prompts[i]) + len(self._tokens.responses[i]) for i in rows]
        groups = passes(lengths, size=distributed.even(len(rows), self._micro), tokens=self._most)
        return [[rows[k] for k in group] for group in groups]

    def weight(self, rows: list[int]) -> float:
        """Response tokens."""
        return self._tokens.count(rows)
