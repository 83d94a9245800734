"""The rules by which a tokenizer changes and splits texts, checked before any text is given to it.

A `tokenizer.json` holds rules of its publisher: texts are replaced by others, and regular expressions split them. The
library has no limit for them: rules that replace a letter by ten letters, ten times in a row, end this process. Here
rules that can make much more of a text are refused by what they say, and regular expressions are run over long texts in
a process that is killed when it takes too long.

    check_rules({"normalizer": {"type": "Prepend", "prepend": "▁"}}, "runs/model")
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from guerdon.errors import CheckpointError, boundary
from guerdon.processes.subprocess_worker import (
    SubprocessWorker,
    WorkerError,
    WorkerTimeoutError,
    answer_requests,
    limit_memory,
)

RULES = ("normalizer", "pre_tokenizer", "decoder")
MOST = 100  # characters that the rules can make of one
SECONDS = 3.0  # of processor time, for all long texts
PATIENCE = 10  # times as long, while other programs need the processor
MEMORY = 512 << 20  # bytes, beyond those of the process itself

_INSIDE = ("normalizers", "pretokenizers", "decoders", "processors")  # of a rule of type Sequence
_LENGTH = 3_000  # usual expressions need quadratic time for a long row of spaces; others fail on far shorter ones
_LONG = [  # texts over which regular expressions are run
    (text * _LENGTH)[:_LENGTH]
    for text in ("3 + 5 = 8, so the answer isn't 7.\n", "a", "aA", " ", "1", "\n", "!", "a!", "漢字é", " \n", "<|x|>\t")
]


def check_rules(parts: Mapping[str, Any], where: str) -> None:
    """Refuse the rules of a tokenizer that can make much more of a text, or that take long.

    Args:
        parts: of a `tokenizer.json`.
        where: it is from, for the message.

    Raises:
        CheckpointError: they can make more than `MOST` characters of one, or need more than `SECONDS` or `MEMORY` for
            a text of 3,000 characters.
        MissingDependencyError: the process does not start.
    """
    rules = {name: parts.get(name) for name in RULES}
    growths = {name: _growth(rule) for name, rule in rules.items()}
    for name, growth in {**growths, "post_processor": _copies(parts)}.items():
        if growth > MOST:
            raise CheckpointError(
                f"the tokenizer of {where!r} cannot be used: its {name} can make {growth:,.0f} characters of one; "
                "correct it in tokenizer.json, or copy that of the model that it was trained from"
            )
    written = json.dumps(rules)
    if '"Regex"' in written and (problem := _problem(written)):
        raise CheckpointError(
            f"the tokenizer of {where!r} cannot be used: its regular expressions {problem} for a text of {_LENGTH:,} "
            "characters; correct them in tokenizer.json, or copy that of the model that it was trained from"
        )


def _growth(rule: Any) -> float:
    """Characters that a rule can make of one.

    What Unicode defines, such as NFKC, makes a few of one at most, and does so once: it does not count.
    """
    if not isinstance(rule, dict):
        return 1.0
    found = 1.0
    for inner in (one for key in _INSIDE for one in _list(rule.get(key))):
        found *= _growth(inner)
    kind, pattern, content = rule.get("type"), rule.get("pattern"), rule.get("content")
    if kind in ("Prepend", "Append"):
        found *= 1 + len(str(rule.get(kind.lower(), "")))
    elif kind == "Replace" and isinstance(pattern, dict) and isinstance(content, str):
        replaced = pattern.get("String")  # a regular expression can fit a single character, or the place beside one
        found *= max(1.0, len(content) / len(replaced) if replaced else 1 + len(content))
    elif kind == "Precompiled":
        found *= _longest_replacement(rule.get("precompiled_charsmap"))
    return found


def _longest_replacement(charsmap: Any) -> float:
    """Characters of the longest text in a table of sentencepiece that are more than Unicode's own replacements."""
    try:
        table = base64.b64decode(charsmap)
    except (ValueError, TypeError):  # which the library refuses as well
        return 1.0
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1.0, max(map(len, texts.split(b"\0"))) / 64)


def _copies(parts: Mapping[str, Any]) -> float:
    """How often a post-processor writes a text."""
    rule, found = parts.get("post_processor"), 1.0
    for one in [rule, *_list(rule.get("processors"))] if isinstance(rule, dict) else []:
        pieces = [piece for key in ("single", "pair") for piece in _list(one.get(key))] if isinstance(one, dict) else []
        found *= max(1, sum(isinstance(piece, dict) and "Sequence" in piece for piece in pieces))
    return found


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


@cache
def _problem(rules: str) -> str:
    """What the regular expressions of rules do wrong; nothing where they end in time."""
    command = [sys.executable, "-m", "guerdon.policies.pretrained.tokenizer_rules", str(SECONDS)]
    worker = SubprocessWorker(command, start_seconds=120, description="process for rules of tokenizers")
    try:
        return str(worker.request({"rules": json.loads(rules)}, PATIENCE * SECONDS).get("problem", ""))
    except WorkerTimeoutError:
        return f"take more than {SECONDS:g} s"
    except WorkerError:
        return f"need more than {MEMORY >> 20} MiB of memory, or end the process that runs them,"
    finally:
        worker.kill()


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """Run rules over long texts, in the process."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}
    usual: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "post_processor": None,
    }
    try:
        with boundary(CheckpointError, "the tokenizer cannot be read"):
            tokenizer = Tokenizer.from_str(json.dumps({**usual, **request["rules"], "model": model}))
    except CheckpointError:
        return {}  # whoever reads the file says what is wrong
    for text in _LONG:
        changed = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        if tokenizer.pre_tokenizer is not None:
            tokenizer.pre_tokenizer.pre_tokenize_str(changed)
        if tokenizer.decoder is not None:
            tokenizer.decoder.decode([text])
    return {}


def _prepare() -> None:
    """Import what is needed, and bound the memory of what follows."""
    _run({"rules": dict.fromkeys(RULES)})
    limit_memory(MEMORY)


if __name__ == "__main__":
    seconds = float(sys.argv[1])
    answer_requests(_run, alarm=2 * PATIENCE * seconds, processor=seconds, prepare=_prepare)
