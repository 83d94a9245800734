"""Tiny language-model studies: a task of one letter that chance solves now and then, and sums that it never solves."""

from __future__ import annotations

import json

import numpy as np

from guerdon.policies.batches.tokens import prompt_ids
from guerdon.policies.language.text_files import load_policy
from guerdon.rewards.source import SourceTerms
from guerdon.rl.build_text import build_primes, text_terms
from guerdon.rl.learner import source_advantages
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from guerdon.types import Failure, Rollout, last_valid
from rl_killed import kill_at
from scripted import LETTERS, SHAPE, Scripted

SUMS = "0123456789+-*=?;"
LORA = {"r": 4, "alpha": 8}


def tiny(alphabet, **given):
    """A policy section that makes its model in code."""
    return {"type": "text", "tiny": {**SHAPE, "alphabet": alphabet}, "bf16": False, **given}


def letter_files(folder, *, count=8, answer="1"):
    """Short questions whose answer is always the same digit."""
    path = folder / "letters.jsonl"
    if not path.exists():
        names = [f"{i + 2:b}".replace("0", "a").replace("1", "b") for i in range(count)]
        path.write_text("".join(json.dumps({"question": q, "answer": answer}) + "\n" for q in names))
    return str(path)


def _study(folder, name, policy, data, algorithm, reward_model, runner, generation, more):
    given = {
        "runner": {
            "total_steps": 64, "eval_every": 32, "eval_episodes": 4, "checkpoint_every": 16,
            "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False}, **(runner or {}),
        },
        "policy": policy,
        "data": data,
        "algorithm": {"learning_rate": 1e-2, **(algorithm or {})},
        "generation": generation or {},
    }  # fmt: skip
    return Study.model_validate(given | more | ({} if reward_model is None else {"reward_model": reward_model}))


def letter_study(
    folder, *, name="run", policy=None, data=None, algorithm=None, reward_model=None, runner=None, generation=None,
    **more,
):  # fmt: skip
    """Say `1`: a random policy is right about once in ten."""
    section = {
        "type": "files", "train_files": letter_files(folder), "val_size": 2, "verifier": "exact",
        "unparsable": "wrong", "max_response_length": 3, "train_batch_size": 4, "n_samples": 4,
        "filter_accuracy": False, "filter_truncated": False, **(data or {}),
    }  # fmt: skip
    return _study(
        folder, name, tiny(LETTERS, **(policy or {})), section, algorithm, reward_model, runner, generation, more
    )


def sum_study(
    folder, *, name="run", policy=None, data=None, algorithm=None, reward_model=None, runner=None, generation=None,
    **more,
):  # fmt: skip
    """Generated sums, in steps that end with a semicolon."""
    section = {
        "task": {"family": "chain", "steps": 2}, "train_size": 24, "val_size": 4, "max_response_length": 10,
        "train_batch_size": 4, "n_samples": 4, "filter_accuracy": False, "filter_truncated": False, **(data or {}),
    }  # fmt: skip
    return _study(
        folder, name, tiny(SUMS, **(policy or {})), section, algorithm, reward_model, runner, generation, more
    )


def prime(*, mini=16, micro=8, **given):
    """A `reward_model` section of the implicit process reward model."""
    model = {"optim": {"lr": 1e-2}, **given.pop("prime_model", {})}
    return {"mini_batch_size": mini, "micro_batch_size": micro, "prime_model": model, **given}


def terms_of(study):
    """How every source of a study counts."""
    return text_terms(study.text_reward, study.text_algorithm)


def prime_reward(study, policy=None):
    """The implicit process reward model of a study, and nothing else of a run."""
    policy = load_policy(study.text_policy, seed=0) if policy is None else policy
    policy.temperature = study.generation.temperature
    return build_primes(study, policy)["prime"]


def start(study, *, resume=False):
    """The loop of a study, not yet running."""
    return Loop(study, run_folder(study), resume=resume)


def interrupted(study, where, count, *, resume=False):
    """Run until the method `where` of the loop or one of its parts has begun `count` times, then stop as dead."""
    kill_at(start(study, resume=resume), where, count)


def lines(study, name="metrics"):
    """Rows of one of the run's files."""
    text = (run_folder(study) / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def result(study):
    """What a run leaves that holds no times: logs and weights, as bytes."""
    folder = run_folder(study)
    files = [folder / f"{name}.jsonl" for name in ("metrics", "episodes", "failures")]
    files += sorted(p for p in folder.rglob("*.safetensors") if "checkpoints" not in p.parts)
    videos = sorted((folder / "films").glob("*.json"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in [*files, *videos]}


def half_solved(loop):
    """Let every other response be the true solution, which a random policy never finds."""
    tokenizer = loop.learner.policy.tokenizer
    known = [*loop.collector.sampler.stream.prompts, *loop.collector.prompts.validation]
    solutions = {prompt_ids(tokenizer, p.messages).tobytes(): p.solution for p in known}

    def write(prompt, sample, draw):
        return solutions[engine.seen[prompt].tobytes()] if sample % 2 else "1;2;"

    engine = Scripted(tokenizer, write)
    loop.collector.sampler.engine = engine


def as_rollout(inputs, outcomes, groups, failures=(), log_probs=None):
    """Responses with their outcomes as a collector returns them; those of `failures` could not be verified."""
    mask = inputs.batch.mask_B_T
    last = np.arange(mask.shape[1]) == inputs.batch.lengths_B[:, None] - 1
    failed = np.zeros_like(mask)
    failed[list(failures)] = True
    outcomes = np.asarray(outcomes, dtype=np.float32)
    return Rollout(
        inputs=inputs,
        log_probs=np.zeros(mask.shape, np.float32) if log_probs is None else log_probs,
        mask=mask,
        terminated=last,
        truncated=np.zeros_like(last),
        success=last & ~failed & (outcomes >= 1)[:, None],
        success_known=last & ~failed,
        rewards=np.where(last, outcomes[:, None], np.float32(0)),
        failed=failed,
        failures=tuple((row, 0, Failure("timeout")) for row in failures),
        group_ids=np.asarray(groups, dtype=np.int64),
        steps=len(mask),
        measured=len(mask),
    )


def bare_rollout(mask, groups, greedy=None):
    """A rollout of responses of which only the mask and the groups are known."""
    last, none = last_valid(mask), np.zeros(mask.shape, dtype=np.bool_)
    return Rollout(
        inputs=(), log_probs=np.zeros(mask.shape, np.float32), mask=mask, terminated=last, truncated=none,
        success=none, success_known=none, rewards=np.zeros(mask.shape, np.float32), failed=none,
        group_ids=groups, greedy=greedy,
    )  # fmt: skip


def advise(study, mask, groups, rewards, weights, greedy_mask_B_T=None):
    """Advantages of these rewards as the learner of a study computes them."""
    known = terms_of(study)
    terms = {name: known.get(name, SourceTerms(name, study.text_algorithm.gamma)) for name in rewards}
    greedy = None if greedy_mask_B_T is None else bare_rollout(greedy_mask_B_T, np.arange(len(greedy_mask_B_T)))
    happened = bare_rollout(mask, groups, greedy)
    return source_advantages(happened, rewards, terms, weights, study.text_algorithm)
