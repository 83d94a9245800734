"""What guerdon's verifier says of the responses of a log, by the reference answers that the log has.

read = read_references(rows, most=3000)
read.right_K            # 1 right, 0 wrong, NaN unknown, of the rows read.row_K
read.unread             # {"programs or tests": 120}: references that are there and not read
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from guerdon.auditing.association import strata
from guerdon.auditing.rows import Codes, Flags, Numbers, Rows

MOST_MATHS = 300  # rows that a process compares as mathematics
SECONDS = 2.0  # for one of them
NEAR = 0.02  # relative difference of numbers that a tolerance may allow
NEAR_WHOLE = 0.001  # of whole numbers
_TAIL = 6000  # characters of a response behind its reasoning in which the answer is looked for
_LONGEST_TEXT = 80  # characters of a reference in words; a longer one is a text that is not compared
_LONGEST = 2000  # of one in mathematics
_NUMBER = re.compile(r"\s*[-+]?\$?[\d.,/]+\s*%?\s*$")
_SCALES = (100, 1000, Fraction(1, 100), Fraction(1, 1000))
_CLOSED = {"yes": "no", "no": "yes", "true": "false", "false": "true"}

NUMBER, LETTER, TEXT, MATHS = "numbers", "letters", "plain text", "LaTeX"


@dataclass(frozen=True)
class References:
    """The responses of K rows, read by their reference answers.

    Attributes:
        row_K: which rows, ascending.
        right_K: 1 right, 0 wrong, NaN unknown. A response that states no answer is wrong where the reference does not
            occur in it, else unknown.
        near_K: the stated number is not the reference, but so near that a tolerance would allow it.
        sure_K: a wrong answer is wrong: not a word or a name, for which others may be right, too.
        stated: the answer of each response; empty where there is none.
        truths: the reference of each.
        kinds: how many rows have a reference of each kind that is read.
        unread: how many of those looked at have one that is not, by reason.
    """

    row_K: Codes
    right_K: Numbers
    near_K: Flags
    sure_K: Flags
    stated: list[str] = field(default_factory=list)
    truths: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)

    @property
    def left_out(self) -> str:
        """What is unread, in words; empty where nothing is."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.unread.items())

    def truth_N(self, n: int) -> Numbers | None:
        """What was found as a column of N rows, where at least half of the references and of the answers are read."""
        known = np.isfinite(self.right_K)
        if len(self.row_K) < max(20, sum(self.unread.values())) or known.mean() < 0.5:
            return None
        found = np.full(n, np.nan)
        found[self.row_K] = self.right_K
        return found


class _Judged:
    """Of one response: see `References`."""

    def __init__(self, right: bool | None, stated: str | None, *, near: bool = False, sure: bool = True) -> None:
        self.right, self.stated, self.near, self.sure = right, stated, near, sure


