"""Error messages of a configuration from pydantic's errors, one line per problem.

Each line has the place (`file:line`), the key, its value and what is allowed. Unknown keys come first and alone, each
with a suggestion: other errors may follow from them.

    study.yaml:7: reward.reward_mode is 'perstep'; allowed: 'per_step' or 'terminal'; did you mean 'per_step'?
    study.yaml:8: reward.success_rewad = 1: unknown key; did you mean reward.success_reward?
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from guerdon.config.schema import (
    Spot,
    child,
    discriminator,
    field_of,
    keys_of,
    leaves,
    literals,
    mark,
    models_in,
    tagged,
    tags,
)
from guerdon.config.tree import Tree, describe
from guerdon.errors import ConfigError

_MOST_LISTED = 20
MOST_LINES = 50


class _Location(NamedTuple):
    """Where an error is, as the user wrote it and as the schema sees it."""

    path: str
    spot: Spot  # at the error itself
    parent: Spot  # of the section around it
    forms: Spot  # that the section around it may have


def problems(model: type[BaseModel], tree: Tree, error: ValidationError, origin: str) -> list[ConfigError]:
    """One error with one line per problem, in the order of the schema; alternatives of a union share one.

    Where keys are unknown, the errors are about those alone.
    """
    if unknown := unknown_keys(model, tree, origin):
        return unknown
    grouped: dict[str, list[tuple[_Location, Mapping[str, Any]]]] = {}
    for detail in error.errors(include_url=False):
        where = _locate(model, tree.data, detail)
        grouped.setdefault(where.path, []).append((where, detail))
    errors = []
    unknown_last = [path for path in grouped if all(d["type"] != "extra_forbidden" for _, d in grouped[path])]
    ordered = sorted(grouped.items(), key=lambda item: item[0] in unknown_last)
    for path, found in ordered[:MOST_LINES]:
        text = "; ".join(dict.fromkeys(_texts(model, found)))
        joint = "" if text.startswith(".") or not path else " "
        place = tree.place(path if joint else f"{path}{text.partition(' ')[0]}") or origin
        errors.append(ConfigError(f"{place}: {path}{joint}{text}", key=_key(path, found) or None))
    return errors + _and_more(len(ordered) - len(errors), "problems")


def _and_more(count: int, what: str) -> list[ConfigError]:
    """A line for those that are not listed."""
    return [ConfigError(f"... and {count:,} more {what}")] if count > 0 else []


def _key(path: str, found: list[tuple[_Location, Mapping[str, Any]]]) -> str:
    """The key that the problems of a path are about: the one inside it that the check of a section named, if any."""
    raised = (detail.get("ctx", {}).get("error") for _, detail in found)
    named = next((error.key for error in raised if isinstance(error, ConfigError) and error.key), "")
    return ".".join(part for part in (path, named) if part)


def _locate(model: type[BaseModel], data: Any, detail: Mapping[str, Any]) -> _Location:
    """Follow pydantic's location through schema and data, leaving out what only names a union's member."""
    spot: Spot = (model,)
    parent = forms = every = spot  # every: whatever forms the sections around it have
    written: list[str] = []
    pieces = detail["loc"]
    known = True  # whether the section around this piece is in the file, or a short form that a model expanded
    for i, piece in enumerate(pieces):
        inside = child(spot, piece)
        present = _has(data, piece)
        last = i == len(pieces) - 1
        if inside and _is_tag(spot, piece):
            spot = tagged(spot, piece)
            continue
        if not inside and not (last and detail["type"] == "extra_forbidden"):
            spot = tagged(spot, piece)
            continue
        parent, forms = spot, every
        spot, every = inside, child(every, piece)
        if present or (last and (known or detail["type"] == "missing")):
            written.append(str(piece))
        data, known = (data[piece], True) if present else (data, False)
    return _Location(".".join(written), spot, parent, forms)


def _is_tag(spot: Spot, piece: Any) -> bool:
    """Whether a piece that is also the name of a field stands for the form of a union, which comes first."""
    models = models_in(spot)
    key = discriminator(tuple(models)) if len(models) > 1 else None
    return key is not None and piece in tags(spot, key)


def _has(data: Any, piece: Any) -> bool:
    if isinstance(data, dict):
        return piece in data
    return isinstance(data, list | tuple) and isinstance(piece, int) and piece < len(data)


class _Words(NamedTuple):
    """What is said about one problem of a key."""

    text: str
    allowed: str | None = None  # what could stand there instead; said once for all alternatives of a union
    hint: str | None = None  # which allowed word was meant; None: the problem is not about words


def _texts(model: type[BaseModel], found: list[tuple[_Location, Mapping[str, Any]]]) -> list[str]:
    """The words for the problems of one key."""
    words = [_words(model, where, detail) for where, detail in found]
    texts = [one.text for one in words]
    allowed = [one.allowed for one in words if one.allowed is not None]
    if allowed:
        texts.append(f"allowed: {' or '.join(dict.fromkeys(allowed))}")
    hints = [one.hint for one in words if one.hint is not None]
    if hints and hints[-1]:
        texts.append(hints[-1])
    return texts


def _words(model: type[BaseModel], where: _Location, detail: Mapping[str, Any]) -> _Words:
    """The words for one problem, by pydantic's kind of error."""
    match detail["type"]:
        case "extra_forbidden":
            key = detail["loc"][-1]
            others = [form for form in models_in(where.forms) if field_of(form, key) is not None]
            unknown = _Unknown(where.path, detail["input"], models_in(where.parent), others)
            return _Words(_unknown_text(model, unknown))
        case "missing":
            return _Words(f"is missing and has no default{_meaning(where)}")
        case "value_error" | "assertion_error":
            return _Words(_validator_message(where, detail))
        case "union_tag_invalid" | "union_tag_not_found":
            return _wrong_tag(where, detail)
        case _:
            return _wrong_value(detail)


