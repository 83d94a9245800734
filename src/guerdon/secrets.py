"""Secrets of endpoints: `clean_key` reads a key that was copied, and `hide` removes secrets from text.

A secret is known once it was read: a key (`clean_key`), or what an address or a setting contains (`remember`): user
information, keys in a query, fields such as `api_key`. From then on `hide` replaces it, also percent-encoded, as base64
and cut in half. All text of endpoints goes through it, every message of a `GuerdonError`, and all text that is written.

A secret that may be an ordinary word or number (`EMPTY`) is hidden only after a word for a secret: `Bearer EMPTY`.

    clean_key(' "sk-live-4f9a" ', "OPENAI_API_KEY")                       # sk-live-4f9a
    remember({"base_url": "https://me:pass@host/v1"})
    hide("no connection to https://me:pass@host/v1: wrong key sk-live-4f9a")
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from traceback import format_exception
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, quote_plus, unquote

T = TypeVar("T")

HIDDEN = "(hidden)"  # plain text in YAML and JSON
_AROUND = " \t\r\n\v\f\0\x85\xa0\u1680\u3000\ufeff\"'`´«»" + "".join(map(chr, (*range(0x2000, 0x2010), 0x2028, 0x2029)))
_AROUND += "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f"  # typographic quotes
_BEFORE = re.compile(r"(authorization\s*:\s*)?bearer(\s+|$)", re.IGNORECASE)
_ANY = "surrogatepass"
_SHORT, _LONG = 8, 16  # characters from which a secret is hidden wherever it stands; if it is a word, the second
_HALVED = 20  # characters from which half of a secret is hidden too
_WORD = re.compile(r"[A-Za-z]?[a-z_. -]+|[A-Z_. -]+")
_CONSTANTS = ("null", "none", "true", "false")  # values of JSON and YAML
_NUMBER = re.compile(r"[\d.eE+-]+")
_NAMES = (
    r"(?:api|access|subscription|secret|private|account|signing|master|virtual)[ _-]?key(?:[_-]id)?"
    r"|(?:access|auth|api|bearer|refresh|session|security|hf|hub|client)[_-]?token"
    r"|password|passwd|pwd|passphrase|secret|authorization|credentials?"
)
_NAMED = re.compile(rf"(?:[\w-]*[_-])?(?:{_NAMES})", re.IGNORECASE)
_UNCLEAR = re.compile("token|key", re.IGNORECASE)  # a secret, or a special token or the name of a column:
_NO_SECRET = re.compile(r"[<\[].*[>\]]|[a-z]*\d{0,2}(?:[._/ -][a-z]*\d{0,2})*", re.DOTALL)
_IN_QUERY = re.compile(
    r"[?&;]([^=&#\s]*(?:key(?:[_-]?id)?|token|secret|sig(?:nature)?|pass(?:word|wd|phrase)?|pwd|auth(?:orization)?|code"
    r"|cred(?:ential)?s?))=([^&#\s]+)",
    re.IGNORECASE,
)
_USER = re.compile(r"//([^/?#\s@:]*)(?::([^/?#\s]*))?@(?=[^\s/@])")
_ADDRESS = re.compile(r"(url|endpoint|address|host|proxy)$", re.IGNORECASE)


class _Secret(NamedTuple):
    text: str
    field: str = ""  # the name of its setting
    user: bool = False  # the whole user information of an address


_lock = threading.Lock()
_known: set[_Secret] = set()
_marks: tuple[str, ...] = ()  # a text with a secret has one of them, in lower case
_places = re.compile(r"(?P<before>)(?!)")  # where the secrets are in it


def clean_key(given: str, name: str) -> str:
    """A key without the blanks, quotes and `Bearer` that copying adds around it; `hide` knows it from now on.

    Args:
        given: the key.
        name: of the variable or setting, for the message.

    Returns:
        The key; empty where nothing is left.

    Raises:
        ValueError: it has a line break or a character that no header can have; the message has no part of it.
    """
    key, before = given, ""
    while key != before:
        before = key
        key = _BEFORE.sub("", key.strip(_AROUND).removeprefix(f"{name}="), count=1)
    wrong = next((c for c in key if not " " <= c <= "~"), None)
    if wrong is not None:
        what = "a line break" if wrong in "\r\n" else f"the character U+{ord(wrong):04X}"
        raise ValueError(
            f"{name} contains {what}, which is not allowed in a key: copy the key again, as plain text in one line"
        )
    _remember([_Secret(key, name)])
    return key


def remember(value: Any, name: str = "") -> None:
    """Let `hide` know the secrets in settings: user information and keys of addresses, and fields with their names.

    Args:
        value: plain values; lists and maps are searched.
        name: of the value.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            remember(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            remember(inner, name)
    elif isinstance(value, str):
        found = [_Secret(unquote(key), field) for field, key in _IN_QUERY.findall(value)]
        found += _of_users(f"//{value}" if _ADDRESS.search(name) and "//" not in value else value)
        if _is_secret_field(name, value):
            found.append(_Secret(_BEFORE.sub("", value.strip()), name))
        _remember(found)


def _of_users(address: str) -> list[_Secret]:
    """The secrets in the user information of addresses."""
    found = []
    for user, password in _USER.findall(address):
        if password or _is_plain_secret(user):  # `git@host` has none
            both = f"{user}:{password}" if password else user
            found += [_Secret(both, user=True), _Secret(unquote(both), user=True), _Secret(unquote(password))]
        if not password or len(user) >= _HALVED:  # else the name of a person, which paths may have, too
            found.append(_Secret(unquote(user)))
    return found


def _is_secret_field(name: str, value: str) -> bool:
    """Whether a field with this name has a secret as its value; a file that is there is none."""
    if name == "PWD" or (os.path.isabs(value) and os.path.exists(value)):
        return False
    if _NAMED.fullmatch(name):
        return True
    return bool(_UNCLEAR.fullmatch(name)) and not _NO_SECRET.fullmatch(value)


def remember_environment() -> None:
    """Let `hide` know the keys and the user information of proxies in the environment."""
    remember(dict(os.environ))
    tokens = [value for name, value in os.environ.items() if name.endswith(("_TOKEN", "_KEY"))]
    _remember(_Secret(value) for value in tokens if _is_plain_secret(value) and not os.path.exists(value))


def hide(value: T) -> T:
    """A text without secrets; a list or map with every text of it without them."""
    return _hide(value) if _known else value


def hide_in_tracebacks() -> None:
    """Hide secrets, also those of the environment, in the traceback of an exception that ends the program."""
    remember_environment()

    def write(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(hide("".join(format_exception(kind, error, trace))))

    sys.excepthook = write


def _hide(value: Any) -> Any:
    if isinstance(value, str):
        lower = value.lower()
        if not any(mark in lower for mark in _marks):
            return value
        return _places.sub(lambda found: (found["before"] or "") + HIDDEN, value)
    if isinstance(value, Mapping):
        return {_hide(key): _hide(inner) for key, inner in value.items()}
    return [_hide(inner) for inner in value] if isinstance(value, list | tuple) else value


def _remember(secrets: Iterable[_Secret]) -> None:
    global _marks, _places
    with _lock:
        new = {one for one in secrets if len(one.text) > 1 and one.text.lower() not in _CONSTANTS} - _known
        if not new:
            return
        _known.update(new)
        whole: dict[str, str] = {}  # texts that are hidden wherever they stand, with what else is hidden behind them
        words: set[str] = set()  # that are hidden where they stand as a secret
        fields = {one.field for one in _known if one.field}
        for secret in sorted(_known, key=lambda one: not one.user):  # what is hidden anywhere wins
            whole |= _forms(secret)
            words |= set() if secret.user or _is_plain_secret(secret.text) else {secret.text}
        names = "|".join([_NAMES, *(rf"(?<![\w-]){re.escape(field)}" for field in sorted(fields))])
        before = rf"\bbearer\s+|(?:{names})[\"']?(?: provided)?[ \t]*[:=][ \t]*[\"'`]?"
        patterns = [re.escape(text) + whole[text] for text in sorted(whole, key=lambda text: (-len(text), text))]
        if words:
            some = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
            patterns.append(rf"(?P<before>{before})(?:{some})(?![\w-])")
        else:
            patterns.append("(?P<before>)(?!)")
        _places = re.compile("|".join(patterns), re.IGNORECASE)
        _marks = tuple({text.lower() for text in (*whole, *words)})


def _is_plain_secret(text: str) -> bool:
    """Whether a text is nothing but a secret: neither short, nor a word, nor a number."""
    word = len(text) < _LONG and _WORD.fullmatch(text)
    return len(text) >= _SHORT and not word and not _NUMBER.fullmatch(text)


def _forms(secret: _Secret) -> dict[str, str]:
    """The texts that give a secret away wherever they stand, each with a pattern of what is hidden behind it."""
    text = secret.text
    forms = {text, html.escape(text), json.dumps(text)[1:-1]}
    forms |= {quote(text, "", errors=_ANY), quote(text, errors=_ANY), quote_plus(text, errors=_ANY)}
    forms |= {form.replace("/", "\\/") for form in forms}
    if secret.user:
        encoded = base64.b64encode(text.encode("utf-8", _ANY)).decode()
        return dict.fromkeys(forms, "(?=@)") | ({encoded: ""} if len(encoded) >= _SHORT else {})
    if not _is_plain_secret(text):
        return {}
    for shift in range(3):  # how a text before it moves the bits
        bits = 8 * (shift + len(text.encode("utf-8", _ANY)))
        inside = base64.b64encode(b"\0" * shift + text.encode("utf-8", _ANY)).decode()[(shift * 8 + 5) // 6 : bits // 6]
        forms |= {inside, inside.translate(str.maketrans("+/", "-_"))}
    found = dict.fromkeys(forms, "")
    if len(text) >= _HALVED:
        half = (len(text) + 1) // 2
        halves = {text[:half]: r"[\w\-.~+/=%]*", text[-half:]: ""}
        found = {part: more for part, more in halves.items() if _is_plain_secret(part)} | found
    return found
