"""Conversations of agents for the report: the newest from which a policy learned, turn by turn.

A run with an agent writes `conversations.jsonl`. Of its newest update the first groups are shown, each by the
conversation with the highest and the one with the lowest reward, and one that failed. One run per task and arm is
shown, the one whose final success is the median. What a model or a tool wrote is text, and is cut where it is long.

    panels, notes = conversation_panels(study.runs, budget=300_000)
    panels[0].shown[0].turns[0].text
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError

from guerdon.comparison.report_answers import clean_text, median_runs
from guerdon.comparison.results import RunRecord, finite
from guerdon.pages import formats as fmt
from guerdon.pages.charts import clip

FILE = "conversations.jsonl"
TAIL = 8_000_000  # bytes at the end of the file that are read
GROUPS = 4
MOST_TURNS = 60  # of a conversation; those in the middle are left out
MOST_TEXT = 3_000  # characters of a message
LONG_TEXT = 600  # characters from which on what the model does not write is folded
Number = Annotated[float | None, BeforeValidator(finite)]


class _Message(BaseModel):
    role: str
    content: Any = ""
    tool_calls: list[Any] | None = None
    name: Any = None


class _Call(BaseModel):
    reward: Number = None
    rewards: dict[str, Number] = {}

    @property
    def said(self) -> str:
        """What it earned from the agent and from reward models; empty where nothing is known."""
        given = {"reward": self.reward, **{clip(clean_text(name), 40): value for name, value in self.rewards.items()}}
        return ", ".join(f"{name} {fmt.signed(value)}" for name, value in given.items() if value is not None)


class _Row(BaseModel):
    """A line of the file."""

    step: int
    id: Any
    group: int
    messages: list[_Message]
    calls: list[_Call]
    reward: Number = None
    success: bool | None = None
    failure: Any = None
    truncated: bool = False


@dataclass(frozen=True)
class ShownTurn:
    """One message as it is shown.

    Attributes:
        role: who wrote it.
        text: without what no page can hold.
        calls: of tools.
        reward: of the turn, in words; empty where it has none.
        summary: what stands in the place of a folded message; empty: it is not folded.
    """

    role: str
    text: str
    calls: tuple[str, ...] = ()
    reward: str = ""
    summary: str = ""


@dataclass(frozen=True)
class ShownConversation:
    """One conversation.

    Attributes:
        title: of which prompt, and at which step.
        facts: its reward, how it ended, and how many turns and calls it has.
        turns: its messages; one with an empty role says how many are left out.
    """

    title: str
    facts: tuple[str, ...]
    turns: tuple[ShownTurn, ...]

    @property
    def n_bytes(self) -> int:
        """About what it takes in the page."""
        return 400 + sum(200 + len(one.text.encode()) + sum(map(len, one.calls)) for one in self.turns)


@dataclass(frozen=True)
class ConversationPanel:
    """Conversations of one run."""

    run: RunRecord
    shown: tuple[ShownConversation, ...]


def conversation_panels(runs: Sequence[RunRecord], *, budget: int) -> tuple[list[ConversationPanel], list[str]]:
    """One panel per task and arm with an agent, shrunk together until they fit into `budget` bytes.

    Returns:
        The panels in the order of the runs, and a line for each file of which nothing can be shown.
    """
    panels, notes = list[ConversationPanel](), list[str]()
    with_agent = median_runs(runs, stored=lambda run: (run.path / FILE).is_file())
    for run in with_agent:
        rows = list(_rows(run.path / FILE))
        shown = list[ShownConversation]()
        room = budget // len(with_agent)
        for one in map(_shown, _picked(rows)):
            room -= one.n_bytes
            if room >= 0:
                shown.append(one)
        if shown:
            panels.append(ConversationPanel(run, tuple(shown)))
        elif (run.path / FILE).stat().st_size:
            notes.append(
                f"{run.name}: no conversation of the end of {FILE} can be read, or is short enough to be shown"
            )
    return panels, notes


def _rows(path: Path) -> Iterator[_Row]:
    """The last rows of a file; what cannot be read, such as a half-written line, is left out."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        lines = file.read().split(b"\n")
    for line in lines[size > TAIL :]:
        try:
            yield _Row.model_validate(json.loads(line))
        except (ValueError, RecursionError, ValidationError):
            continue


def _picked(rows: Sequence[_Row]) -> list[_Row]:
    """Of the newest step the best and the worst of the first groups, and one that failed."""
    newest = [row for row in rows if row.step == rows[-1].step]
    picked = list[_Row]()
    for group in list(dict.fromkeys(row.group for row in newest))[:GROUPS]:
        known = [row for row in newest if row.group == group and row.reward is not None]
        ordered = sorted(known, key=lambda row: -(row.reward or 0.0))
        picked += ordered[:1] + ordered[1:][-1:]
    return picked + [row for row in newest if row.failure][:1]


def _shown(row: _Row) -> ShownConversation:
    """A conversation in words."""
    calls = sum(len(message.tool_calls or ()) for message in row.messages)
    facts = [] if row.reward is None else [f"reward {fmt.decimal(row.reward)}"]
    facts.append({True: "success", False: "no success", None: "success unknown"}[row.success])
    if row.failure:
        facts.append(f"failed: {clip(clean_text(str(row.failure)), 200)}")
    if row.truncated:
        facts.append("truncated")
    facts += [fmt.plural(len(row.calls), "turn"), fmt.plural(calls, "tool call")]
    title = f"{clip(clean_text(str(row.id)), 80)}, group {row.group}, step {fmt.steps(row.step)}"
    return ShownConversation(title, tuple(facts), tuple(_turns(row)))


def _turns(row: _Row) -> Iterator[ShownTurn]:
    """Its messages; the rewards of turns belong to the last messages of the assistant."""
    answers = [k for k, message in enumerate(row.messages) if message.role == "assistant"]
    pairs = zip(reversed(answers), reversed(row.calls), strict=False)
    rewards = {k: call.said for k, call in pairs}
    half = MOST_TURNS // 2
    for k, message in enumerate(row.messages):
        if len(row.messages) > MOST_TURNS and k == half:
            yield ShownTurn("", f"{len(row.messages) - MOST_TURNS} messages are left out on this page")
        if len(row.messages) <= MOST_TURNS or k < half or k >= len(row.messages) - half:
            yield _turn(message, rewards.get(k, ""))


def _turn(message: _Message, reward: str) -> ShownTurn:
    text, role = clean_text(_text(message.content)), clip(clean_text(message.role), 40)
    calls = tuple(clip(clean_text(_call(call)), MOST_TEXT) for call in message.tool_calls or ())
    summary = ""
    if message.role == "tool" or (message.role != "assistant" and len(text) > LONG_TEXT):
        of = f" of {clip(clean_text(str(message.name)), 80)}" if message.name else ""
        what = f"result{of}" if message.role == "tool" else role
        summary = f"{what}, {fmt.plural(len(text), 'character')}"
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}\n[{len(text) - MOST_TEXT:,} characters are left out on this page]"
    return ShownTurn(role, text, calls, reward, summary)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)


def _call(call: Any) -> str:
    """A call of a tool as `name(arguments)`."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return _text(call)
    return f"{_text(function.get('name'))}({_text(function.get('arguments'))})"
