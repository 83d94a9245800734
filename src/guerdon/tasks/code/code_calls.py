"""What the two processes of a test do: one holds a program, the other judges it.

Each runs alone in a sandbox of its own (`code_sandbox.py`), reads its requests from `/tmp/calls.json`, and shares only
a socket with the other (`code_link.py`). A test imports the module `solution`, whose names are proxies of the
program's. Its process never holds the program, so a verdict is never the program's to write; and the program's process
never holds a test or a right value. A program that ends, hangs or writes nonsense fails the test at once.

Imports nothing but the standard library and `code_link.py`, and little of it at the start, which every test waits for;
a test may import packages that it needs.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import re
import site
import sys
import types
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from typing import Any

from guerdon.tasks.code.code_link import Link, Raised, Remote

LINK = 3  # descriptor of the socket
PRINTED = 1 << 20  # characters of what a call prints that reach the test
DECIMALS = 1e-6  # relative or absolute difference at which two printed decimals count as equal
_FRAMES = 50  # of this file and the link, below those of a program
_DEPTH = 5000  # frames of a test, for calls that call it back
_WORD = 400  # characters of a printed number; longer ones are compared as text
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_PRELUDE = """
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from collections import *
from functools import *
from heapq import *
from itertools import *
from typing import *
"""  # what the functions of such data sets expect to find, as at the sites that they come from


class _Text(SourceFileLoader):
    """A module from its text. The loaders for that in `importlib.abc` take longer to import than most tests run."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, "<string>")
        self._text = text

    def get_source(self, fullname: str) -> str:
        """The text."""
        return self._text

    def get_code(self, fullname: str) -> types.CodeType:
        """The text, compiled."""
        return self.source_to_code(self._text, "<string>")  # type: ignore[arg-type,no-any-return,unused-ignore]


def _loaded(name: str, text: str, names: Mapping[str, Any] | None = None) -> types.ModuleType:
    module = types.ModuleType(name)
    loader = _Text(name, text)
    vars(module).update({k: v for k, v in (names or {}).items() if not k.startswith("__")})
    vars(module)["__loader__"] = loader
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def run_program(asked: Mapping[str, Any]) -> None:
    """Load a program and answer the calls of a test. What it prints is part of the answers."""
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding="utf-8", errors="replace", write_through=True)
    site.setquit()  # Python runs with -S: `exit`, `quit` and installed packages as in a program run by itself
    sys.path += site.getsitepackages()
    link = Link(LINK, lambda: os._exit(0), judges=False)
    sys.stdout = output
    sys.argv = ["solution.py"]
    sys.setrecursionlimit(sys.getrecursionlimit() + _FRAMES)

    def printed() -> str:
        text = written.getvalue().decode("utf-8", "replace")
        written.seek(0)
        written.truncate()
        return text[:PRINTED]

    names = dict(vars(_loaded("_prelude", _PRELUDE)))
    if asked["context"]:
        names.update(vars(_loaded("_context", asked["context"])))
        for name in asked["hidden"]:
            names.pop(name, None)
    program = _loaded("solution", asked["program"], names)
    printed()
    link.printed = printed
    link.pack(_Names(program))  # object 0
    link.serve()


class _Names:
    """The names of a program: object 0 of its process."""

    def __init__(self, program: types.ModuleType) -> None:
        self.__names = vars(program)

    def __getattr__(self, path: str) -> Any:
        """A name, or a path such as `Solution().name`; a method of `Solution` where there is no such function."""
        names = self.__names
        if path == "__all__":
            return [name for name in names if not name.startswith("_")]
        first, *rest = path.split(".")
        if not rest and first not in names and hasattr(names.get("Solution"), first):
            first, rest = "Solution()", [first]
        if first.removesuffix("()") not in names:
            raise AttributeError(f"the program has no {first}")
        value = names[first.removesuffix("()")]
        value = value() if first.endswith("()") else value
        for name in rest:
            value = getattr(value, name)
        return value


