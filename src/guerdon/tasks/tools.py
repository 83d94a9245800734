"""Tools of an agent: functions with a JSON schema made of their types and docstring, called in processes of their own.

A call ends in a text that the model reads (also where the function raised), or in a `Failure` of the conversation: the
process died, ran out of time, or the tool itself raised `ToolFailure`. A call is made once.

    with Tools(["calculator", "python"], call_timeout=10.0, calls_at_once=2) as tools:
        tools.schemas                                             # for the chat template
        tools.call("calculator", {"expression": "12 * (3 + 4)"})      # ToolResult("84")
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import math
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self, get_args, get_type_hints

from guerdon.errors import (
    ConfigError,
    DataError,
    GuerdonError,
    MissingDependencyError,
    ToolFailure,
    boundary,
    did_you_mean,
    said_by,
)
from guerdon.processes.subprocess_worker import (
    SubprocessPool,
    WorkerDiedError,
    WorkerTimeoutError,
    answer_requests,
)
from guerdon.reading.chats import LoneSurrogateError, check_characters
from guerdon.settings.agent import TOOLS
from guerdon.tasks.code.code_tests import Sandbox, check_isolation
from guerdon.types import Failure, Tool

_START_SECONDS = 120.0  # for a process to import a tool, on a machine that is busy
_LATER = 80.0  # seconds after `call_timeout` at which a process ends itself, should its parent be gone
_SANDBOX = 70.0  # seconds more for a program: its sandbox, which may have to start, limits it itself
_MOST_DIGITS = 4300  # of an integer, as Python itself prints them
_PRINTED = 1 << 16  # bytes of the output of a program


class ToolResult(NamedTuple):
    """What a call came to.

    Attributes:
        text: that the model reads.
        failure: why the conversation is left out; None: it goes on.
        wrong: the call named no tool, or arguments that the tool does not have.
    """

    text: str
    failure: Failure | None = None
    wrong: bool = False


def schema_of(name: str) -> Tool:
    """The JSON schema of a tool, from its types and its docstring (Google style).

    Args:
        name: of a configuration.

    Raises:
        ConfigError: it is no function, or lacks types or a docstring.
    """
    from transformers.utils import get_json_schema

    function = TOOLS.factory(name)
    if not inspect.isroutine(function):
        raise ConfigError(f"agent.tools: {name} is a {type(function).__name__}, not a function", key="agent.tools")
    if not inspect.getdoc(function):
        raise ConfigError(
            f"agent.tools: {name} has no docstring: the model reads there what it does, and under Args: what its "
            "arguments are",
            key="agent.tools",
        )
    unusable = _unusable(function)
    if unusable:
        raise ConfigError(f"agent.tools: {name} {unusable}", key="agent.tools")
    with boundary(
        ConfigError, f"agent.tools: {name} has no types or no description of its arguments", key="agent.tools"
    ):
        found: Tool = get_json_schema(function)
    found["function"].pop("return", None)
    return found


def _unusable(function: Callable[..., Any]) -> str:
    """Why a function cannot be called with JSON values by name, or returns no value; empty where it can be."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async: name a plain function, which calls asyncio.run"
    if inspect.isgeneratorfunction(function):
        return "yields its results: name a function that returns them, for example as a list"
    with suppress(TypeError, ValueError):  # of a builtin that has no signature
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                return f"has the argument {str(parameter).split(':')[0]!r}, which a call cannot give by name"
            if parameter.name in ("self", "cls"):
                return f"has the argument {parameter.name!r}: name a function, or a method of an object"
    with suppress(NameError, TypeError, AttributeError, SyntaxError):  # types that do not exist: see the schema
        hints = {name: hint for name, hint in get_type_hints(function).items() if name != "return"}
        for name, hint in hints.items():
            for one in _enums(hint):
                return f"takes a {one.__name__} as {name!r}, and a call has JSON values: take typing.Literal"
    return ""


def _enums(hint: Any) -> list[type]:
    """The enumerations in a type whose members are no text and no number, which JSON values are not equal to."""
    own = isinstance(hint, type) and issubclass(hint, enum.Enum) and not issubclass(hint, str | int | float)
    return [*([hint] if own else ()), *(one for part in get_args(hint) for one in _enums(part))]


