r"""The tests of a programming task: read from a data set, run in isolation, compared here.

Programs run in `code_sandbox.py`, which gets inputs and calls but never the right outputs: what it returns are strings
and plain values, and only this process decides whether they are right. The outcome is the share of tests passed.

    tests = read_tests('{"inputs": ["1\n"], "outputs": ["2\n"]}')
    with Sandbox() as sandbox:
        run_tests(tests, "print(int(input()) + 1)", sandbox, cpu_seconds=10)      # 1.0
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from guerdon.errors import DataError, MissingDependencyError
from guerdon.subprocess_worker import SubprocessWorker, WorkerError

_START_SECONDS = 60.0  # for the namespaces, on a machine that is busy
_VALUES = 1 << 18  # bytes that the values of a test's calls may take, and that an output may have too much
_DIGITS = 1e-6  # relative or absolute difference at which two printed decimals count as equal
_FENCE = re.compile(r"^```[ \t]*([A-Za-z0-9+.-]*)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(
    r"""\A[\s"]*[\[{](?s:.{0,2000}?)["'](?:inputs?|outputs?|fn_name|tests|test_cases?|testtype|unit_tests|stdin)\\?["']\s*:"""
    r"""|^[^\w\n]{0,24}(?:assert\b|self\.assert\w+\(|def \w+\(.*:\s*$|class \w+(?:\(.*\))?:\s*$)""",
    re.MULTILINE,
)


@dataclass(frozen=True)
class CodeTest:
    """One test.

    Attributes:
        request: to the sandbox: `stdin`, or `calls` with `setup` and `function`; a test that writes more
            than `most` bytes fails.
        passes: whether what it wrote, or the values of the calls, are right.
    """

    request: Mapping[str, Any]
    passes: Callable[[Any], bool]


def program_of(response: str) -> str | None:
    """The program in a response: the last closed block between ``` marks that is Python or names no language."""
    blocks = [
        text for language, text in _FENCE.findall(response) if language.lower() in ("", "python", "python3", "py")
    ]
    return blocks[-1] if blocks else None


def is_code(ability: str, ground_truth: str) -> bool:
    """Whether a row is a programming task, by its ability or its true answer: inputs and outputs, asserts or a program.

    Also where `read_tests` reads none of it: such rows are refused, and no answer to them is judged as mathematics.
    """
    return ability.lower() in ("code", "coding") or _CODE.search(ground_truth) is not None


@functools.lru_cache(maxsize=256)
def read_tests(ground_truth: str) -> tuple[CodeTest, ...]:
    """The tests of a row: JSON with `inputs`, `outputs` and perhaps `fn_name` (APPS, TACO, PRIME), or `assert` lines.

    Raises:
        DataError: it is neither, there is no test in it, or one needs more than calls, values and comparisons.
    """
    try:
        given = json.loads(ground_truth)
    except ValueError:
        given = None
    try:
        if isinstance(given, list):  # of MBPP
            ground_truth = _joined(given)
        tests = _from_json(given) if isinstance(given, dict) else _from_asserts(ground_truth)
    except (ValueError, SyntaxError, RecursionError, TypeError) as error:
        raise DataError(f"its tests cannot be read: {error}") from error
    if not tests:
        raise DataError("its tests cannot be read: there is none")
    return tuple(tests)


def _from_json(given: Mapping[str, Any]) -> list[CodeTest]:
    inputs, outputs, name = given.get("inputs"), given.get("outputs"), given.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("inputs and outputs must be two lists of the same length")
    pairs = zip(inputs, outputs, strict=True)
    if not name:
        return [_output_test(_joined(i), _joined(o)) for i, o in pairs]
    if not str(name).isidentifier():
        raise ValueError(f"fn_name is {str(name)[:40]!r}, which is no name")
    return [_call_test(str(name), i, o) for i, o in pairs]


def _output_test(given: str, expected: str) -> CodeTest:
    most = 2 * len(expected.encode("utf-8", "replace")) + _VALUES
    return CodeTest({"stdin": given, "most": most}, functools.partial(same_output, expected))


def _call_test(name: str, given: Any, expected: Any) -> CodeTest:
    """A call of a function; as in LiveCodeBench, strings are arguments in JSON, one a line."""
    arguments = [json.loads(line) for line in given.split("\n")] if isinstance(given, str) else given
    if not isinstance(arguments, list):
        raise ValueError("the inputs of a function are a list of its arguments")
    wanted = json.loads(expected) if isinstance(given, str) and isinstance(expected, str) else expected
    request = {"calls": [f"{name}(*{arguments!r})"], "setup": "", "function": name, "most": _VALUES}
    return CodeTest(request, functools.partial(_same_value, wanted))


def _joined(given: Any) -> str:
    """What a program reads or writes; a list is its lines."""
    return "\n".join(map(str, given)) if isinstance(given, list) else str(given)


def same_output(expected: str, written: str) -> bool:
    """Whether a program wrote what it should: the same words in the same lines, blank lines at the end aside.

    Decimals may differ by 1e-6, relatively or absolutely, where the expected one has a decimal point.
    """

    def lines(text: str) -> list[list[str]]:
        return [line.split() for line in text.rstrip().split("\n")]

    def same(word: str, other: str) -> bool:
        if word == other:
            return True
        decimals = [re.fullmatch(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", w) for w in (word, other)]
        if "." not in word or not all(decimals) or math.isinf(float(word)):
            return False
        return math.isclose(float(word), float(other), rel_tol=_DIGITS, abs_tol=_DIGITS)

    left, right = lines(expected), lines(written)
    return len(left) == len(right) and all(
        len(a) == len(b) and all(map(same, a, b)) for a, b in zip(left, right, strict=True)
    )


def _same_value(expected: Any, values: Sequence[Any]) -> bool:
    """As in APPS: lists for tuples, and an expected list of one value may stand for the value."""
    found = _listed(values[0])
    return bool(found == expected or (isinstance(expected, list) and len(expected) == 1 and found == expected[0]))


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(v) for v in value]
    if isinstance(value, dict):  # names in JSON are strings
        return {k if isinstance(k, str) else str(k): _listed(v) for k, v in value.items()}
    return value


_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_UNARY: dict[type, Callable[[Any], Any]] = {ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos}
_PLAIN = (abs, all, any, bool, dict, float, frozenset, int, len, list, max, min, round, set, sorted, str, sum, tuple)
_FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in _PLAIN} | {
    "isclose": math.isclose,
    "math.isclose": math.isclose,
}


def _from_asserts(text: str) -> list[CodeTest]:
    """`assert` statements; what comes before them (imports, names) is run with the program.

    Calls of the program's functions become requests, and the rest of each statement is evaluated here.
    """
    setup: list[str] = []
    tests = []
    foreign = set(dir(builtins))
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assert):
            cut = _Calls(foreign)
            rest = cut.visit(statement.test)
            if not cut.calls:
                raise ValueError(f"no function is called in {ast.unparse(statement)[:80]!r}")
            _check(rest)
            request = {"calls": cut.calls, "setup": "\n".join(setup), "function": cut.name, "most": _VALUES}
            tests.append(CodeTest(request, functools.partial(_holds, rest)))
        elif isinstance(statement, ast.Import | ast.ImportFrom | ast.Assign):
            setup.append(ast.unparse(statement))
            if not isinstance(statement, ast.Assign):
                foreign |= {alias.asname or alias.name for alias in statement.names}
        else:
            raise ValueError(f"expected assert, an import or a name, found {ast.unparse(statement)[:80]!r}")
    return tests


class _Calls(ast.NodeTransformer):
    """Takes calls of a program's functions out of an expression and leaves their number there."""

    def __init__(self, foreign: Collection[str]) -> None:
        self.calls: list[str] = []
        self.name = ""
        self._foreign = foreign

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A call of a known function stays, with calls inside it taken out; any other goes."""
        name = ast.unparse(node.func)
        if name in _FUNCTIONS:
            return self.generic_visit(node)
        if not re.fullmatch(r"\w+(\(\)\.\w+)?", name) or name.partition("(")[0] in self._foreign:
            raise ValueError(f"{name[:80]!r} is called, which is not a function of the program")
        inner = [part for part in ast.walk(node) if isinstance(part, ast.Call) and part is not node]
        if {ast.unparse(part.func) for part in inner} - _FUNCTIONS.keys() - {name.partition("(")[0]}:
            raise ValueError(f"{name} is called with what another function returns; the program could define both")
        self.name = name
        self.calls.append(ast.unparse(node))
        return ast.Subscript(ast.Name("_values", ast.Load()), ast.Constant(len(self.calls) - 1), ast.Load())


def _check(node: ast.expr) -> None:
    """Refuse an expression that `_evaluated` cannot evaluate.

    Raises:
        ValueError: it has something else than values, calls, arithmetic and comparisons.
    """
    for part in ast.walk(node):
        known = isinstance(part, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.Compare | ast.BoolOp)
        known |= isinstance(part, ast.expr_context | ast.cmpop | ast.boolop | ast.keyword | ast.Call)
        known |= type(part) in _ARITHMETIC or type(part) in _UNARY or isinstance(part, ast.BinOp | ast.UnaryOp)
        known |= isinstance(part, ast.Subscript | ast.Name | ast.Attribute) and _is_known_name(part)
        if not known:
            raise ValueError(f"{ast.unparse(node)[:80]!r} is more than values, calls and comparisons")
        if isinstance(part, ast.Constant) and not isinstance(part.value, bool | int | float | str | None):
            raise ValueError(f"{ast.unparse(part)[:80]!r} is compared, which is no plain value")


def _is_known_name(node: ast.AST) -> bool:
    text = ast.unparse(node)
    return text in _FUNCTIONS or text in ("math", "_values") or text.startswith("_values[")


def _holds(node: ast.expr, values: Sequence[Any]) -> bool:
    """Whether an assertion is true of the values; an error in it is a test that failed, as it is in Python."""
    try:
        return bool(_evaluated(node, values))
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, RecursionError, MemoryError):
        return False


def _evaluated(node: ast.AST, values: Sequence[Any]) -> Any:
    """The value of an expression that `_check` let through."""

    def of(part: ast.AST | None) -> Any:
        return None if part is None else _evaluated(part, values)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=parts):
            return [of(p) for p in parts]
        case ast.Tuple(elts=parts):
            return tuple(of(p) for p in parts)
        case ast.Set(elts=parts):
            return {of(p) for p in parts}
        case ast.Dict(keys=keys, values=parts):
            return {of(k): of(p) for k, p in zip(keys, parts, strict=True)}
        case ast.Name(id="_values"):
            return values
        case ast.Name(id=name):
            return _FUNCTIONS[name]
        case ast.Subscript(value=part, slice=place):
            return of(part)[of(place)]
        case ast.UnaryOp(op=kind, operand=part):
            return _UNARY[type(kind)](of(part))
        case ast.BinOp(left=left, op=kind, right=right):
            return _arithmetic(type(kind), of(left), of(right))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(of(p) for p in parts)
        case ast.BoolOp(values=parts):
            return any(of(p) for p in parts)
        case ast.Compare(left=left, ops=kinds, comparators=parts):
            sides = [of(left), *map(of, parts)]
            return all(_COMPARISONS[type(k)](a, b) for k, a, b in zip(kinds, sides, sides[1:], strict=False))
        case ast.Call(func=function, args=parts, keywords=named):
            options = {str(k.arg): of(k.value) for k in named}
            return _FUNCTIONS[ast.unparse(function)](*map(of, parts), **options)
    raise ValueError(ast.dump(node)[:80])


def _arithmetic(kind: type, left: Any, right: Any) -> Any:
    """Arithmetic with numbers that stays small: what is compared comes from an untrusted program."""
    if kind is not ast.Add and not all(isinstance(v, int | float) for v in (left, right)):
        raise TypeError("arithmetic with something else than numbers")
    if kind is ast.Pow and (abs(right) > 1000 or abs(left) > 1e6):
        raise OverflowError("too large")
    return _ARITHMETIC[kind](left, right)


class Sandbox:
    """A process in namespaces of its own that runs programs (see `code_sandbox.py`).

    Raises:
        MissingDependencyError: this machine has no such isolation; says what to change.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise MissingDependencyError("programs of a model run in isolation on Linux only; leave code rows out")
        python = os.path.realpath(sys.executable)
        command = [python, "-I", "-S", "-B", str(Path(__file__).with_name("code_sandbox.py"))]
        try:
            self._process = SubprocessWorker(
                command,
                start_seconds=_START_SECONDS,
                description="process that runs programs in isolation",
                environment={},
            )
        except MissingDependencyError as error:
            raise MissingDependencyError(
                f"{error}. Rows of code tasks need Linux 5.12 and user namespaces: allow them (sysctl "
                "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a container, "
                "--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined), or leave "
                "code rows out"
            ) from error

    def run(self, source: str, requests: Sequence[Mapping[str, Any]], cpu_seconds: int) -> list[dict[str, Any]] | None:
        """How each request ended (`state`, `output`), in order; None where the process ended or hung itself."""
        asked = {"source": source, "tests": [dict(request) for request in requests], "cpu": cpu_seconds}
        try:
            results = self._process.request(asked, len(requests) * (2.0 * cpu_seconds + 6.0) + 10.0).get("results")
        except WorkerError:
            return None
        return results if isinstance(results, list) and len(results) == len(requests) else None

    def close(self) -> None:
        """End the process and everything that it started."""
        self._process.kill()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def check_isolation() -> None:
    """Make sure that programs can be run in isolation on this machine.

    Raises:
        MissingDependencyError: they cannot; says what to change.
    """
    with Sandbox() as sandbox:
        results = sandbox.run("print('x')", [{"stdin": "", "most": 9}], 10)
    if results is None or results[0]["output"] != "x\n":
        raise MissingDependencyError(
            "the interpreter does not run in isolation, because it needs files outside its own folder and /usr; leave "
            "code rows out, or use another Python"
        )


def run_tests(tests: Sequence[CodeTest], source: str, sandbox: Sandbox, *, cpu_seconds: float) -> float | None:
    """The share of tests that a program passes; None where the sandbox failed.

    Args:
        tests: at least one.
        source: the program.
        sandbox: runs it.
        cpu_seconds: per test, rounded up; twice as much and a second by the clock. A program that is late three times
            is not run again, and passes none of the other tests.
    """
    results = sandbox.run(source, [test.request for test in tests], math.ceil(cpu_seconds))
    if results is None:
        return None
    return sum(_passed(test, result) for test, result in zip(tests, results, strict=True)) / len(tests)


def _passed(test: CodeTest, result: Mapping[str, Any]) -> bool:
    if result["state"] != "done":
        return False
    if "stdin" in test.request:
        return test.passes(result["output"])
    try:
        values = [_value(v) for v in json.loads(result["output"])]  # which the program may have written itself
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError, ArithmeticError):
        return False
    return len(values) == len(test.request["calls"]) and test.passes(values)


class _Other:
    """A value that is none of Python's plain ones; equal to nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False

    def __bool__(self) -> bool:
        raise TypeError("not a plain value")


_KINDS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def _value(plain: Any) -> Any:
    """A value from the form that the sandbox writes it in.

    Raises:
        ValueError: it is not in that form.
    """
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise ValueError("a bare list")
        return plain
    (kind, parts), *more = plain.items()
    if more:
        raise ValueError("more than one kind")
    if kind == "other":
        return _Other()
    if kind == "ratio":
        return Fraction(*parts)
    if kind == "dict":
        return {_value(k): _value(v) for k, v in parts}
    return _KINDS[kind]([_value(v) for v in parts])
