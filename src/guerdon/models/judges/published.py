r"""Judges in the prompts that they were trained with, or that made them known, and how their replies are read.

The wording is data: `published.toml` beside this file, where every prompt has the repository, revision, file and
licence that it is from. Only the places of the question, the answers, the reference and the rubric are filled in.

| name | judgement | value of a reply |
|---|---|---|
| `prometheus_absolute` | `[RESULT] 4` ends the reply | the score, 1 to 5 |
| `prometheus_relative` | `[RESULT] A` ends the reply | the better response |
| `reward_bench`, `skywork_critic`, `rm_r1`, `rm_r1_reasoning` | `[[A]]`, `[[B]]` | the better response |
| `mt_bench_pair` | `[[A]]`, `[[B]]`, `[[C]]` | the better response, or a tie |
| `mt_bench_single` | `[[7]]` | the score, 1 to 10 |
| `reward_bench_rating` | an integer ends the reply | the score, 1 to 10 |
| `judgelm` | the first line: `8 6` | the response with the higher of two scores, 1 to 10 |

A judgement counts behind the reasoning (`guerdon.tasks.replies`) and where it is the judge's own: not in words of the
request that the reply repeats, and not as a mark that a response brings. Two different judgements are none.

    prompt = published_prompt("judgelm")
    prompt.messages(Asked("3+5=?", ("8", "9")))[0]["content"]
    prompt.read("9 2\nThe first is right.", [])        # {"0": (1.0, "9 2\nThe first is right.")}
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from guerdon.endpoints.llm_client import reason_text
from guerdon.errors import ConfigError
from guerdon.models.judges.rubric import Rubric
from guerdon.reading.chats import ChatError, beyond_question
from guerdon.settings.reward_models import JUDGE_PROMPTS, JudgePrompt, JudgePromptName
from guerdon.tasks.replies import behind_reasoning, own_part
from guerdon.types import Failure, Message, Tool

_SLOT = re.compile(r"\{(question_1|question|answer_1|answer_a|answer_b|answer|reference|rubric)\}")
_BEFORE = 24  # characters before a judgement that show whether the reply repeats it
_ENOUGH = 12  # of them: fewer, as at the beginning of a reply, show nothing
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_LETTER = re.compile(r"\[\[([A-C])\]\]")
_RATING = re.compile(rf"\[\[({_NUMBER})\]\]")
_LAST_NUMBER = re.compile(rf"(?<![\w./,+-])({_NUMBER})\s*\Z")
_TWO_NUMBERS = re.compile(rf"[ \t]*({_NUMBER})[ \t]*[ \t,][ \t]*({_NUMBER})[ \t]*")
_RESULT = r"(?:\[(?:RESULT|SCORE)\]:?|\b(?:result|score)\b(?:\s+of\b|:)?)"
_SCORE_MARK = re.compile(rf"\[(?:RESULT|SCORE)\]:?[\s(\[]*({_NUMBER})", re.IGNORECASE)
_SCORE_END = re.compile(
    rf"{_RESULT}[\s(\[]*({_NUMBER})\s*(?:/\s*5|out\s+of\s+5)?[\s)\]]*\Z",
    re.IGNORECASE,
)
_WINNER = r"(?:\[RESULT(?:\]:?|:)\s*(?:Response\s+)?|\[Response\s+)[\"'(\[]?([AB])\b"
_WINNER_MARK = re.compile(_WINNER, re.IGNORECASE)
_WINNER_END = re.compile(rf"(?:{_WINNER}|(?:\A|\n)[ \t]*Result:?\s*([AB])\b)[\"')\]\s.]*\Z", re.IGNORECASE)

Judgement = Mapping[str, tuple[float, str]]
"""The value of the response that is shown first, from 0 to 1, and the judge's words."""


@dataclass(frozen=True)
class Asked:
    """What a prompt is filled with.

    Attributes:
        question: the user's last turn.
        answers: one response, or two.
        context: the conversation, where there is more than the question.
        tools: that the conversation has.
        reference: a true answer that is to be shown.
        rubric: criteria that are to be shown, for a prompt with a place for them.
    """

    question: str
    answers: tuple[str, ...]
    context: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    reference: str | None = None
    rubric: Rubric | None = None

    @property
    def material(self) -> list[str]:
        """The texts that the judge is shown and did not write."""
        turns = [str(message["content"]) for message in self.context]
        return [self.question, *self.answers, *turns, *([] if self.reference is None else [self.reference])]