def read_references(rows: Rows, *, most: int) -> References | None:
    """Read the reference answers of a log; None where it has none.

    Args:
        rows: of a log.
        most: rows that are looked at: whole groups, spread over those with a text.
    """
    texts = rows.texts
    if texts is None or texts.truths is None:
        return None
    there = [i for i, truth in enumerate(texts.truths) if truth.strip()]
    if not there:
        return None
    looked = _whole_groups(rows, there, most)
    parsed = {truth: _alternatives(truth) for truth in {texts.truths[i] for i in looked}}
    unread: Counter[str] = Counter()
    kept: list[tuple[int, _Judged]] = []
    kinds: Counter[str] = Counter()
    maths: list[int] = []
    for i in looked:
        kind, reason = parsed[texts.truths[i]].kind, parsed[texts.truths[i]].unread
        if reason:
            unread[reason] += 1
        elif kind == MATHS:
            maths.append(i)
        else:
            kinds[kind] += 1
            said = tail_of(texts.responses[i])
            kept.append((i, _compared(_READERS[kind], said, parsed[texts.truths[i]].golds, texts.prompts[i])))
    if maths:
        chosen = maths[:: -(-len(maths) // MOST_MATHS)]
        golds = [parsed[texts.truths[i]].golds[0] for i in chosen]
        read = _as_maths([(texts.responses[i], gold, texts.prompts[i]) for i, gold in zip(chosen, golds, strict=True)])
        if read is None:
            unread["in LaTeX, which need math-verify (pip install 'guerdon[text]')"] += len(maths)
        else:
            kinds[MATHS] += len(chosen)
            kept = sorted([*kept, *zip(chosen, read, strict=True)], key=lambda pair: pair[0])
    return _gathered(rows, kept, dict(kinds), dict(unread))


def _whole_groups(rows: Rows, places: list[int], most: int) -> list[int]:
    """Places of the texts of some groups, at most so many; of rows without groups every k-th."""
    if len(places) <= most:
        return places
    texts, groups = rows.texts, rows.group_N if rows.group_N is not None else rows.prompt_N
    if texts is None or groups is None:
        return places[:: -(-len(places) // most)]
    code = strata(groups[texts.row_M[places]])
    size = np.bincount(code)
    order = np.random.default_rng(0).permutation(len(size))
    chosen = np.zeros(len(size), bool)
    chosen[order[np.cumsum(size[order]) <= most]] = True
    return [place for place, kept in zip(places, chosen[code], strict=True) if kept]


def _gathered(
    rows: Rows, kept: Sequence[tuple[int, _Judged]], kinds: dict[str, int], unread: dict[str, int]
) -> References:
    """What was found as columns."""
    texts = rows.texts
    truths = [] if texts is None else texts.truths or []
    row_M = np.zeros(0, np.int64) if texts is None else texts.row_M
    judged = [one for _, one in kept]
    return References(
        row_K=row_M[[i for i, _ in kept]],
        right_K=np.array([np.nan if one.right is None else float(one.right) for one in judged]),
        near_K=np.array([one.near for one in judged], bool),
        sure_K=np.array([one.sure for one in judged], bool),
        stated=[one.stated or "" for one in judged],
        truths=[truths[i] for i, _ in kept],
        kinds=kinds,
        unread=unread,
    )


# ---------------------------------------------------------------------------------------------------------------------
# What kind of answer a reference is.
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reference:
    """The right answers that a reference lists, one of which is enough; or why it is not read."""

    golds: tuple[str, ...] = ()
    kind: str = ""
    unread: str = ""


def _alternatives(reference: str) -> _Reference:
    """What a reference says: one answer, or a JSON list of several."""
    from guerdon.tasks.code.code_tests import is_code

    if is_code("", reference):
        return _Reference(unread="programs or tests")
    golds = [gold.split("####")[-1].strip() for gold in _listed(reference)]
    kinds = [_kind_of(gold) for gold in golds]
    unread = next((kind for kind in kinds if kind not in _READERS and kind != MATHS), "")
    if unread:
        return _Reference(unread=unread)
    if MATHS in kinds and len(golds) > 1:
        return _Reference(unread="lists of answers in LaTeX")
    order = (TEXT, LETTER, NUMBER, MATHS)  # a text among them is compared as one
    return _Reference(tuple(golds), min(kinds, key=order.index))


def _listed(reference: str) -> list[str]:
    """The items of a JSON list of numbers or texts; else the reference itself."""
    if reference.lstrip().startswith("["):
        try:
            found = json.loads(reference)
        except (ValueError, RecursionError):
            return [reference]
        if isinstance(found, list) and found and all(isinstance(one, str | int | float) for one in found):
            return [str(one) for one in found]
    return [reference]


def _kind_of(gold: str) -> str:
    """The kind of a right answer, else why it is not read."""
    from guerdon.tasks.answer_text import prose
    from guerdon.tasks.answer_words import choice_of

    if not gold:
        return "empty"
    if _NUMBER.match(gold):
        return NUMBER
    choice = choice_of(gold) if len(gold) <= _LONGEST_TEXT else None
    if choice is not None and not choice[1]:
        return LETTER
    if "\\" not in gold and "$" not in gold and prose(gold):
        return TEXT if len(gold) <= _LONGEST_TEXT else "long texts"
    return MATHS if len(gold) <= _LONGEST else "long texts"


# ---------------------------------------------------------------------------------------------------------------------
# What a response says, and whether it is right.
# ---------------------------------------------------------------------------------------------------------------------


def tail_of(response: str) -> str:
    """A response behind its reasoning, the last part of a long one."""
    from guerdon.tasks.answers import answered

    said = response if len(response) <= _TAIL else answered(response)
    return said[-_TAIL:]


_Reader = Callable[[str, str, str], _Judged]


def _compared(read: _Reader, said: str, golds: Sequence[str], question: str) -> _Judged:
    """The judgement by several right answers: right by any, unknown where one is unknown."""
    if not said.strip():
        return _Judged(False, "")
    judged = [read(said, gold, question) for gold in golds]
    right = next((one for one in judged if one.right), None)
    if right is not None or len(judged) == 1:
        return right or judged[0]
    unknown = next((one for one in judged if one.right is None), None)
    first = judged[0]
    return unknown or _Judged(False, first.stated, near=any(one.near for one in judged), sure=first.sure)


def _as_number(said: str, gold: str, question: str) -> _Judged:
    from guerdon.tasks.quantities import pair
    from guerdon.tasks.verifier import check_numeric

    found = check_numeric(said, gold, question=question)
    if found.correct is None and found.answer is None:
        return _of_silent(said, gold, is_said=_digits(gold) in _digits(said), sure=not re.search(r"\d", said))
    near = False
    if found.correct is False:
        both = pair(gold, found.answer or "", question)
        whole = all(one.number is not None and one.number.denominator == 1 for one in (both.gold, both.answer))
        tolerance = NEAR_WHOLE if whole else NEAR
        near = both.same_number(tolerance) is True or _of_other_scale(both.gold.number, both.answer.number)
    return _Judged(found.correct, found.answer, near=near)


def _of_silent(said: str, gold: str, *, is_said: bool, sure: bool) -> _Judged:
    """Of a response that states no answer: wrong where the right one does not occur in it."""
    if is_said or gold.lower() in said.lower():
        return _Judged(None, None)
    return _Judged(False, None, sure=sure)


def _digits(text: str) -> str:
    return re.sub(r"(?<=\d),(?=\d)", "", text)


def _of_other_scale(gold: Fraction | None, stated: Fraction | None) -> bool:
    """Whether two numbers differ by a factor of 100 or 1,000: per cent, cents, thousands."""
    if not gold or not stated:
        return False
    return any(abs(stated / gold / scale - 1) < NEAR for scale in _SCALES)


def _as_letter(said: str, gold: str, question: str) -> _Judged:
    from guerdon.tasks.answer_words import compare_choices

    answer = _stated(said, gold)
    if answer is None:
        letter = re.sub(r"\W", "", gold)
        return _of_silent(said, gold, is_said=bool(re.search(rf"\b{letter}\b", said, re.IGNORECASE)), sure=False)
    found = compare_choices(gold, answer, question)[0]
    return _Judged({"equal": True, "different": False}.get(found or ""), answer)


def _as_text(said: str, gold: str, question: str) -> _Judged:
    from guerdon.tasks.answer_text import normalized

    answer = _stated(said, gold)
    if answer is None:
        return _of_silent(said, gold, is_said=False, sure=False)
    true, stated = normalized(gold), normalized(answer)
    if true == stated:
        return _Judged(True, answer)
    if true in _CLOSED:
        words = re.findall(r"\w+", stated)
        return _Judged(False if _CLOSED[true] in words and true not in words else None, answer)
    inside = f" {true} " in f" {stated} " or f" {stated} " in f" {true} "
    return _Judged(None if inside else False, answer, sure=False)


def _stated(said: str, gold: str) -> str | None:
    from guerdon.tasks.answers import concluded, final_answers, without_html

    plain = without_html(said)
    marked = final_answers(plain)
    if len(set(marked)) > 1:
        return None
    return marked[-1] if marked else concluded(plain, gold)


_READERS: dict[str, _Reader] = {NUMBER: _as_number, LETTER: _as_letter, TEXT: _as_text}


def _as_maths(cases: Sequence[tuple[str, str, str]]) -> list[_Judged] | None:
    """Judgements on responses by references in LaTeX; None where math-verify is not installed."""
    from guerdon.tasks.prompts import Prompt
    from guerdon.tasks.verifier import Verifier

    if importlib.util.find_spec("math_verify") is None:
        return None
    found = []
    with Verifier("auto", workers=1, timeout=SECONDS) as verifier:
        for response, truth, question in cases:
            prompt = Prompt("log", ({"role": "user", "content": question},), truth, "log")
            if not response.strip():
                found.append(_Judged(False, ""))
                continue
            one = verifier.check(tail_of(response), prompt)
            found.append(_Judged(one.correct, one.answer))
    return found
