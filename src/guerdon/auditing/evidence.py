"""What is shown of a finding: the part of a response, the group or the curve; and which findings belong together.

findings = with_evidence(View.whole(rows), findings)
findings[0].excerpts[0]             # Excerpt("... and ", "as an expert", " I can say ...")
remedy_of(findings[0], Path("rollouts.jsonl"))
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from guerdon.auditing.finding import Excerpt, Finding
from guerdon.auditing.log_view import View
from guerdon.auditing.program_checks import PATTERNS
from guerdon.auditing.rows import Codes, Flags
from guerdon.auditing.text_features import FLATTERY, LAYOUTS, MARKS, REFUSAL

OF_GROUPS = ("no_variance", "same_reward", "position", "duplicates", "inconsistent")
"""Findings that are about groups of responses, and show these."""
OF_RUNS = ("truth", "drift", "jump", "saturation")
"""Findings that are about the run, and show its curve."""
AROUND = 70  # characters shown before and behind what was found
LONGEST = 120  # characters of what was found
MEMBERS = 12  # of a group that are shown
TOGETHER = 0.8  # share of the rows of the smaller of two findings that makes them one
COMMON = 0.5  # share of all rows from which on a finding has most rows of any other
_AT_THE_END = ("truncated", "failures", "length", "unpaid_right", "paid_wrong", "agreement")
_QUOTED = re.compile(r'"([^"]+)"')
_BY_NAME: Mapping[str, re.Pattern[str]] = {"refusal": REFUSAL, "flattery": FLATTERY, **PATTERNS}


def with_evidence(view: View, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with excerpts or groups of their examples, and the name of the one that each belongs to.

    Args:
        view: of all rows with a reward.
        findings: the worst first.
    """
    shown = [_with_group(view, one) if one.name in OF_GROUPS else _with_excerpts(view, one) for one in findings]
    return tuple(_joined(shown, len(view.rows)))


# ---- excerpts


def _with_excerpts(view: View, finding: Finding) -> Finding:
    """A finding with the part of the response of each example; without texts as it is."""
    texts = view.rows.texts
    if texts is None or finding.name in OF_RUNS or not finding.examples:
        return finding
    excerpts = []
    for row, line in finding.examples:
        place = _place_of(row, texts.row_M)
        text = "" if place is None else texts.responses[place]
        excerpts.append(excerpt(text, *_span(finding, line, text)))
    return replace(finding, excerpts=tuple(excerpts) if any(any(one) for one in excerpts) else ())


def _span(finding: Finding, line: str, text: str) -> tuple[int, int]:
    """Where in a response is what was found."""
    phrases = [*finding.phrases, *_QUOTED.findall(line)]
    patterns = [re.compile(r"\W+".join(map(re.escape, phrase.split())), re.IGNORECASE) for phrase in phrases]
    patterns += [one for one in (_BY_NAME.get(finding.name), _layout_of(finding)) if one is not None]
    for pattern in patterns:
        match = pattern.search(text)
        if match is not None and match.end() > match.start():
            return match.span()
    if finding.name == "repetition":
        return _repeated(text)
    if finding.name in _AT_THE_END:
        marks = list(MARKS.finditer(text))
        return (marks[-1].start(), len(text)) if marks and finding.name != "truncated" else (len(text), len(text))
    return 0, 0


def _layout_of(finding: Finding) -> re.Pattern[str] | None:
    """The layout that a finding `format` names."""
    return LAYOUTS.get(finding.title.partition(" get ")[0]) if finding.name == "format" else None


def _repeated(text: str) -> tuple[int, int]:
    """The second occurrence of the first phrase of four words that comes again."""
    words, seen = list(re.finditer(r"\S+", text)), set[tuple[str, ...]]()
    for k in range(len(words) - 3):
        phrase = tuple(word.group() for word in words[k : k + 4])
        if phrase in seen:
            return words[k].start(), words[k + 3].end()
        seen.add(phrase)
    return 0, 0


def excerpt(text: str, start: int, stop: int) -> Excerpt:
    """A part of a text with some of what is around it; where it is empty, the text around its place."""
    stop = min(stop, start + LONGEST)
    around = AROUND if stop > start else 2 * AROUND
    before, behind = text[max(0, start - around) : start], text[stop : stop + around]
    before = ("… " if start > around else "") + before
    behind += " …" if stop + around < len(text) else ""
    return Excerpt(_plain(before), _plain(text[start:stop]), _plain(behind))