@dataclass(frozen=True)
class PublishedPrompt:
    """A prompt of others.

    Attributes:
        name: in `prompt` of a judge.
        form: what it is about: one response or two, its scale, what it has a place for.
        repository: where the wording is from, with its revision and file.
        revision: of the repository.
        file: in the repository.
        licence: of the wording.
        wording: texts with the places to fill in.
    """

    name: JudgePromptName
    form: JudgePrompt
    repository: str
    revision: str
    file: str
    licence: str
    wording: Mapping[str, str]

    def messages(self, asked: Asked) -> tuple[Message, ...]:
        """The request as the judge's authors write it.

        Raises:
            ChatError: the conversation has more than the prompt has a place for.
            ConfigError: the rubric has another form than the prompt takes.
        """
        kind, earlier = self._kind(asked)
        system = self.wording.get(f"{kind}_system", self.wording.get("system", ""))
        values = {"question": asked.question, "reference": asked.reference or "", **earlier, **self._answers(asked)}
        if self.form.rubric:
            values["rubric"] = self.wording["rubric"] if asked.rubric is None else self._in_words(asked.rubric)
        user = _SLOT.sub(lambda slot: values[slot[1]], self.wording[kind])
        told: list[Message] = [{"role": "system", "content": system}] if system else []
        return (*told, {"role": "user", "content": user})

    def read(self, reply: str, messages: Sequence[Message], material: Sequence[str] = ()) -> Judgement | Failure:
        """The judgement of a reply.

        Args:
            reply: the whole of it.
            messages: of the request.
            material: what the request was filled with.
        """
        final, own = behind_reasoning(reply), own_part(reply, material)
        if isinstance(own, Failure):
            return own
        request = [_on_one_line(str(message["content"])) for message in messages]
        found = _READERS[self.name](_Reply(own, request, quotes=own != final))
        if isinstance(found, Failure):
            return found
        if self.form.mode == "scale":
            low, high = self.form.scale
            found = (found - low) / (high - low)
        return {"0": (found, reason_text(own.strip()))}

    def check_rubric(self, rubric: Rubric) -> None:
        """Refuse a rubric that the prompt cannot show.

        Raises:
            ConfigError: with the reason.
        """
        self._in_words(rubric)

    def _kind(self, asked: Asked) -> tuple[str, dict[str, str]]:
        """Which wording a conversation takes, and what its earlier turn is filled with."""
        more = beyond_question(asked.context, asked.tools)
        turns = [m for m in asked.context if m["role"] != "system" or m["content"].strip()]
        if not more:
            return ("user" if asked.reference is None else "with_reference"), {}
        two = [m["role"] for m in turns] == ["user", "assistant", "user"] and not asked.tools
        if two and "two_turns" in self.wording and asked.reference is None:
            return "two_turns", {"question_1": turns[0]["content"], "answer_1": turns[1]["content"]}
        besides = more if asked.reference is None else f"{more} and a reference"
        raise ChatError(f"the prompt {self.name} has no place for {besides}")

    def _answers(self, asked: Asked) -> dict[str, str]:
        if len(asked.answers) == 1:
            return {"answer": asked.answers[0]}
        return {"answer_a": asked.answers[0], "answer_b": asked.answers[1]}

    def _in_words(self, rubric: Rubric) -> str:
        """A criterion in the form of Prometheus: for one response with what each score means."""
        if len(rubric.criteria) != 1:
            raise ConfigError(
                f"rubric: the prompt {self.name} takes one criterion, this rubric has {len(rubric.criteria)}",
                key="rubric",
            )
        one = rubric.criteria[0]
        if self.form.mode == "pairwise":
            return f"[{one.text}]"
        wanted = int(self.form.scale[1])
        if len(one.choices) != wanted:
            raise ConfigError(
                f"rubric: the prompt {self.name} takes {wanted} choices, what each score from worst to best means; "
                f"{one.name} has {len(one.choices)}",
                key="rubric",
            )
        lines = [f"Score {score}: {words}" for score, words in enumerate(one.choices, start=1)]
        return "\n".join([f"[{one.text}]", *lines])


@cache
def published_prompt(name: JudgePromptName) -> PublishedPrompt:
    """A published prompt by its name."""
    texts = tomllib.loads(files(__package__).joinpath("published.toml").read_text(encoding="utf-8"))
    wording = dict(texts[name])
    origin = {key: wording.pop(key) for key in ("repository", "revision", "file", "licence")}
    return PublishedPrompt(name, JUDGE_PROMPTS[name], wording=wording, **origin)


# How replies are read.


@dataclass(frozen=True)
class _Reply:
    """A reply behind its reasoning and without marks of the material.

    Attributes:
        text: of the reply.
        request: texts of the request, each on one line.
        quotes: marks of the material were taken out.
    """

    text: str
    request: Sequence[str]
    quotes: bool

    def own(self, pattern: re.Pattern[str]) -> tuple[list[re.Match[str]], bool]:
        """The matches that do not repeat words of the request, and whether there are others."""
        found = list(pattern.finditer(self.text))
        kept = [match for match in found if not self._repeats(match)]
        return kept, len(kept) < len(found) or self.quotes

    def _repeats(self, match: re.Match[str]) -> bool:
        """Whether a judgement stands in the request behind the same words."""
        mark = _on_one_line(match[0])
        around = _on_one_line(self.text[max(0, match.start() - 3 * _BEFORE) : match.end()])
        piece = around[-(_BEFORE + len(mark)) :]
        return len(piece) - len(mark) >= _ENOUGH and any(piece in text for text in self.request)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _none(reply: _Reply, wanted: str, quoted: bool) -> Failure:
    shown = repr(reply.text.strip()[-80:])
    if quoted:
        return Failure("quoted", f"every judgement repeats the request or a response: {shown}")
    return Failure("no_judgement", f"there is no {wanted}: {shown}")