def _wrong_tag(where: _Location, detail: Mapping[str, Any]) -> _Words:
    """A section whose key that says which form it has is missing, or names no form."""
    value = detail["input"]
    context = detail.get("ctx") or {}
    name = str(context["discriminator"]).strip("'()")
    given = value.get(name, ...) if isinstance(value, dict) else getattr(value, name, ...)
    shown = f".{name} is missing" if given is ... else f".{name} is {describe(given)}"
    choices = tags(where.spot, name)
    allowed = _one_of([repr(choice) for choice in choices])
    meant = str(context.get("tag", ""))
    return _Words(f"{shown}; allowed: {allowed}", hint=_close(meant, choices))


def _wrong_value(detail: Mapping[str, Any]) -> _Words:
    """A value that its key does not take."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx") or {}
    secret = is_secret(str(detail["loc"][-1:])) and isinstance(value, str)
    text = "is not shown here" if secret else f"is {describe(value)}"
    if kind not in ("literal_error", "enum"):
        return _Words(text, _requirement(detail))
    expected = str(context["expected"])
    if kind == "enum" or not isinstance(value, str):
        return _Words(text, expected)
    return _Words(text, expected, _close(value, re.findall(r"'([^']*)'", expected)))


def is_secret(key: str) -> bool:
    """Whether an error message leaves out the value of a key, which may be misspelled: in doubt, yes."""
    return any(word in key for word in ("token", "key", "password"))


def _validator_message(where: _Location, detail: Mapping[str, Any]) -> str:
    """The message of one of guerdon's validators, with the value where it is about a single value."""
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    value = detail["input"]
    if not where.path or isinstance(value, dict | BaseModel):
        return f"does not fit together: {message}"
    return f"is {describe(value)}: {message}"


