"""What a column is for, by its name: one table for every command.

Names are compared without case, blanks, `-` and `_`. Two columns of one role are refused where they could say different
things; of most roles the first name of the table counts, and the others are further columns.

    roles_of("Expected Answer")           # ("reference",)
    beside(["response_a", "response_b"])  # [("response_a", "response_b")]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Literal, get_args

Role = Literal[
    "prompt", "input", "messages", "history", "passage", "system", "tools", "images", "videos", "audio", "turn",
    "response", "responses", "chosen", "rejected", "first", "second", "winner", "margin", "tie", "ranks",
    "scores",
    "chosen_score", "rejected_score", "first_score", "second_score",
    "label", "rating", "steps", "step_labels", "reference", "tests", "rubric", "solution", "options",
    "reward", "token_rewards", "truth", "advantage", "step", "group", "tokens", "length", "truncated", "failed",
    "id", "split", "subset", "model", "person", "weight",
]  # fmt: skip

TEXTS_OF_TESTS = ("test", "test_code", "functional")
"""Columns with the tests of a programming task as a program."""
LISTS_OF_TESTS = ("test_cases", "tests", "unit_tests")
"""Columns with such tests as inputs and outputs."""

BESIDE_TESTS = ("entry_point", "fn_name", "metadata", "test_setup_code", "test_imports", "import_prefix", "prompt")
"""Columns that say how tests are run."""
SOLUTIONS_OF_TESTS = ("code", "canonical_solution", "solution")
"""Columns with a program that passes the tests; what it defines says what they call."""
OF_PROMPTS = ("data_source", "ability", "extra_info", "reward_model")
"""Columns that every prompt keeps."""
UNREAD: tuple[Role, ...] = ("model", "person", "weight")
"""Roles of columns that no command reads."""

ROLES: Mapping[Role, tuple[str, ...]] = {  # the first name that is there counts
    # what was asked
    "prompt": ("prompt", "instruction", "question", "query", "problem", "input", "user_input", "input_prompt"),
    "messages": ("messages", "conversation", "conversations", "dialogue", "dialog", "traj", "trajectory"),
    "history": ("history",),
    "passage": ("passage", "context", "document", "article", "retrieved_contexts"),
    "system": ("system", "system_prompt", "system_message"),
    "tools": ("tools", "functions"),
    "images": ("images", "image", "pictures", "image_url"),
    "videos": ("videos", "video"),
    "audio": ("audio", "audios", "sound"),
    "turn": ("turn",),
    # what was answered, and how it was judged
    "response": ("response", "completion", "output", "generation", "generated_text", "prediction", "model_response",
                 "output_response", "reply", "answer", "text"),
    "responses": ("responses", "completions", "generations", "answers", "candidates", "outputs"),
    "chosen": ("chosen", "chosen_response", "preferred", "preferred_output", "preferred_response", "better",
               "better_response", "accepted", "accepted_response", "winning_response", "response_w"),
    "rejected": ("rejected", "rejected_response", "rejected_messages", "rejected_output", "non_preferred_output",
                 "dispreferred", "dispreferred_response", "worse", "worse_response", "losing_response", "response_l"),
    "winner": ("winner", "overall_preference", "preference_strength", "better_response_id", "preference", "preferred",
               "vote", "choice", "selected", "judgment", "verdict", "better", "better_response", "label", "labels"),
    "margin": ("margin",),
    "tie": ("status", "tie", "is_tie"),
    "ranks": ("ranks", "ranking", "human_ranking", "rank"),
    "scores": ("scores", "ratings", "rating"),
    "chosen_score": ("score_chosen", "chosen_score", "chosen_rating"),
    "rejected_score": ("score_rejected", "rejected_score", "rejected_rating"),
    "label": ("label", "is_good", "human_label", "oracle_label", "is_safe", "desirable", "thumbs", "feedback"),
    "rating": ("helpfulness", "correctness", "coherence", "complexity", "verbosity", "rating", "overall_score", "stars",
               "quality"),
    "steps": ("steps", "completions", "modified_process"),
    "step_labels": ("step_labels", "labels", "step_rewards"),
    # what is true, and how it is found out
    "reference": ("reference", "ground_truth", "gts", "reference_answer", "expected_answer", "answer", "target",
                  "final_answer", "gold", "gold_answer", "gt", "label", "tests"),
    "tests": (*TEXTS_OF_TESTS, *LISTS_OF_TESTS, "test_list", "public_test_cases", "private_test_cases", "input_output",
              "verification_info"),
    "rubric": ("rubric", "rubrics"),
    "solution": ("solution", "rationale", "generated_solution"),
    "options": ("options", "choices"),
    # what a run logged
    "reward": ("reward", "score", "total_reward", "reward_total", "reward_score", "rewards"),
    "token_rewards": ("token_rewards", "token_level_scores", "token_level_rewards"),
    "truth": ("truth", "is_correct", "correct", "correctness", "acc", "accuracy", "success", "is_success", "passed",
              "resolved"),
    "advantage": ("advantage", "advantages"),
    "step": ("step", "global_step", "training_step", "train_step", "iteration"),
    "group": ("group", "group_id", "prompt_id", "uid", "example_id", "_ng_task_index", "question_id", "task_id",
              "instance_id", "doc_id"),
    "tokens": ("tokens",),
    "length": ("length", "response_length", "completion_length", "completion_tokens", "output_tokens", "num_tokens"),
    "truncated": ("truncated", "is_truncated", "finish_reason", "stop_reason"),
    "failed": ("failed", "reward_failure", "failure", "_ng_failure_class", "error"),
    # which row it is
    "id": ("id", "pair_id", "question_id"),
    "split": ("split",),
    "subset": ("subset", "domain", "source"),
    "model": ("model", "model_name", "generator"),
    "person": ("person", "annotator", "worker", "completed_by", "user_id"),
    "weight": ("weight", "sample_weight"),
}  # fmt: skip

TEXT_ROLES: tuple[Role, ...] = (
    "prompt", "input", "system", "response", "chosen", "rejected", "first", "second", "reference", "solution", "tests",
)  # fmt: skip
"""Roles of texts, which stay texts where they are those of lists or maps."""
ASKED: tuple[Role, ...] = ("prompt", "input", "messages", "history", "passage", "system")
"""Roles of the texts that were asked."""
ALL_ROLES: Mapping[str, Role] = {role: role for role in get_args(Role)}
"""Every role by its name."""
_RESPONSES = (
    "response", "answer", "output", "completion", "conversation", "human_ref", "text", "option", "reply", "generation",
    "candidate", "summary", "chat", "model_response", "messages",
)  # fmt: skip
OUTCOMES = ("winner", "winner_model", "preferred", "is_preferred", "vote")
"""Beginnings of names of two columns of 0 and 1, one for each response."""
TEXT_KEYS = ("answer", "response", "completion", "text", "output", "content")
"""Keys of a response that is a map in a list of responses, the first that is there."""
NUMBER_KEYS = ("rank", "overall_score", "score", "rating", "reward")
"""Keys of its rank or score."""
MODELS = ("model", "model_name", "generator")
"""Beginnings of names of two columns with the model of each response."""
SCORES = ("score", "rating", "overall_score", "rank")
"""Beginnings of names of two columns with a number for each response."""
_ENDS = (("a", "b", "c"), ("1", "2", "3"), ("0", "1", "2"), ("model_a", "model_b", "model_c"))
_STARTS = (
    ("model_a", "model_b", "model_c"),
    ("model_1", "model_2", "model_3"),
    ("assistant_a", "assistant_b", "assistant_c"),
)
_TWO = (("first", "second"), ("left", "right"))


_STEMS = (*_RESPONSES, *OUTCOMES, *MODELS, *SCORES)
PAIRS_OF_NAMES = frozenset(
    f"{stem}{sign}{end}" for stem in _STEMS for sign in ("_", "") for ends in _ENDS for end in ends[:2]
)
"""Names of columns about one of two responses, as they are usually written."""


_REWARD = re.compile(r"reward|score|judge|rating|grade|return", re.IGNORECASE)
_SPREAD = re.compile(r"(^|[/_.\s-])(std|stddev|var|min|max)$", re.IGNORECASE)  # of a reward, over a step
_COUNT = re.compile(r"^(num_|n_|__)|turns|index|time|seed|_id$", re.IGNORECASE)  # numbers that are no rewards


def may_be_reward(name: str, *, wide: bool) -> bool:
    """Whether a column of numbers in a log may be a further reward: it is called like one, or `wide` and not else."""
    return _REWARD.search(name) is not None or (wide and not _COUNT.search(name))


def is_spread(name: str) -> bool:
    """Whether a column has how far rewards of a step differ."""
    return _SPREAD.search(name) is not None


def is_side(name: str) -> bool:
    """Whether a column of this name has one of two responses."""
    return plain_name(name) in _sides()


@cache
def _sides() -> frozenset[str]:
    return frozenset(map(plain_name, (*PAIRS_OF_NAMES, *(name for two in _TWO for name in two))))


def plain_name(name: str) -> str:
    """A name as it is compared: folded, without blanks, `-` and `_`."""
    return name.casefold().translate(_LEFT_OUT)


_LEFT_OUT = str.maketrans("", "", " -_")


@cache
def _by_name() -> Mapping[str, tuple[Role, ...]]:
    found: dict[str, tuple[Role, ...]] = {}
    for role, names in ROLES.items():
        for name in names:
            found[plain_name(name)] = (*found.get(plain_name(name), ()), role)
    return found


def roles_of(name: str) -> tuple[Role, ...]:
    """The roles that a column of this name may have."""
    return _by_name().get(plain_name(name), ())


def named(role: Role, columns: Iterable[str]) -> list[str]:
    """The columns with a name of a role, in the order of the table."""
    plain: dict[str, list[str]] = {}
    for column in columns:
        plain.setdefault(plain_name(column), []).append(column)
    return [column for name in ROLES[role] for column in plain.get(plain_name(name), ())]


def beside(columns: Iterable[str], stems: Iterable[str] = _RESPONSES) -> list[tuple[str, str]]:
    """Pairs of columns about the first and the second of two responses, by their names.

    Args:
        columns: all that there are.
        stems: beginnings of the names; by default those of the responses themselves, which may have no beginning. Where
            there is a third such column, such as that of an option, they are no pair.
    """
    plain = {plain_name(column): column for column in columns}
    wanted = [(f"{stem}{a}", f"{stem}{b}", f"{stem}{c}") for stem in stems for a, b, c in _ENDS]
    wanted += [(f"{a}{stem}", f"{b}{stem}", f"{c}{stem}") for stem in stems for a, b, c in _STARTS]
    if stems is _RESPONSES:
        wanted += [(*two, "") for two in _TWO]
    found = [tuple(map(plain_name, names)) for names in wanted]
    return [(plain[a], plain[b]) for a, b, third in found if a in plain and b in plain and third not in plain]