def _one(found: Sequence[str], quoted: bool, reply: _Reply, wanted: str) -> str | Failure:
    """The only judgement; one that is repeated counts once."""
    if not found:
        return _none(reply, wanted, quoted)
    if len(set(found)) > 1:
        return Failure(
            "two_judgements", f"the reply has {' and '.join(sorted(set(found)))}: which one counts is unknown"
        )
    return found[0]


def _in_scale(number: str, low: float, high: float, *, whole: bool) -> float | Failure:
    value = float(number)
    if not low <= value <= high or (whole and not value.is_integer()):
        kind = "integer" if whole else "number"
        return Failure("bad_score", f"{number} is no {kind} from {low:g} to {high:g}")
    return value


def _better(letters: str) -> Callable[[_Reply], float | Failure]:
    """A reader of `[[A]]` and its like."""

    def read(reply: _Reply) -> float | Failure:
        wanted = " or ".join(f"[[{letter}]]" for letter in letters)
        found, quoted = reply.own(_LETTER)
        letter = _one([match[1] for match in found], quoted, reply, wanted)
        if isinstance(letter, Failure):
            return letter
        if letter not in letters:
            return Failure("no_judgement", f"[[{letter}]] is none of the judgements {wanted}")
        return {"A": 1.0, "B": 0.0, "C": 0.5}[letter]

    return read


def _rating(reply: _Reply) -> float | Failure:
    found, quoted = reply.own(_RATING)
    number = _one([match[1] for match in found], quoted, reply, "[[rating]]")
    return number if isinstance(number, Failure) else _in_scale(number, 1, 10, whole=False)


def _last_number(reply: _Reply) -> float | Failure:
    found, quoted = reply.own(_LAST_NUMBER)
    number = _one([match[1] for match in found], quoted, reply, "number at the end")
    return number if isinstance(number, Failure) else _in_scale(number, 1, 10, whole=True)


def _score(reply: _Reply) -> float | Failure:
    """Prometheus: the score that ends the reply, where no mark before it has another one."""
    ends, quoted = reply.own(_SCORE_END)
    if not ends:
        return _none(reply, "[RESULT] with a score at the end", quoted)
    marks, _ = reply.own(_SCORE_MARK)
    number = _one([match[1] for match in (*marks, *ends)], quoted, reply, "[RESULT]")
    return number if isinstance(number, Failure) else _in_scale(number, 1, 5, whole=True)


def _winner(reply: _Reply) -> float | Failure:
    """Prometheus: the response that the end of the reply names, where no mark before it names the other one."""
    ends, quoted = reply.own(_WINNER_END)
    if not ends:
        return _none(reply, "[RESULT] A or [RESULT] B at the end", quoted)
    marks, _ = reply.own(_WINNER_MARK)
    named = [(match[1] or match[2]).upper() for match in ends] + [match[1].upper() for match in marks]
    letter = _one(named, quoted, reply, "[RESULT]")
    return letter if isinstance(letter, Failure) else {"A": 1.0, "B": 0.0}[letter]


def _two_scores(reply: _Reply) -> float | Failure:
    """JudgeLM: two scores on the first line, and on no other line two others."""
    lines = reply.text.strip().splitlines() or [""]
    first = _TWO_NUMBERS.fullmatch(lines[0])
    if first is None:
        return _none(reply, "pair of scores on the first line", reply.quotes)
    again = [found for line in lines[1:] if (found := _TWO_NUMBERS.fullmatch(line))]
    pair = _one([f"{match[1]} {match[2]}" for match in (first, *again)], False, reply, "pair of scores")
    if isinstance(pair, Failure):
        return pair
    scores = [_in_scale(number, 1, 10, whole=False) for number in first.groups()]
    lost = next((score for score in scores if isinstance(score, Failure)), None)
    if lost is not None:
        return lost
    a, b = (score for score in scores if not isinstance(score, Failure))
    return 0.5 if a == b else float(a > b)


_READERS: dict[JudgePromptName, Callable[[_Reply], float | Failure]] = {
    "prometheus_absolute": _score,
    "prometheus_relative": _winner,
    "reward_bench": _better("AB"),
    "reward_bench_rating": _last_number,
    "mt_bench_pair": _better("ABC"),
    "mt_bench_single": _rating,
    "judgelm": _two_scores,
    "skywork_critic": _better("AB"),
    "rm_r1": _better("AB"),
    "rm_r1_reasoning": _better("AB"),
}