def _requirement(detail: Mapping[str, Any]) -> str:
    message = str(detail["msg"]).removeprefix("Input should be ").removeprefix("a valid ")
    message = re.sub(r"^(dictionary|mapping)\b.*", "a section (a map of keys)", message)
    message = re.sub(r"^(list|tuple)$", "a list in square brackets", message)
    message = re.sub(r"^(?:List|Tuple) should have at least (\d+) .*", r"a list of at least \1", message)
    return message.split(", unable to parse")[0].split(", got a number with")[0]


def _meaning(where: _Location) -> str:
    """The description of a missing key, where its field has one."""
    key = where.path.rpartition(".")[2]
    for candidate in models_in(where.parent):
        field = field_of(candidate, key)
        if field is not None and field.description:
            return f": {field.description}"
    return ""


class _Unknown(NamedTuple):
    """A key that its section does not have."""

    path: str
    value: Any
    forms: Sequence[type[BaseModel]]  # of the section, as far as its other keys tell them apart
    others: Sequence[type[BaseModel]]  # the other forms of the section that have the key


def unknown_keys(model: type[BaseModel], tree: Tree, origin: str) -> list[ConfigError]:
    """An error per key that no form of its section has; where there is none, per key that belongs to another form.

    A key that references or defaults copied elsewhere is reported where it was written.
    """
    found = list(_unknown((model,), tree.data, ""))
    written = [one for one in found if one.path in tree.places] or found
    shown = [one for one in written if not one.others] or written
    listed = [
        ConfigError(f"{tree.place(one.path) or origin}: {one.path} {_unknown_text(model, one)}", key=one.path)
        for one in shown[:MOST_LINES]
    ]
    return listed + _and_more(len(shown) - len(listed), "unknown keys")


def _unknown(spot: Spot, value: Any, path: str) -> Iterator[_Unknown]:
    """The unknown keys of a value and of everything inside it; nothing of what the schema leaves free."""
    if isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _unknown(child(spot, i), inner, f"{path}.{i}")
    if not isinstance(value, Mapping):
        return
    forms, every = models_in(spot, value), models_in(spot)
    for key, inner in value.items():
        here = f"{path}.{key}" if path else str(key)
        fitting = child(spot, key, value)
        inside = fitting or child(spot, key)
        if every and not fitting and all(form.model_config.get("extra") == "forbid" for form in every):
            yield _Unknown(here, inner, forms, [form for form in every if field_of(form, key) is not None])
        yield from _unknown(inside, inner, here)


def _unknown_text(model: type[BaseModel], one: _Unknown) -> str:
    key = one.path.rpartition(".")[2]
    shown = "(not shown here)" if isinstance(one.value, str) and is_secret(key) else describe(one.value)
    return f"= {shown}: unknown key; {_suggestion(model, one)}"


def _suggestion(model: type[BaseModel], one: _Unknown) -> str:
    """`did you mean ...?`: the nearest key of the same section first, then a nearer one of another section."""
    section, _, key = one.path.rpartition(".")
    if marks := [found for form in one.others if (found := mark(form, one.forms))]:
        return f"it belongs to {' or '.join(marks)}"
    hint_for: Callable[[str, Any], str] | None = getattr(model, "hint_for", None)
    if hint_for is not None and (hint := hint_for(one.path, one.value)):
        return hint
    prefix = f"{section}." if section else ""
    here = list(dict.fromkeys(name for form in one.forms for name in keys_of(form)))
    near, bar = _near_key(key, here)
    guesses = _values_like(prefix, one) if near is None else [f"{prefix}{near}"]
    best, likeness = _best_anywhere(model, key, bar)
    exact = near is not None and _likeness(key, near) == 1.0  # no other section has a closer name
    if likeness >= bar and not exact:
        guesses.append(best)
    if guesses:
        return f"did you mean {' or '.join(guesses)}?"
    if not here:
        return "there are no keys here; remove it"
    more = ", ..." if len(here) > _MOST_LISTED else ""
    return f"known keys here: {', '.join(here[:_MOST_LISTED])}{more}"