def schemas_of(names: Sequence[str]) -> tuple[Tool, ...]:
    """The schemas of several tools, whose functions have different names.

    Raises:
        ConfigError: as `schema_of`; or two have one name.
    """
    found = tuple(map(schema_of, names))
    called = [tool["function"]["name"] for tool in found]
    twice = next((name for name in called if called.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"agent.tools: two functions are called {twice}; rename one of them", key="agent.tools")
    if "python" in names:
        check_isolation()
    return found


class Tools:
    """Tools, and the processes that call them. Usable from any number of threads.

    Args:
        names: as in the configuration.
        call_timeout: seconds of a call.
        calls_at_once: processes, started when they are needed.

    Attributes:
        schemas: of the functions.

    Raises:
        ConfigError: as `schemas_of`.
    """

    def __init__(self, names: Sequence[str], *, call_timeout: float, calls_at_once: int) -> None:
        self.schemas = schemas_of(names)
        self._specs = {tool["function"]["name"]: name for tool, name in zip(self.schemas, names, strict=True)}
        self._parameters = {t["function"]["name"]: t["function"].get("parameters", {}) for t in self.schemas}
        self._timeout = call_timeout
        self._pool = SubprocessPool(
            [sys.executable, "-m", "guerdon.tasks.tools", str(call_timeout), *names],
            workers=calls_at_once,
            once=True,
            start_seconds=_START_SECONDS,
            description="process of tools",
            group=True,
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool once.

        Args:
            name: of its function.
            arguments: by name, as JSON values.
        """
        if name not in self._specs:
            known = ", ".join(self._specs)
            hint = did_you_mean(name, self._specs)
            return ToolResult(f"error: there is no function {name!r}; there are {known}{hint}", wrong=True)
        problem = _wrong_arguments(self._parameters[name], arguments)
        if problem:
            return ToolResult(f"error: {name}: {problem}", wrong=True)
        limit = self._timeout + (_SANDBOX if self._specs[name] == "python" else 0.0)
        try:
            reply = self._pool.request({"tool": self._specs[name], "arguments": dict(arguments)}, limit)
        except WorkerTimeoutError:
            return ToolResult("", Failure("tool_timeout", f"{name} took more than {self._timeout:g} s"))
        except WorkerDiedError:
            return ToolResult("", Failure("tool_died", f"the process of {name} ended"))
        if "failure" in reply:
            return ToolResult("", Failure("tool_failure", f"{name}: {reply['failure']}"))
        try:
            check_characters(str(reply["text"]))
        except LoneSurrogateError as error:  # which no tokenizer reads; as an exception of the tool
            return ToolResult(f"error: the result of {name} cannot be read: {error}")
        return ToolResult(str(reply["text"]))

    def close(self) -> None:
        """End the processes."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wrong_arguments(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What is wrong with the names of arguments; empty where nothing is."""
    known = parameters.get("properties", {})
    unknown = next((name for name in arguments if name not in known), None)
    if unknown is not None:
        return f"there is no argument {unknown!r}; there are {', '.join(known) or 'none'}"
    missing = next((name for name in parameters.get("required", ()) if name not in arguments), None)
    return "" if missing is None else f"the argument {missing!r} is missing"


# The built-in tools.

_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip


def calculator(expression: str) -> str:
    """Calculate the value of an arithmetic expression with + - * / // % ** and brackets.

    Args:
        expression: for example 12 * (3 + 4)
    """
    try:
        tree = ast.parse(expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/"), mode="eval")
        value = _value_of(tree.body)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            value = int(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("the result is too large")
        return str(value)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        return f"error: {error}"


def _value_of(node: ast.AST) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value_of(node.operand))  # type: ignore[no-any-return]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value_of(node.left), _value_of(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) * math.log10(abs(left) + 1) > _MOST_DIGITS:
            raise ValueError("the result is too large")
        value = _OPERATIONS[type(node.op)](left, right)
        if isinstance(value, complex):
            raise ValueError("the result is not a real number")
        return value  # type: ignore[no-any-return]
    raise ValueError("only numbers, + - * / // % ** and brackets can be calculated")


def python(code: str) -> str:
    """Run a Python program and return what it prints.

    Args:
        code: the program
    """
    raise ToolFailure("python runs in a process of tools")  # by `_Programs`, which keeps a sandbox


_RUNNER = """import sys, traceback
try:
    exec(compile({code!r}, "program", "exec"), {{"__name__": "__main__"}})
except SystemExit:
    pass
except BaseException as error:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    sys.stdout.write("".join(["Traceback:\\n", *traceback.format_list(frames),
                              *traceback.format_exception_only(type(error), error)]))
"""


class _Programs:
    """The sandbox of a process of tools, started at its first program."""

    def __init__(self, call_timeout: float) -> None:
        self._seconds = max(1, round(call_timeout / 2))  # of computing; a program that waits has twice as long
        self._sandbox: Sandbox | None = None

    def run(self, code: str) -> str:
        """What a program prints, with the error that ended it.

        Raises:
            ToolFailure: the sandbox ended, or does not start.
        """
        try:
            self._sandbox = self._sandbox or Sandbox()
        except MissingDependencyError as error:
            raise ToolFailure(str(error)) from error
        request = {"stdin": "", "most": _PRINTED}
        results = self._sandbox.run(_RUNNER.format(code=code), [request], self._seconds)
        if results is None:
            raise ToolFailure("the sandbox of programs ended")
        state, output = results[0]["state"], str(results[0]["output"])
        if state == "done":
            return output
        if state == "time":
            return f"error: the program computed for more than {self._seconds} s, or waited for twice as long"
        return "error: the program was ended: it needs too much memory, or writes too much"


def _answer(request: Mapping[str, Any], programs: _Programs) -> dict[str, Any]:
    """The reply to a request, in the process."""
    name, arguments = request["tool"], request["arguments"]
    try:
        with boundary(DataError, ""):
            result = programs.run(str(arguments["code"])) if name == "python" else TOOLS.factory(name)(**arguments)
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    except ToolFailure as error:
        return {"failure": str(error)}
    except GuerdonError as error:
        cause = error.__cause__ or error
        return {"text": f"error: {said_by(cause)}"}
    return {"text": text}


def _main(call_timeout: float, names: Sequence[str]) -> None:
    programs = _Programs(call_timeout)

    def prepare() -> None:
        for name in names:
            TOOLS.factory(name)

    answer_requests(lambda request: _answer(request, programs), alarm=call_timeout + _LATER, prepare=prepare)


if __name__ == "__main__":
    _main(float(sys.argv[1]), sys.argv[2:])