def run_test(asked: Mapping[str, Any], verdict: Callable[[str, str], Any]) -> None:
    """Run one test and report `passed`, `failed`, `not judged`, or `broken` where it never came to the program."""
    link = Link(LINK, lambda: verdict("failed", "the program ended"), judges=True)
    link.classes.update(asked["classes"])
    sys.setrecursionlimit(_DEPTH)
    solution = types.ModuleType("solution")
    names = Remote(link, 0, "module")

    def find(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        link.asked += 1
        value = names._ask("get", name)
        if isinstance(value, Remote):
            link.asked -= 1  # no more than a name so far
            vars(value)["_name"] = vars(value)["_name"] and name
        return value

    vars(solution)["__getattr__"] = find
    sys.modules["solution"] = solution
    passed = False
    with Raised() as raised:
        if asked["context"]:
            _loaded("_context", asked["context"])
        passed = _run(asked, find)
    detail = "" if raised.error is None else _said(raised.error)
    if link.not_judged:
        verdict("not judged", link.not_judged)
    not_passed = "failed" if link.asked else "broken"
    verdict("passed" if passed else not_passed, detail)


def _said(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception_only(error)).strip()


def _run(asked: Mapping[str, Any], find: Callable[[str], Any]) -> bool:
    if "arguments" in asked:
        return same_value(asked["wanted"], find(asked["entry"])(*asked["arguments"]))
    if asked["pytest"]:
        return _with_pytest(asked["test"], asked["name"])
    module = _loaded("test_solution", asked["test"])
    if asked["entry"]:
        module.check(find(asked["entry"]))
    elif asked["name"]:
        test = getattr(module, asked["name"])
        if isinstance(test, type):  # of unittest; others are run by pytest
            import unittest

            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(test).run(result)
            return result.testsRun > 0 and result.wasSuccessful() and not result.skipped
        test()
    return True


def _with_pytest(text: str, name: str) -> bool:
    """Run a test that uses pytest's own parts: fixtures, parameters, marks."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    pytest = importlib.import_module("pytest")
    with open("/tmp/test_solution.py", "w", encoding="utf-8") as file:  # noqa: S108 (of this process alone)
        file.write(text)
    found: list[str] = []

    class Results:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                found.append(report.outcome)

    options = ["-q", "-p", "no:cacheprovider", "--assert=plain", "--rootdir=/tmp", "-c", "/dev/null"]
    status = pytest.main([*options, f"/tmp/test_solution.py::{name}"], plugins=[Results()])  # noqa: S108
    return status == 0 and bool(found) and set(found) == {"passed"}


def same_value(wanted: Any, found: Any) -> bool:
    """As in APPS: lists for tuples, an expected list of one value may stand for the value; decimals as in outputs."""
    found = _listed(found)
    return _near(wanted, found) or (isinstance(wanted, list) and len(wanted) == 1 and _near(wanted[0], found))


def _near(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, float) and type(found) in (int, float) and abs(found) < 1 << 1023:
        return math.isclose(wanted, found, rel_tol=DECIMALS, abs_tol=DECIMALS)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_near, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(_near(value, found[key]) for key, value in wanted.items())
    return bool(found == wanted)


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(v) for v in value]
    if isinstance(value, dict):  # names in JSON are strings
        return {k if isinstance(k, str) else str(k): _listed(v) for k, v in value.items()}
    return value


def same_output(expected: str, written: str) -> bool:
    """Whether a program wrote what it should: the same words in the same lines, blank lines at the end aside.

    Decimals may differ by 1e-6, relatively or absolutely, where the expected one has a decimal point. In linear time.
    """

    def lines(text: str) -> list[list[str]]:
        return [line.split() for line in text.rstrip().split("\n")]

    def same(word: str, other: str) -> bool:
        if word == other:
            return True
        if "." not in word or max(len(word), len(other)) > _WORD:
            return False
        if not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(other)) or math.isinf(float(word)):
            return False
        return math.isclose(float(word), float(other), rel_tol=DECIMALS, abs_tol=DECIMALS)

    left, right = lines(expected), lines(written)
    return len(left) == len(right) and all(
        len(a) == len(b) and all(map(same, a, b)) for a, b in zip(left, right, strict=True)
    )


def main() -> None:
    """Do what `/tmp/calls.json` describes: hold a program, run a test, or compare outputs."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anything prints is not a result

    def verdict(state: str, detail: str) -> None:
        results.write(json.dumps({"verdict": state, "detail": detail[:300]}))
        results.flush()
        os._exit(0)

    with open("/tmp/calls.json", encoding="utf-8") as file:  # noqa: S108
        asked = json.load(file)
    if "program" in asked:
        results.close()
        run_program(asked)
    elif "pairs" in asked:
        results.write(json.dumps([same_output(expected, written) for expected, written in asked["pairs"]]))
        results.close()
    else:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        sys.path[:0] = asked["packages"]
        run_test(asked, verdict)


if __name__ == "__main__":
    main()