def _plain(text: str) -> str:
    """A text in one line, in which characters that cannot be seen have a name."""
    return "".join(c if c.isprintable() else f"[U+{ord(c):04X}]" for c in re.sub(r"\s+", " ", text))


# ---- groups


def _with_group(view: View, finding: Finding) -> Finding:
    """A finding about groups, whose examples say the rewards of their groups, and the truth where it is known."""
    if view.peer_M is None:
        return finding
    examples = []
    for row, line in finding.examples:
        place = _place_of(row, view.row_M)
        of_group = "" if place is None else _group_said(view, place)
        examples.append((row, "; ".join(filter(None, [line, of_group]))))
    return replace(finding, examples=tuple(examples))


def _place_of(row: int, row_M: Codes) -> int | None:
    """The place of a row among ascending numbers of rows; None where it is not there."""
    place = int(np.searchsorted(row_M, row))
    return place if place < len(row_M) and row_M[place] == row else None


def _group_said(view: View, place: int) -> str:
    assert view.peer_M is not None
    members = np.flatnonzero(view.peer_M == view.peer_M[place])
    shown, more = members[:MEMBERS], len(members) - MEMBERS
    said = "rewards of its group " + ", ".join(f"{value:.3g}" for value in view.reward_M[shown])
    if view.truth_M is not None and np.isfinite(view.truth_M[shown]).any():
        said += "; truth " + ", ".join("unknown" if value != value else f"{value:.3g}" for value in view.truth_M[shown])
    return said + (f", and {more} more" if more > 0 else "")


# ---- findings that belong together


def _joined(findings: Sequence[Finding], rows: int) -> list[Finding]:
    """Each finding with the name of the worse one that has its phrase or nearly its rows, where there is one."""
    masks = [_mask(one, rows) for one in findings]
    leaders: list[int] = []
    joined = list(findings)
    for k, one in enumerate(findings):
        first = next((i for i in leaders if _together(findings[i], masks[i], one, masks[k], rows)), None)
        if first is None:
            leaders.append(k)
        else:
            joined[k] = replace(one, joined_to=findings[first].name)
    return joined


def _mask(finding: Finding, rows: int) -> Flags:
    mask = np.zeros(rows, bool)
    if finding.marked is not None:
        mask[finding.marked] = True
    return mask


def _together(a: Finding, mask_a: Flags, b: Finding, mask_b: Flags, rows: int) -> bool:
    """Whether two findings are about one thing: a phrase, or most rows of the smaller one.

    The rows of a run or of groups stand for something else, and so do those of a finding that has most rows of the log:
    it shares those of any other.
    """
    if set(a.phrases) & set(b.phrases):
        return True
    if any(one.name in (*OF_RUNS, *OF_GROUPS) for one in (a, b)):
        return False
    sizes = int(mask_a.sum()), int(mask_b.sum())
    shared = int((mask_a & mask_b).sum())
    if not min(sizes) or shared < TOGETHER * min(sizes):
        return False
    return max(sizes) < COMMON * rows or shared >= TOGETHER * max(sizes)


# ---- what to do


def remedy_of(finding: Finding, log: Path) -> str:
    """What to do about a finding, with the phrase, the rows, and commands that name the log.

    Args:
        finding: of an audit.
        log: its path, as the user wrote it.
    """
    path, file = shlex.quote(str(log)), f"{finding.name}.jsonl"
    remedy = finding.remedy.replace("`guerdon audit --second`", f"`guerdon audit {path} --second OTHER.jsonl`")
    if finding.marked is None or not len(finding.marked):
        return remedy
    score = f"`guerdon score {file} --model MODEL --output {finding.name}.scored.jsonl`"
    remedy = remedy.replace("`guerdon score`", score)
    named = f" with {' or '.join(repr(phrase) for phrase in finding.phrases[:3])}" if finding.phrases else ""
    rows = f"the {len(finding.marked):,} rows{named}"
    return f"read {rows}: `guerdon audit {path} --save-rows {finding.name} {file}` writes them; {remedy}"
