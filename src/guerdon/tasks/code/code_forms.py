r"""The forms in which public data sets hold the tests of programming tasks, and the tests that they describe.

- `inputs` and `outputs`, with `fn_name` where a function is called: APPS, TACO, PRIME's Eurus-2-RL-Data
- lists of `input`, `output` and `testtype` (`stdin`, `functional`) or `type`: LiveCodeBench, DeepCoder, SYNTHETIC-1
- `test` with `check(candidate)`, and `entry_point`: HumanEval, HumanEval+, LeetCodeDataset
- `assert` statements, in a text or a list, with helpers and imports; `test_list`, `test_setup_code`, `test_imports`:
  MBPP, MBPP+, AceCode
- functions and classes of pytest and unittest that import from `solution`, or use `entry_point`: KodCode, BigCodeBench

A text is split into its tests: functions, classes, or single assertions. A name that a test uses and does not define is
the program's, or comes from the definitions of the task's own `prompt`.

    tests_from('{"test": "def check(candidate):\n    assert candidate(1) == 2", "entry_point": "f"}')
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import re
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from guerdon.reading.roles import BESIDE_TESTS, LISTS_OF_TESTS, ROLES, SOLUTIONS_OF_TESTS, TEXTS_OF_TESTS

_OUTPUT = 1 << 18  # bytes that an output may have too much
_MODULES = {"bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator",
            "random", "re", "statistics", "string", "sys", "time", "typing"}  # fmt: skip
_COMPRESSED = re.compile(r"\s*(?:eJ|H4sI|gAS)[A-Za-z0-9+/_=\s-]{40,}")
_PACKED = (
    "they are a compressed pickle, which guerdon does not open: decode them once with the data set's own loader and "
    "store them as JSON, or remove them and keep the public tests"
)


@dataclass(frozen=True)
class CodeTest:
    """One test.

    Attributes:
        request: to the sandbox: `stdin` and `most`, the bytes that may be written; or a test of functions: its text
            `test` with the function or class `name` in it, `check` of `entry`, or a call with `arguments` and the
            value `wanted`; `context` is what the task's prompt defines, less the `hidden` names.
        expected: the right output, where there is one.
    """

    request: Mapping[str, Any]
    expected: str | None = None


def tests_of_row(row: Mapping[str, Any]) -> str | None:
    """The tests that a row of data has, as JSON for `tests_from`; None where it has none.

    They are a map or a list in place of a true answer (`reward_model.ground_truth`, `ground_truth`, `answer`), or
    columns of their own, which count only where no `reward_model` says what the true answer is.
    """
    model = row.get("reward_model")
    answers = [row.get("ground_truth"), row.get("answer")]
    if isinstance(model, Mapping):
        answers = [model.get("ground_truth")]
    stated = next((answer for answer in answers if isinstance(answer, Mapping | list) and _is_tests(answer)), None)
    if stated is not None:
        return json.dumps(stated, default=_listed)
    found = {key: row[key] for key in ROLES["tests"] if row.get(key) is not None and _is_tests(_parsed(row[key]))}
    if row.get("private_test_cases"):  # also where they are packed, to say so
        found["private_test_cases"] = row["private_test_cases"]
    if isinstance(model, Mapping) or not found:
        return None
    beside = {key: row[key] for key in BESIDE_TESTS if row.get(key)}
    return json.dumps({**found, **beside, **_names_in_solution(row)}, default=_listed)


def _names_in_solution(row: Mapping[str, Any]) -> dict[str, list[str]]:
    """What the solution of a row defines, and which of it are classes; nothing without a solution."""
    solution = next((text for key in SOLUTIONS_OF_TESTS if isinstance(text := row.get(key), str)), "")
    defined = _defined(solution)
    return {"defines": sorted(defined), "classes": _classes(solution)} if defined else {}


def _is_tests(given: Any) -> bool:
    """Whether a value looks like tests: Python with assertions, inputs and outputs, or lists and maps of these."""
    if isinstance(given, str):
        return re.search(r"\bassert\b|\bself\.assert|\bdef (?:test|check)", given) is not None
    if isinstance(given, Mapping):
        inner = [_parsed(given[key]) for key in (*ROLES["tests"], "answer") if given.get(key)]
        pairs = {"input", "inputs"} & given.keys() and {"output", "outputs", "results"} & given.keys()
        return bool(pairs) or any(map(_is_tests, inner))
    return isinstance(given, list | tuple) and bool(given) and all(map(_is_tests, given))


def _listed(value: Any) -> Any:
    """Arrays of Parquet files as lists, and what JSON has no form for as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def tests_from(ground_truth: str) -> list[CodeTest]:
    """The tests that a true answer holds.

    Raises:
        ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError: it is in none of the forms, or a
            test could be faked by the program or needs what is not there.
    """
    if _COMPRESSED.fullmatch(ground_truth):
        raise ValueError(_PACKED)
    return _tests(_parsed(ground_truth), {})


