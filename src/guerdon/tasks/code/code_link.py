"""The socket between a test and the program that it calls, which run in two isolated processes.

Calls and results cross it as plain values with their types: numbers, texts, containers, times, exceptions of Python's
own kinds, with what was printed and what became of the arguments. Other objects (instances, functions, iterators) stay
where they are; the other process has a `Remote`, whose methods ask for theirs. The process of the test never holds an
object, a method or a class of the program's making, and never asks it whether a value is the right one.

Imports nothing but the standard library.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import datetime
import decimal
import fractions
import json
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MESSAGE = 8 << 20  # bytes that a message may have
_KEYS, _VALUES, _ITEMS = (type(view) for view in (dict[Any, Any]().keys(), {0: 0}.values(), {0: 0}.items()))
_SEQUENCES: dict[str, tuple[Any, Callable[..., Any]]] = {  # what a kind is, and how one is made of values
    **{kind.__name__: (kind, kind) for kind in (list, tuple, set, frozenset, collections.deque)},
    "keys": (_KEYS, lambda values: dict.fromkeys(values).keys()),
    "values": (_VALUES, lambda values: dict(enumerate(values)).values()),
}
_MAPS: dict[str, Any] = {
    kind.__name__: kind for kind in (collections.Counter, collections.OrderedDict, collections.defaultdict, dict)
}
_TYPES = {t.__name__: t for t in vars(builtins).values() if isinstance(t, type)}
_FACTORIES = {name: _TYPES[name] for name in ("int", "float", "str", "bool", "list", "dict", "set", "tuple")}
_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_REFLECTED = " ".join(f"r{name}" for name in _ARITHMETIC.split())
_IN_PLACE = {f"__i{name}__" for name in _ARITHMETIC.split()}
_OPERATORS = f"lt le gt ge neg pos abs invert int float index round contains {_ARITHMETIC} {_REFLECTED}".split()


class NotJudgedError(Exception):
    """Only the program could tell: the test compares objects of its class with `==`, or derives a class from it."""


class Raised:
    """What the code of a test or a program raises within its block: a result, whatever it is, not an error of ours."""

    error: BaseException | None = None

    def __enter__(self) -> Raised:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.error = error
        return True


class Remote:
    """An object of the other process."""

    def __init__(self, link: Link, number: int, kind: str) -> None:
        vars(self).update(_link=link, _number=number, _kind=kind, _own=False, _name="")

    def _ask(self, action: str, *arguments: Any) -> Any:
        return self._link.ask(action, self._number, *arguments)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it."""
        return self._link.call(self, arguments, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__", "__dict__"):
            raise AttributeError(name)
        return self._ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(found) if not isinstance(found := self._ask("iter"), Remote) else found

    def __exit__(self, *error: Any) -> bool:
        return bool(self._ask("exit", None if error[1] is None else error[1]))

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and bool(self._ask("isinstance", instance))

    def __eq__(self, other: object) -> bool:
        """Never asked of the program: an object of its own is equal to itself, and to no plain value."""
        if isinstance(other, Remote) and other._number == self._number:
            return True
        if other is not None and (self._own or (isinstance(other, Remote) and other._own)):
            kind = self._kind if self._own else other._kind  # type: ignore[attr-defined]
            self._not_judged(f"it compares objects of the program's own class {kind[:40]} with ==, and only the "
                             "program could say whether they are equal: compare their attributes")  # fmt: skip
        return False

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """A class of the test would run in the program's process."""
        self._not_judged(f"it derives a class from the program's own class {str(vars(self)['_name'])[:40]}")
        return ()

    def _not_judged(self, why: str) -> None:
        self._link.not_judged = why
        raise NotJudgedError(why)

    def __hash__(self) -> int:
        return hash(self._number)


def _operator(name: str) -> Callable[..., Any]:
    def ask(self: Remote, *arguments: Any) -> Any:
        if self._own:
            return self._ask("operator", f"__{name}__", *arguments)
        if name == "contains":
            return any(value == arguments[0] for value in self)
        if len(arguments) == 1:
            return NotImplemented
        raise TypeError(f"{name} of a {self._kind}")

    return ask


def _asking(action: str, kind: type | None) -> Callable[..., Any]:
    def ask(self: Remote, *arguments: Any) -> Any:
        found = self._ask(action, *arguments)
        return found if kind is None else kind(found)

    return ask


_ASKED = {"next": None, "len": int, "bool": bool, "str": str, "repr": str, "enter": None,
          "getitem": None, "setitem": None, "delitem": None}  # fmt: skip
for _name, _kind in _ASKED.items():
    setattr(Remote, f"__{_name}__", _asking(_name, _kind))
for _name in (*_OPERATORS, *(name.strip("_") for name in _IN_PLACE)):
    setattr(Remote, f"__{_name}__", _operator(_name))


class Link:
    """One end of the socket between the two processes: asks, answers, and turns values into messages and back.

    Args:
        descriptor: of the socket.
        lost: called, and never returns, when the other process is gone or writes nonsense.
        judges: whether this is the process of the test, which hands out no more than it was written to.
    """

    def __init__(self, descriptor: int, lost: Callable[[], Any], *, judges: bool) -> None:
        self._reader, self._writer = os.fdopen(descriptor, "rb"), os.fdopen(os.dup(descriptor), "wb")
        self._lost, self._judges = lost, judges
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}  # by the identity of an object, which is kept alive
        self._remotes: dict[int, Remote] = {}
        self._errors: dict[str, type[BaseException]] = {}
        self._made: set[str] = set()
        self.classes: set[str] = set()  # names that the test calls as classes
        self.asked = 0  # actions on what the other process has, apart from looking up names
        self.not_judged = ""  # why only the program could say how the test ends
        self.printed: Callable[[], str] = str

    def ask(self, action: str, *parts: Any) -> Any:
        """What the other process answers, or the exception that it raised."""
        return self._exchange([action, *map(self.pack, parts)], action, ())

    def call(self, function: Remote, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The value of a call; mutable arguments become what the function made of them."""
        given = [*arguments, *named.values()]
        options = {name: self.pack(v) for name, v in named.items()}
        message = ["call", function._number, [self.pack(v) for v in arguments], options]
        value = self._exchange(message, "call", given)
        title = vars(function)["_name"]
        if title in self.classes and isinstance(value, Remote) and value._kind == title:
            vars(value)["_own"] = True
            self._made.add(value._kind)
        return value

    def serve(self) -> None:
        """Answer until the other process ends."""
        while True:
            self._send(self._answer(self._receive()))

    def _exchange(self, message: list[Any], action: str, given: Sequence[Any]) -> Any:
        self.asked += message[:2] != ["get", 0]
        self._send(message)
        while True:
            found = self._receive()
            if found[0] in ("done", "raised"):
                break
            self._send(self._answer(found))
        try:
            _, printed, changed, *rest = found
            for place, value in changed:
                _update(given[place], self.unpack(value))
            result = self._error(*rest) if found[0] == "raised" else self.unpack(rest[0], given)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError):
            self._lost()
        if printed:
            sys.stdout.write(str(printed))
        if found[0] == "done":
            return result
        if isinstance(result, StopIteration | StopAsyncIteration) and action != "next":  # would end a loop of the test
            raise RuntimeError("the program raised StopIteration") from None
        raise result

    def _send(self, message: list[Any]) -> None:
        try:
            self._writer.write(json.dumps(message).encode() + b"\n")
            self._writer.flush()
        except OSError:
            self._lost()

    def _receive(self) -> list[Any]:
        try:
            line = self._reader.readline(MESSAGE + 1)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            message = None
        if not isinstance(message, list) or len(message) < 2:
            self._lost()
        return message  # type: ignore[return-value]

    def _answer(self, message: list[Any]) -> list[Any]:
        arguments: list[Any] = []
        before: list[str] = []
        with Raised() as raised:
            action, number, *parts = message
            target = self._objects[number]
            if action == "call":
                values = [self.unpack(v) for v in parts[0]]
                named = {str(k): self.unpack(v) for k, v in parts[1].items()}
                arguments = [*values, *named.values()]
                before = [json.dumps(self.pack(v)) if _is_mutable(v) else "" for v in arguments]
                self._permit(callable(target) and not isinstance(target, type))
                found = target(*values, **named)
            else:
                found = self._do(action, target, [self.unpack(v) for v in parts])
            made = isinstance(target, type) and _is_mutable(found)  # an instance of a class such as `Stack(list)`
            packed = self._mine(found) if made else self.pack(found, arguments)
            reply = ["done", self.printed(), self._changed(arguments, before), packed]
            if len(json.dumps(reply)) <= MESSAGE - 1:
                return reply
            raise OverflowError("the value is too large")
        changed = self._changed(arguments, before) if before else []
        return ["raised", self.printed(), changed, *self._raised(raised.error)]

    def _permit(self, allowed: bool) -> None:
        """What the program may do with an object of the test's process."""
        if self._judges and not allowed:
            raise TypeError("not available")

    def _do(self, action: str, target: Any, parts: list[Any]) -> Any:
        """An action other than a call."""
        if self._judges:
            own = type(target).__module__ in ("test_solution", "_context")
            public = own and (action not in ("get", "set") or parts[0][0] != "_") and action in _PUBLIC
            self._permit(public or action == "bool" or (action in ("next", "iter") and hasattr(target, "__next__")))
        return _ACTIONS[action](target, *parts)

    def _changed(self, arguments: list[Any], before: list[str]) -> list[Any]:
        """Places and new values of the arguments that a call changed."""
        now = [(i, self.pack(v)) for i, v in enumerate(arguments) if before[i]]
        return [[i, packed] for i, packed in now if json.dumps(packed) != before[i]]

    def _raised(self, error: BaseException | None) -> tuple[list[str], Any, Any]:
        names = [kind.__name__ for kind in type(error).__mro__]
        with contextlib.suppress(TypeError, ValueError, AttributeError, RecursionError):
            return names, self.pack(list(error.args)), self.pack(vars(error))  # type: ignore[union-attr]
        return names, ["list", []], ["dict", []]

    def _error(self, names: list[str], arguments: Any, attributes: Any) -> Any:
        """An exception of the nearest kind that this process has."""
        known = [self._errors.get(name) or _TYPES.get(name) for name in names]
        kind: Any = next((k for k in known if isinstance(k, type) and issubclass(k, BaseException)), Exception)
        error = kind.__new__(kind)
        error.args = tuple(self.unpack(arguments))
        with contextlib.suppress(TypeError, ValueError):  # of kinds that take other arguments
            error = kind(*error.args)
        vars(error).update(self.unpack(attributes))
        return error

    def pack(self, value: Any, arguments: Sequence[Any] = ()) -> Any:
        """A value as JSON: scalars as they are, the rest as `[kind, ...]`."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            whole = int(value)
            return whole if abs(whole) < 1 << 53 else ["int", hex(whole)]
        if isinstance(value, float):
            return float(value)
        for place, argument in enumerate(arguments):
            if argument is value and _is_mutable(value):
                return ["argument", place]
        for packed in (_packed_number(value), self._packed_group(value), self._packed_kind(value)):
            if packed is not None:
                return packed
        if isinstance(value, Remote) and value._link is self:
            return ["yours", value._number]
        return self._mine(value)

    def _mine(self, value: Any) -> list[Any]:
        """An object that stays here, by its number."""
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        kinds = {types.GeneratorType: "generator", types.CoroutineType: "coroutine"}
        kind = kinds.get(type(value), "")
        if isinstance(value, type):
            return ["mine", number, "class", value.__name__]
        return ["mine", number, kind or type(value).__name__, ""]

    def _packed_group(self, value: Any) -> list[Any] | None:
        kind = type(value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ["named", kind.__name__, list(kind._fields), [self.pack(v) for v in tuple.__iter__(value)]]
        for name, (base, _) in _SEQUENCES.items():
            if isinstance(value, base):
                length = [value.maxlen] if name == "deque" else []
                return [name, [self.pack(v) for v in base.__iter__(value)], *length]
        if isinstance(value, _ITEMS):
            return ["items", self._pairs(value)]
        if isinstance(value, dict):
            name = next(name for name, base in _MAPS.items() if isinstance(value, base))
            made_by = getattr(getattr(value, "default_factory", None), "__name__", "")
            return [name, self._pairs(dict.items(value)), *([made_by] if name == "defaultdict" else [])]
        return None

    def _pairs(self, items: Any) -> list[Any]:
        return [[self.pack(key), self.pack(value)] for key, value in items]

    def _packed_kind(self, value: Any) -> list[Any] | None:
        if isinstance(value, type) and _TYPES.get(value.__name__) is value:
            return ["type", value.__name__]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["errors", [kind.__name__ for kind in value.__mro__]]
        if isinstance(value, BaseException):
            return ["error", *self._raised(value)]
        return None

    def unpack(self, plain: Any, given: Sequence[Any] = ()) -> Any:
        """A value from what `pack` made of it.

        Raises:
            ValueError, TypeError, KeyError, IndexError: it is not in that form.
        """
        if not isinstance(plain, list):
            if isinstance(plain, dict):
                raise ValueError("a bare map")
            return plain
        kind, *parts = plain
        if kind in _SEQUENCES:
            return _SEQUENCES[kind][1]([self.unpack(v) for v in parts[0]], *parts[1:])
        if kind in _NUMBERS:
            return _NUMBERS[kind][2](*parts)
        if kind in _MAPS or kind == "items":
            return self._map(kind, [(self.unpack(k), self.unpack(v)) for k, v in parts[0]], *parts[1:])
        if kind == "named":
            return collections.namedtuple(parts[0], parts[1])(*[self.unpack(v) for v in parts[2]])
        return self._other(kind, parts, given)

    def _map(self, kind: str, pairs: list[tuple[Any, Any]], factory: str = "") -> Any:
        if kind == "defaultdict":
            return collections.defaultdict(_FACTORIES.get(factory), pairs)
        found = _MAPS.get(kind, dict)(dict(pairs))
        return found.items() if kind == "items" else found

    def _other(self, kind: str, parts: list[Any], given: Sequence[Any]) -> Any:
        named: dict[str, Any] = {"argument": given, "yours": self._objects, "type": _TYPES}
        if kind in named:
            return named[kind][parts[0]]
        if kind == "error":
            return self._error(*parts)
        if kind == "errors":
            names = parts[0]
            base = next((_TYPES[n] for n in names if issubclass(_TYPES.get(n, int), BaseException)), Exception)
            if not self._judges:
                return base
            return self._errors.setdefault(names[0], type(str(names[0]), (base,), {}))
        if kind != "mine":
            raise ValueError(kind)
        number, name, title = parts
        remote = Remote(self, int(number), str(name))
        if title:  # a class, which goes by the name that the test finds it by
            vars(remote)["_name"] = "?"
        else:  # an object is the same one each time
            remote = self._remotes.setdefault(number, remote)
        vars(remote)["_own"] |= name in self._made
        if name == "generator":
            return _generated(remote)
        return _awaited(remote) if name == "coroutine" else remote


def _generated(remote: Remote) -> Any:
    while True:
        try:
            value = remote._ask("next")
        except StopIteration as end:
            return end.value
        yield value


async def _awaited(remote: Remote) -> Any:
    return remote._ask("await")


def _awaits(target: Any) -> Any:
    import asyncio

    return asyncio.run(target)


def _operated(target: Any, name: str, *arguments: Any) -> Any:
    if name in _IN_PLACE:
        return getattr(operator, name)(target, *arguments)
    found = getattr(target, name, lambda *_: NotImplemented)(*arguments)
    if found is NotImplemented:
        raise TypeError(f"unsupported operand: {name}")
    return found


def _left(target: Any, error: Any) -> Any:
    return target.__exit__(None if error is None else type(error), error, None)


_PUBLIC = (
    "get",
    "set",
    "iter",
    "next",
    "len",
    "bool",
    "getitem",
    "str",
    "repr",
)  # of objects of the test's own classes
_ACTIONS: dict[str, Callable[..., Any]] = {
    "get": getattr,
    "set": setattr,
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "str": str,
    "repr": repr,
    "enter": lambda target: target.__enter__(),
    "exit": _left,
    "await": _awaits,
    "isinstance": lambda target, instance: isinstance(instance, target),
    "operator": _operated,
}


def _is_mutable(value: Any) -> bool:
    return isinstance(value, list | dict | set | bytearray | collections.deque)


def _update(old: Any, new: Any) -> None:
    """Give a mutable value the contents of another one, keeping the mutable parts that it has in the same places."""
    if type(old) is not type(new):
        raise TypeError("a call cannot change the type of its argument")
    if isinstance(old, list):
        for place, value in enumerate(new[: len(old)]):
            if _is_mutable(old[place]) and type(old[place]) is type(value):
                _update(old[place], value)
            else:
                old[place] = value
        old[len(new) :] = new[len(old) :]
    elif isinstance(old, dict):
        kept = {k: old[k] for k in new if k in old and _is_mutable(old[k]) and type(old[k]) is type(new[k])}
        for key, value in kept.items():
            _update(value, new[key])
        old.clear()
        old.update({**new, **kept})
    else:
        old.clear()
        (old.update if isinstance(old, set) else old.extend)(new)


def _packed_number(value: Any) -> list[Any] | None:
    """Values without parts: numbers, bytes, ranges, times."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return ["scalar", value.item()]
    names = (name for name, (kind, *_) in _NUMBERS.items() if kind is not None and isinstance(value, kind))
    return next(([name, *_NUMBERS[name][1](value)] for name in names), None)


def _hex(text: str) -> int:
    return int(text, 16)


def _time(kind: Any) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    return kind, lambda value: [kind.isoformat(value)], kind.fromisoformat


_NUMBERS: dict[str, tuple[Any, Callable[..., Any], Callable[..., Any]]] = {  # a kind, its parts, and it from these
    "int": (None, hex, _hex),  # packed by `Link.pack`, as scalars of numpy are above
    "scalar": (None, repr, lambda value: value if isinstance(value, bool | int | float | str) else _hex(value)),
    "complex": (complex, lambda value: [value.real, value.imag], complex),
    "bytes": (bytes, lambda value: [bytes.hex(value)], bytes.fromhex),
    "bytearray": (bytearray, lambda value: [bytearray.hex(value)], bytearray.fromhex),
    "range": (range, lambda v: map(hex, (v.start, v.stop, v.step)), lambda *parts: range(*map(_hex, parts))),
    "fraction": (fractions.Fraction, lambda value: map(hex, value.as_integer_ratio()),
                 lambda *parts: fractions.Fraction(*map(_hex, parts))),
    "decimal": (decimal.Decimal, lambda value: [str(value)], decimal.Decimal),
    "timedelta": (datetime.timedelta, lambda v: [v.days, v.seconds, v.microseconds], datetime.timedelta),
    "datetime": _time(datetime.datetime),
    "date": _time(datetime.date),
    "time": _time(datetime.time),
}  # fmt: skip
