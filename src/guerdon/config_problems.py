"""What pydantic found wrong with a configuration, in one line per problem that a person can act on.

Knows pydantic's errors and the trees they are about, no setting by name. Each line says where (`file:line`),
which key, what stands there and what is allowed; an unknown key gets a suggestion.

    study.yaml:7: reward.reward_mode is 'perstep'; allowed: 'per_step' or 'terminal'; did you mean 'per_step'?
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from guerdon.config_schema import Spot, child, field_of, leaves, models_in, names_of, tagged, tags
from guerdon.config_tree import Tree, describe

_MOST_LISTED = 20


class _Spotted(NamedTuple):
    """Where an error is, as the user wrote it and as the schema sees it."""

    path: str
    spot: Spot  # at the error itself
    parent: Spot  # of the section around it
    parent_path: str


def problem_lines(model: type[BaseModel], tree: Tree, error: ValidationError, source: str) -> list[str]:
    """One line per problem, in the order of the schema; alternatives of a union share one line."""
    grouped: dict[str, list[tuple[_Spotted, Mapping[str, Any]]]] = {}
    for detail in error.errors(include_url=False):
        where = _locate(model, tree.data, detail)
        grouped.setdefault(where.path, []).append((where, detail))
    lines = []
    for path, found in grouped.items():
        text = "; ".join(dict.fromkeys(_texts(model, found)))
        joint = "" if text.startswith(".") or not path else " "
        place = tree.place(path if joint else f"{path}{text.partition(' ')[0]}") or source
        lines.append(f"{place}: {path}{joint}{text}")
    return lines


def _locate(model: type[BaseModel], data: Any, detail: Mapping[str, Any]) -> _Spotted:
    """Follow pydantic's location through schema and data, leaving out what only names a union's member."""
    spot: Spot = (model,)
    parent: Spot = spot
    written: list[str] = []
    pieces = detail["loc"]
    known = True  # whether the section around this piece stands in the file, or a short form that a model expanded
    for i, piece in enumerate(pieces):
        inside = child(spot, piece)
        present = _has(data, piece)
        last = i == len(pieces) - 1
        if not inside and not (last and detail["type"] == "extra_forbidden"):
            spot = tagged(spot, piece)
            continue
        parent, spot = spot, inside
        if present or (last and (known or detail["type"] == "missing")):
            written.append(str(piece))
        data, known = (data[piece], True) if present else (data, False)
    return _Spotted(".".join(written), spot, parent, ".".join(written[:-1]))


def _has(data: Any, piece: Any) -> bool:
    if isinstance(data, dict):
        return piece in data
    return isinstance(data, list | tuple) and isinstance(piece, int) and piece < len(data)


def _texts(model: type[BaseModel], found: list[tuple[_Spotted, Mapping[str, Any]]]) -> list[str]:
    """The words for the problems of one key."""
    texts: list[str] = []
    allowed: list[str] = []
    hint = ""
    for where, detail in found:
        kind, context, value = detail["type"], detail.get("ctx") or {}, detail["input"]
        if kind == "extra_forbidden":
            texts.append(f"= {describe(value)}: unknown key; {_suggestion(model, where)}")
        elif kind == "missing":
            texts.append(f"is missing and has no default{_meaning(where)}")
        elif kind in ("value_error", "assertion_error"):
            texts.append(_said(where, detail))
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            name = str(context["discriminator"]).strip("'")
            given = value.get(name, ...) if isinstance(value, dict) else getattr(value, name, ...)
            shown = f".{name} is missing" if given is ... else f".{name} is {describe(given)}"
            choices = tags(where.spot, name)
            texts.append(f"{shown}; allowed: {_one_of([repr(c) for c in choices])}")
            hint = _close(str(context.get("tag", "")), choices)
        else:
            secret = any(word in str(detail["loc"][-1:]) for word in ("token", "key", "password"))
            texts.append("is not shown here" if secret and isinstance(value, str) else f"is {describe(value)}")
            allowed.append(str(context["expected"]) if kind in ("literal_error", "enum") else _requirement(detail))
            if kind == "literal_error" and isinstance(value, str):
                hint = _close(value, re.findall(r"'([^']*)'", str(context["expected"])))
    if allowed:
        texts.append(f"allowed: {' or '.join(dict.fromkeys(allowed))}")
    return [*texts, *([hint] if hint else [])]


def _said(where: _Spotted, detail: Mapping[str, Any]) -> str:
    """What a validator of the project said, with the value where it is about a single value."""
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    value = detail["input"]
    if not where.path or isinstance(value, dict | BaseModel):
        return f"does not fit together: {message}"
    return f"is {describe(value)}: {message}"


def _requirement(detail: Mapping[str, Any]) -> str:
    message = str(detail["msg"]).removeprefix("Input should be ").removeprefix("a valid ")
    message = re.sub(r"^(dictionary|mapping)\b.*", "a section (a map of keys)", message)
    return message.split(", unable to parse")[0].split(", got a number with")[0]


def _meaning(where: _Spotted) -> str:
    """The description of a missing key, where its field has one."""
    key = where.path.rpartition(".")[2]
    for candidate in models_in(where.parent):
        field = field_of(candidate, key)
        if field is not None and field.description:
            return f": {field.description}"
    return ""


def _suggestion(model: type[BaseModel], where: _Spotted) -> str:
    """`did you mean ...?`: a key of the same section, the same key elsewhere, a similar one elsewhere."""
    key = where.path.rpartition(".")[2]
    elsewhere = _other_forms(model, where)
    if elsewhere:
        return f"it belongs to {' or '.join(elsewhere)}"
    here = list(
        dict.fromkeys(
            known for m in models_in(where.parent) for name, f in m.model_fields.items() for known in names_of(name, f)
        )
    )
    prefix = f"{where.parent_path}." if where.parent_path else ""
    scores = {f"{prefix}{name}": _likeness(key, name) + 0.1 for name in here}
    scores |= {f"{prefix}{name}": 1.01 if len(key) > 3 else 0.93 for name in here if key.strip("_") in name}
    for path in leaves((model,)):
        likeness = _likeness(key, path.rpartition(".")[2])
        if likeness >= 0.8 and "<i>" not in path:
            scores.setdefault(path, likeness - 0.001 * path.count("."))
    best = max(scores, key=lambda path: scores[path], default="")
    if best and scores[best] >= 0.75:
        return f"did you mean {best}?"
    return f"known keys here: {', '.join(here[:_MOST_LISTED])}{', ...' if len(here) > _MOST_LISTED else ''}"


def _other_forms(model: type[BaseModel], where: _Spotted) -> list[str]:
    """`family: chain`: the forms of this section that have the key, where its own form has not."""
    spot: Spot = (model,)
    *sections, key = where.path.split(".")
    for section in sections:
        spot = child(spot, int(section) if section.isdigit() else section)
    owners = [form for form in models_in(spot) if field_of(form, key) is not None]
    return [
        f"{name}: {field.default}"
        for form in owners
        for name, field in form.model_fields.items()
        if get_origin(field.annotation) is Literal and get_args(field.annotation) == (field.default,)
    ]


def _likeness(a: str, b: str) -> float:
    """How alike two keys are, 0 to 1."""
    return difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()


def _close(word: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""


def _one_of(choices: list[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)