def _near_key(key: str, here: Sequence[str]) -> tuple[str | None, float]:
    """The known key of the section that was meant, if any, and how alike one of another section must be."""
    near = min(here, key=lambda name: _distance(key, name), default="")
    if near:
        slips, _ = _distance(key, near)
        if slips <= max(1, min(len(key), len(near)) // 4):
            return near, 1.0
    whole = [name for name in here if len(key) > 3 and key.strip("_") in name]
    near = max(whole or here, key=lambda name: _likeness(key, name), default="")
    likeness = _likeness(key, near)
    bar = max(0.8, likeness)
    if whole or likeness >= 0.75:
        return near, bar
    return None, bar


def _best_anywhere(model: type[BaseModel], key: str, bar: float) -> tuple[str, float]:
    """The path of the whole configuration whose last part is most like a key, and how alike; 0 where below the bar."""
    ends = {path: path.rpartition(".")[2] for path in _everywhere(model)}
    alike = {name: _likeness(key, name, at_least=bar) for name in dict.fromkeys(ends.values())}
    best = max(ends, key=lambda path: (alike[ends[path]], -path.count(".")))
    return best, alike[ends[best]]


def _values_like(prefix: str, one: _Unknown) -> list[str]:
    """Keys of the section with the value that the unknown key names, such as `search.method: best_of_n`."""
    word = one.path.rpartition(".")[2]
    return [
        f"{prefix}{name}: {choice}"
        for form in one.forms
        for name, choices in literals(form).items()
        for choice in choices
        if _likeness(word, str(choice)) == 1.0
    ]


@cache
def _everywhere(model: type[BaseModel]) -> tuple[str, ...]:
    """The path of every key of a configuration; keys inside lists have none that one could write."""
    return tuple(path for path in leaves((model,)) if "<i>" not in path)


def _distance(key: str, name: str) -> tuple[int, float]:
    """Slips of the pen from a known key to what was written, for sorting: the fewest first, then the most alike.

    A slip adds, loses or replaces a character or swaps two neighbours (optimal string alignment distance).
    """
    a, b = key.lower(), name.lower()
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            slips = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and (x, a[i - 2]) == (b[j - 2], y):
                slips = min(slips, older[j - 2] + 1)
            row.append(slips)
    return row[-1], -_likeness(key, name)


def _likeness(given: str, name: str, *, at_least: float = 0.0) -> float:
    """How alike what was written and a name are, 0 to 1; 1 also for its initials, and whatever joins its words.

    Less than `at_least` is 0.
    """
    plain, initials = _spellings(name)
    if _spellings(given)[0] in (plain, initials):
        return 1.0
    matcher = difflib.SequenceMatcher(None, given.lower(), name.lower())
    possible = matcher.real_quick_ratio() >= at_least and matcher.quick_ratio() >= at_least  # upper bounds
    return found if possible and (found := matcher.ratio()) >= at_least else 0.0


@cache
def _spellings(name: str) -> tuple[str, str | None]:
    """A name without what joins its words, and its initials if these are three or more."""
    words = re.findall(r"[^\W_]+", name.lower())
    return "".join(words), "".join(word[0] for word in words) if len(words) > 2 else None


def nearest(word: str, choices: Sequence[str], *, bar: float = 0.6) -> str | None:
    """The name that a user most likely meant; None where none is near.

    Args:
        word: what was written.
        choices: names.
        bar: how alike they must be, 0 to 1, unless the word begins with the name.
    """
    best = max(choices, key=lambda name: _likeness(word, name), default="")
    if _likeness(word, best) >= bar:
        return best
    begun = [name for name in choices if len(name) > 3 and word.lower().startswith(name.lower())]
    return begun[0] if begun else None


def _close(word: str, choices: list[str]) -> str:
    near = nearest(word, choices)
    return f"did you mean {near!r}?" if near else ""


def _one_of(choices: list[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)