def _parsed(text: Any) -> Any:
    """JSON, or Python's spelling of it, as a value; other text as it is."""
    for _ in range(2):
        if not isinstance(text, str) or text.lstrip()[:1] not in ("{", "[", '"'):
            break
        try:
            text = json.loads(text)
        except (ValueError, RecursionError):
            try:
                text = ast.literal_eval(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                break
    return text


def _tests(given: Any, beside: Mapping[str, Any]) -> list[CodeTest]:
    if isinstance(given, str):
        return _from_text(given, beside)
    if isinstance(given, list | tuple):
        if all(isinstance(case, str) for case in given):
            return _from_text("\n".join(given), beside)
        return [_from_case(case, beside) for case in given]
    if not isinstance(given, Mapping):
        raise ValueError(f"{str(given)[:80]!r} is not a test")
    given = {key: _parsed(value) if key not in ("prompt", "import_prefix") else value for key, value in given.items()}
    beside = {**beside, **given}
    pairs = _listed_pairs(given)
    if pairs is not None:
        return [_from_case({"input": i, "output": o}, beside) for i, o in pairs]
    for inner in ("input_output", "verification_info", "answer"):
        if given.get(inner):
            return _tests(given[inner], {k: v for k, v in beside.items() if k != inner})
    return _from_columns(given, beside)


def _listed_pairs(given: Mapping[str, Any]) -> list[tuple[Any, Any]] | None:
    """The inputs and outputs of a map that has them as two lists; None: it does not."""
    for first, second in (("inputs", "outputs"), ("input", "output"), ("inputs", "results")):
        inputs, outputs = given.get(first), given.get(second)
        if isinstance(inputs, list) and isinstance(outputs, list):
            if len(inputs) != len(outputs):
                raise ValueError(f"{first} and {second} must be two lists of the same length")
            return list(zip(inputs, outputs, strict=True))
    return None


def _from_columns(given: Mapping[str, Any], beside: Mapping[str, Any]) -> list[CodeTest]:
    hidden = given.get("private_test_cases")
    if isinstance(hidden, str) and hidden:
        raise ValueError(f"private_test_cases: {_PACKED}")
    cases = [*(given.get("public_test_cases") or ()), *(hidden or ())]
    if cases:
        return [_from_case(case, beside) for case in cases]
    for key in (*TEXTS_OF_TESTS, "test_list", *LISTS_OF_TESTS):
        if given.get(key):
            return _tests(
                given[key], {k: v for k, v in beside.items() if k not in (*ROLES["tests"], "inputs", "outputs")}
            )
    if "input" in given and "output" in given:
        return [_from_case(given, beside)]
    raise ValueError(
        "expected two lists inputs and outputs, a list of input and output, test with entry_point, test_list, or "
        f"assert statements; found {', '.join(map(str, given))[:80] or 'nothing'}"
    )


def _entry(given: Mapping[str, Any]) -> str:
    """The function that is called: a name, or a path such as `Solution().name`."""
    metadata = given.get("metadata")
    metadata = _parsed(metadata) if isinstance(metadata, str) else metadata
    inner = metadata if isinstance(metadata, Mapping) else {}
    name = given.get("fn_name") or given.get("func_name") or inner.get("func_name") or given.get("entry_point") or ""
    if name and not re.fullmatch(r"\w+(\(\))?(\.\w+)*", str(name)):
        raise ValueError(f"the name of the function is {str(name)[:40]!r}, which is not a name")
    return str(name)


_STDIN = ("stdin", "stdin_stdout")  # types of tests
_FUNCTIONAL = ("functional", "function_call")


def _from_case(case: Any, beside: Mapping[str, Any]) -> CodeTest:
    """An input and its output, or arguments and their value."""
    if not isinstance(case, Mapping) or "input" not in case or "output" not in case:
        raise ValueError(f"a test has input and output, this is {str(case)[:80]!r}")
    entry = _entry_of(case, beside)
    if entry:
        return _from_call(case, beside, entry)
    expected = _lines(case["output"])
    most = 2 * len(expected.encode("utf-8", "replace")) + _OUTPUT
    return CodeTest({"stdin": _lines(case["input"]), "most": most}, expected)


def _entry_of(case: Mapping[str, Any], beside: Mapping[str, Any]) -> str:
    """The function that a test calls; empty for a test of the whole program."""
    kind = case.get("testtype") or case.get("type") or ""
    entry = _entry(case) or _entry({k: v for k, v in beside.items() if k != "entry_point" or not kind})
    if kind not in ("", *_STDIN, *_FUNCTIONAL):
        raise ValueError(f"a test of the type {str(kind)[:40]!r}; stdin and functional are known")
    if kind in _STDIN:
        return ""
    if kind in _FUNCTIONAL:
        entry = entry or _entry(beside)
        if not entry:
            raise ValueError("a functional test needs the name of its function: metadata.func_name, or fn_name")
    return entry


def _from_call(case: Mapping[str, Any], beside: Mapping[str, Any], entry: str) -> CodeTest:
    """The arguments of a function, and the value that it should have."""
    arguments, wanted = case["input"], case["output"]
    if isinstance(arguments, str):  # as in LiveCodeBench: in JSON, one a line
        arguments = [_value(line) for line in arguments.split("\n") if line.strip()]
        wanted = _value(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(arguments, list):
        raise ValueError("the inputs of a function are a list of its arguments")
    return CodeTest(_request(beside, entry) | {"arguments": arguments, "wanted": wanted})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(json.dumps(ast.literal_eval(text.strip())))


def _lines(given: Any) -> str:
    """What a program reads or writes; a list is its lines."""
    return "\n".join(map(str, given)) if isinstance(given, list) else str(given)


def _request(beside: Mapping[str, Any], entry: str) -> dict[str, Any]:
    context = _context(beside)
    return {"entry": entry, "context": context, "hidden": [entry.split(".")[0].removesuffix("()")], "classes": []}


def _context(beside: Mapping[str, Any]) -> str:
    """The definitions in the task's own text, where it is Python; a function without a body gets one."""
    for key in ("import_prefix", "prompt"):
        text = beside.get(key)
        for ending in ("", "\n    pass\n"):
            if isinstance(text, str) and _defined(text + ending):
                return text + ending
    return ""


def _defined(text: str) -> set[str]:
    """Names that a text of Python defines; none where it is not Python."""
    try:
        table = symtable.symtable(text, "text", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def _classes(text: str) -> list[str]:
    """Names of the classes that a text of Python defines."""
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def _undefined(text: str) -> set[str]:
    """Names that a text uses and neither it nor Python defines."""
    table = symtable.symtable(text, "text", "exec")
    defined, used = set(dir(builtins)), set()

    def walk(scope: symtable.SymbolTable) -> None:
        for symbol in scope.get_symbols():
            if scope is table or symbol.is_declared_global():
                defined.update({symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else ())
            if symbol.is_referenced() and (scope is table or symbol.is_global()):
                used.add(symbol.get_name())
        for inner in scope.get_children():
            walk(inner)

    walk(table)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module in sys.stdlib_module_names:
            defined.update(dir(importlib.import_module(node.module)) if node.module in _MODULES else ())
    return {name for name in used - defined if not (name.startswith("__") and name.endswith("__"))}


def _from_text(text: str, beside: Mapping[str, Any]) -> list[CodeTest]:
    """Tests in Python: a function `check`, functions and classes of pytest and unittest, or assertions."""
    text = _with_setup(text, beside)
    tree = ast.parse(text)
    _check_imports(tree)
    entry = _entry(beside)
    parts = _parts_of(text, entry, beside)
    body = [s for s in tree.body if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")]
    tests = [s for s in body if _is_test(s)]
    if tests:
        return parts.functions(body, tests)
    has_check = any(isinstance(s, ast.FunctionDef) and s.name == "check" for s in body)
    if not has_check or _calls_at_top(body, "check"):
        return parts.assertions(body)
    if not entry:
        raise ValueError("check(candidate) needs entry_point, the name of the function")
    return [parts.whole(body, entry=entry)]


def _with_setup(text: str, beside: Mapping[str, Any]) -> str:
    """A text of tests behind the imports and helpers that other columns have."""
    texts = []
    for column in ("test_imports", "test_setup_code"):
        given = beside.get(column) or ""
        texts.append("\n".join(given) if isinstance(given, list) else str(given))
    return "\n".join([*texts, text]).strip("\n")


class _UsedNames(NamedTuple):
    """Names that a text of tests uses and does not define: modules of Python, of the task's prompt, of the program."""

    modules: set[str]
    context: set[str]
    ours: set[str]

    def header(self, *, star: bool) -> str:
        """Their imports; none of the program's where the tests import all of its names (`star`)."""
        lines = [f"import {name}" for name in sorted(self.modules)]
        lines += [f"from _context import {name}" for name in sorted(self.context)]
        if not star:
            lines += [f"from solution import {name}" for name in sorted(self.ours)]
        return "\n".join(lines)


def _used_names(text: str, own: str, known: set[str], context: str) -> _UsedNames:
    """The names that a text uses.

    Args:
        text: of the tests.
        own: the function that is tested, "" where that is not said.
        known: what the program is known to define.
        context: the definitions of the task's prompt.
    """
    free = _undefined(text)
    of_context = free & (_defined(context) - {own})
    modules = {name for name in free - of_context if name in _MODULES and find_spec(name)}
    named = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    known_and_named = (known & named) - modules - (_defined(text) - {own})  # also where Python has such a name
    return _UsedNames(modules, of_context, (free - of_context - modules) | known_and_named)


def _parts_of(text: str, entry: str, beside: Mapping[str, Any]) -> _Parts:
    """What the tests of a text have in common.

    Raises:
        ValueError: they use a function that nothing defines, although something says which one is tested.
    """
    tree = ast.parse(text)
    base = _request(beside, entry)
    (own,) = base["hidden"]
    known = {own} if own else set(beside.get("defines") or ())
    used = _used_names(text, own, known, base["context"])
    imported = _imported(tree)
    says_what_is_tested = bool(own) or any(_imports_solution(node) for node in ast.walk(tree))
    strange = sorted(name for name in used.ours - known if name[0].islower())
    if strange and says_what_is_tested and "*" not in imported:
        raise ValueError(f"{strange[0]} is used, which neither the tests nor the prompt define; the program could")
    classes = _classes_called(tree, used.ours | imported)
    classes &= set(beside.get("classes", classes))
    header = used.header(star="*" in imported)
    return _Parts(header, used.ours, base | {"classes": sorted(classes)}, free_choice=not says_what_is_tested)


def _classes_called(tree: ast.Module, ours: set[str]) -> set[str]:
    """Names of the program that are spelled as classes, without those whose value the tests compare."""
    return {name for name in ours if name.lstrip("_")[:1].isupper()} - _compared(tree, ours)


@dataclass(frozen=True)
class _Parts:
    """Makes tests of the statements of a text.

    Attributes:
        header: imports in front of every test.
        ours: names of the program.
        base: what every request has.
        free_choice: whether nothing says which of these names is tested.
    """

    header: str
    ours: set[str]
    base: Mapping[str, Any]
    free_choice: bool

    def whole(self, body: Iterable[ast.stmt], **given: Any) -> CodeTest:
        text = "\n".join([self.header, *map(ast.unparse, body)])
        return CodeTest({**self.base, "entry": "", "name": "", "pytest": False, "test": text, **given})

    def functions(self, body: Sequence[ast.stmt], tests: Sequence[ast.stmt]) -> list[CodeTest]:
        """Each function and class by its name; the calls of them at the end of a text are left out."""
        names = [test.name for test in tests if isinstance(test, ast.FunctionDef | ast.ClassDef)]
        kept = [s for s in body if not any(_calls_at_top([s], name) for name in names)]
        fixtures = _names_pytest(body) and _has_fixtures(body)
        found = []
        for test in tests:
            assert isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            needs = _needs_pytest(test)
            if needs and find_spec("pytest") is None:
                raise ValueError(f"{test.name} needs pytest, which is not installed: pip install pytest")
            found.append(self.whole(kept, name=test.name, pytest=needs or fixtures))
        return found

    def assertions(self, body: Sequence[ast.stmt]) -> list[CodeTest]:
        """Each assertion after the statements before it; where those call the program, after earlier assertions too."""
        helpers = {s.name for s in body if isinstance(s, ast.FunctionDef) and _has_assert(s)}
        checks = [_is_check(s, helpers) for s in body]
        others = [s for s, check in zip(body, checks, strict=True) if not check]
        before = {name for s in others for name in self._names(s)}
        stateful = any(self._names(s) for s in others if not _is_definition(s))
        done: list[ast.stmt] = []
        tests = []
        for statement, check in zip(body, checks, strict=True):
            if not check:
                _check_does_something(statement)
                done.append(statement)
                continue
            self._check_called(statement)
            if self.free_choice:
                self._check_one(statement, before)
            tests.append(self.whole([*done, statement]))
            if stateful:
                done.append(_without_errors(statement))
        return tests

    def _check_called(self, statement: ast.stmt) -> None:
        """Refuse an assertion that calls nothing of the program."""
        called = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
        if not called - (set(dir(builtins)) - self.ours):
            raise ValueError(
                f"no function of the program is called in {ast.unparse(statement)[:80]!r}; name it in entry_point"
            )

    def _names(self, node: ast.AST) -> set[str]:
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in self.ours}

    def _check_one(self, statement: ast.stmt, before: set[str]) -> None:
        """Where nothing says what is the program's: one function of it, and classes, or it could define the check."""
        names = self._names(statement) | before
        functions = sorted(name for name in names if not name[0].isupper())
        wraps = [
            ast.unparse(call.func)
            for call in ast.walk(statement)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in self.ours
            and call.func.id[0].isupper() and any(n in functions for part in call.args for n in self._names(part))
        ]  # fmt: skip
        if len(functions) > 1 or wraps:
            pair = " and ".join([*wraps, *functions][:2])
            raise ValueError(f"{pair} are not defined in the tests, and the program could define both; name its "
                             "function in entry_point, or import it from solution")  # fmt: skip


def _check_does_something(statement: ast.stmt) -> None:
    """Refuse a value that stands alone, such as `f(1) == 2` without `assert`; a call and a text may."""
    if isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Call | ast.Constant):
        raise ValueError(f"expected tests, found {ast.unparse(statement)[:80]!r}")


def _without_errors(statement: ast.stmt) -> ast.stmt:
    """The statement, inside `try` and `except Exception: pass`."""
    quiet = ast.ExceptHandler(type=ast.Name("Exception", ast.Load()), body=[ast.Pass()])
    return ast.fix_missing_locations(ast.Try([statement], [quiet], [], []))


def _is_test(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.ClassDef):
        return _is_case(statement) or (
            statement.name.startswith("Test") and any(_is_test(inner) for inner in statement.body)
        )
    return isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name.startswith("test")


def _is_check(statement: ast.stmt, helpers: Iterable[str]) -> bool:
    """Whether a statement asserts something, or calls one of the functions that do."""
    asserts = not _is_definition(statement) and not _is_main(statement) and _has_assert(statement)
    return asserts or any(_calls_at_top([statement], name) for name in helpers)


def _is_definition(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef | ast.ClassDef)


def _is_case(statement: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("TestCase") for base in statement.bases)


def _needs_pytest(test: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether only pytest can run a test: one with arguments or marks, a coroutine, a class that is not of unittest."""
    if isinstance(test, ast.ClassDef):
        return not _is_case(test)
    return isinstance(test, ast.AsyncFunctionDef) or bool(test.args.args or test.decorator_list)


def _names_pytest(body: Sequence[ast.stmt]) -> bool:
    nodes = [node for statement in body for node in ast.walk(statement)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    imported = {node.name for node in nodes if isinstance(node, ast.alias)}
    return "pytest" in used | imported


def _has_fixtures(body: Sequence[ast.stmt]) -> bool:
    return any("fixture" in ast.unparse(d) for s in body if isinstance(s, ast.FunctionDef) for d in s.decorator_list)


def _has_assert(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Assert) for part in ast.walk(node))


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _calls_at_top(body: Iterable[ast.stmt], name: str) -> bool:
    calls: Iterator[ast.expr] = (s.value for s in body if isinstance(s, ast.Expr))
    return any(isinstance(c, ast.Call) and isinstance(c.func, ast.Name) and c.func.id == name for c in calls)


def _imports_solution(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "solution"
    return isinstance(node, ast.Import) and any(alias.name == "solution" for alias in node.names)


def _imported(tree: ast.Module) -> set[str]:
    """Names that are imported from the program."""
    froms = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and _imports_solution(n))
    return {alias.name for node in froms for alias in node.names}


def _compared(tree: ast.Module, ours: set[str]) -> set[str]:
    """Names of functions whose value is compared with something that is not made by the program, such as `[7]`.

    A class in place of such a function does not decide the comparison, by `==` or the `-` of `abs(f(1) - 7) < 1e-6`.
    """

    def calls(node: ast.AST) -> bool:
        inner = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        return any(n.id in made for n in inner) or (isinstance(node, ast.Constant) and node.value is None)

    made = set(ours)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and calls(node.value):
            made |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    found = set()
    for node in ast.walk(tree):
        sides = _sides(node)
        if not all(map(calls, sides)):
            found |= {s.func.id for s in sides if isinstance(s, ast.Call) and isinstance(s.func, ast.Name)}
    return found


def _sides(node: ast.AST) -> list[ast.expr]:
    """The values that a comparison, a difference or a call of an `assert...` method compares; none of other nodes."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return [node.left, node.right]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr[:6] == "assert":
        return node.args[:2]
    return []


_REPLACES = re.compile(r"(?:.*\.)?(?:patch(?:\.\w+)?|monkeypatch\.\w+)")  # calls that put something else into a module


def _check_imports(tree: ast.Module) -> None:
    """Refuse tests that import what is not installed, or replace parts of a program that runs in another process.

    Raises:
        ValueError: with what to do.
    """
    for node in ast.walk(tree):
        for name in _packages_of(node):
            if not _is_there(name):
                raise ValueError(f"they import {name or 'a module beside them'}, which is not installed")
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            place = ast.unparse(node.args[0])[:40] if node.args else ""
            if _REPLACES.fullmatch(function) and "sys.stdout" not in place:
                raise ValueError(f"{function}({place}) replaces a part of the program, which is in another process")


def _packages_of(node: ast.AST) -> list[str]:
    """The packages that a statement imports from; an empty name for the folder of the tests."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").split(".")[0]]
    return []


def _is_there(package: str) -> bool:
    if package == "solution" or package in sys.stdlib_module_names:
        return True
    return bool(package) and find_spec(package) is not None
