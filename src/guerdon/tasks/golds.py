r"""Which true answers the verifier of a run cannot read, found before the run starts.

Numbers and the tests of programs are read here, all of them. Other mathematics is parsed in the verifier's processes,
about 10 ms each, so at most `MOST_PARSED` different true answers of a file are tried, spread evenly over it; their
share stands for the rest. One that is met later is a failed measurement (`gold_unparsable`), as in any run.

    found = unreadable_golds(prompts, data)
    found.reasons                    # {17: "the true answer '\frac{1' cannot be read (math)"}
    found.share                      # 0.002
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from guerdon.settings.data import VERIFIERS, FilesDataSettings, GSM8KDataSettings, HubDataSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.quantities import numbers_of
from guerdon.tasks.verifier import Verifier, verifier_from

ReadDataSettings = FilesDataSettings | GSM8KDataSettings | HubDataSettings

MOST_PARSED = 256  # of a file
_MOST_TIMEOUTS = 8  # of the parser, after which no more true answers of a file are tried
_PROBE = r"\boxed{0}"  # a response: only what the verifier says of the true answer counts
_PLAIN = re.compile(r"[A-Z]|-?[0-9]+(?:\.[0-9]+)?")  # the letter of an option, a number


class UnreadableGolds(NamedTuple):
    """What `unreadable_golds` found.

    Attributes:
        reasons: of each prompt whose true answer cannot be read, by its place.
        share: of all prompts, estimated where not every true answer was parsed.
    """

    reasons: dict[int, str]
    share: float


def unreadable_golds(prompts: Sequence[Prompt], settings: ReadDataSettings) -> UnreadableGolds:
    """The prompts whose true answer the verifier cannot read; those without one are not tried.

    Nothing is known of a user's own verifier.

    Raises:
        MissingDependencyError: answers are compared as mathematics, and math-verify is not installed.
    """
    if VERIFIERS.is_own(settings.verifier):
        return UnreadableGolds({}, 0.0)
    reasons: dict[int, str] = {}
    rows_of: dict[str, list[int]] = {}  # true answers that need the parser
    with verifier_from(settings) as verifier:
        for i, prompt in enumerate(prompts):
            gold, kind = prompt.ground_truth, verifier.kind_for(prompt)
            if not gold or kind == "generated":
                continue
            if kind != "math":
                result = verifier.check(_PROBE if kind != "code" else "", prompt)
                if result.verdict == "gold_unparsable":
                    reasons[i] = (
                        f"it is a programming task, but {result.detail}" if kind == "code" else _reason(gold, kind)
                    )
            elif not _PLAIN.fullmatch(gold) and not numbers_of(gold, prompt.question):
                rows_of.setdefault(gold, []).append(i)
    golds = tuple(rows_of)[:: max(1, -(-len(rows_of) // MOST_PARSED))]
    bad = _unparsable(golds, settings.verifier_timeout, settings.verifier_workers, settings.verifier_tolerance)
    reasons |= {i: _reason(gold, "math") for gold in bad for i in rows_of[gold]}
    parsed, symbolic = (sum(len(rows_of[gold]) for gold in some) for some in (golds, rows_of))
    unread = sum(len(rows_of[gold]) for gold in bad)
    share = (len(reasons) - unread + unread * symbolic / max(parsed, 1)) / max(len(prompts), 1)
    return UnreadableGolds(dict(sorted(reasons.items())), share)


def _reason(gold: str, kind: str) -> str:
    return f"the true answer {gold[:80]!r} cannot be read ({kind})"


@functools.lru_cache(maxsize=64)
def _unparsable(golds: tuple[str, ...], timeout: float, workers: int, tolerance: float) -> tuple[str, ...]:
    """Those of these true answers that the math verifier cannot read; kept, because commands read a file repeatedly."""
    bad: list[str] = []
    timeouts = 0
    if not golds:
        return ()
    with Verifier("math", timeout=timeout, workers=workers, tolerance=tolerance) as verifier:
        for start in range(0, len(golds), 4 * workers):
            some = golds[start : start + 4 * workers]
            prompts = [Prompt("", ({"role": "user", "content": ""},), gold, "") for gold in some]
            verdicts = [result.verdict for result in verifier.check_batch([_PROBE] * len(some), prompts)]
            bad += [gold for gold, verdict in zip(some, verdicts, strict=True) if verdict == "gold_unparsable"]
            timeouts += verdicts.count("timeout")
            if timeouts >= _MOST_TIMEOUTS:
                break
    return tuple(bad)
