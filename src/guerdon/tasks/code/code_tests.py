r"""The tests of a programming task: read from the forms of public data sets, run and judged in isolation.

A program runs in one sandbox (`code_sandbox.py`), which gets inputs and calls but never a test or a right output; its
outputs and values are judged in a second one, which never holds the program (`code_calls.py`). This process reads
nothing that a program wrote. The outcome is the share of tests passed.

    tests = read_tests('{"inputs": ["1\n"], "outputs": ["2\n"]}')
    with Sandbox() as sandbox:
        run_tests(tests, "print(int(input()) + 1)", sandbox, cpu_seconds=10)      # 1.0
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from guerdon.errors import DataError, MissingDependencyError
from guerdon.processes.subprocess_worker import SubprocessWorker, WorkerError
from guerdon.tasks.code.code_forms import CodeTest, tests_from

ALLOW_IT = (
    "allow user namespaces and seccomp on Linux 5.12 or newer (sysctl kernel.unprivileged_userns_clone=1, "
    "user.max_user_namespaces=10000, kernel.apparmor_restrict_unprivileged_userns=0; in a container, --cap-add "
    "SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined), or leave code rows out"
)
_START_SECONDS = 60.0  # for the namespaces, on a machine that is busy
_VERDICT = 4096  # bytes of a verdict
LATE = 3  # tests that run out of time, after which the others are not run
_FENCE = re.compile(r"```[ \t]*([A-Za-z0-9+.-]*)[ \t]*")
_KEYS = (
    "inputs?|outputs?|fn_name|tests?|test_cases?|testtype|unit_tests|stdin|entry_point|test_list|test_code|functional|"
    "public_test_cases|private_test_cases|input_output|verification_info|test_setup_code"
)
_CODE = re.compile(
    rf"""\A[\s"]*[\[{{](?s:.{{0,2000}}?)["'](?:{_KEYS})\\?["']\s*:"""
    r"""|^[^\w\n]{0,24}(?:assert\b|self\.assert\w+\(|from solution import\b|import solution\b"""
    r"""|def \w+\(.*:\s*$|class \w+(?:\(.*\))?:\s*$)""",
    re.MULTILINE,
)


def program_of(response: str) -> str | None:
    """The program in a response: the last closed block between ``` marks that is Python or names no language."""
    found: str | None = None
    opened: tuple[str, int] | None = None
    lines = response.split("\n")
    for number, line in enumerate(lines):
        fence = _FENCE.fullmatch(line.rstrip("\r"))
        if fence is None:
            continue
        if opened is None:
            opened = (fence[1].lower(), number)
            continue
        if fence[1]:
            continue
        if opened[0] in ("", "python", "python3", "py"):
            found = "".join(f"{text}\n" for text in lines[opened[1] + 1 : number])
        opened = None
    return found


def is_code(ability: str, ground_truth: str) -> bool:
    """Whether a row is a programming task, by its ability or its true answer: inputs and outputs, asserts or a program.

    Also where `read_tests` reads none of it: such rows are refused, and no answer to them is judged as mathematics.
    """
    return ability.lower() in ("code", "coding") or _CODE.search(ground_truth) is not None


@functools.lru_cache(maxsize=256)
def read_tests(ground_truth: str) -> tuple[CodeTest, ...]:
    """The tests of a row, in any of the forms that `code_forms` lists.

    Raises:
        DataError: it is none of them, there is no test in it, or one could be faked by the program.
    """
    try:
        tests = tests_from(ground_truth)
    except (ValueError, SyntaxError, RecursionError, TypeError, KeyError, MemoryError) as error:
        raise DataError(f"its tests cannot be read: {error}") from error
    if not tests:
        raise DataError("its tests cannot be read: there is none")
    return tuple(tests)


class Sandbox:
    """Two processes in namespaces of their own (see `code_sandbox.py`): one runs programs, one judges what they do.

    Attributes:
        memory: what limits that of a program with several processes: `group`, a control group of all, or `share`, a
            part of the limit for each.

    Raises:
        MissingDependencyError: this machine has no such isolation; says what to change.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise MissingDependencyError("programs of a model run in isolation on Linux only; leave code rows out")
        self._process = _start()
        self.memory: str = self._process.ready["memory"]
        self._judge: SubprocessWorker | None = None
        self._packages: list[str] = []

    def run(self, program: str, requests: Sequence[Mapping[str, Any]], cpu_seconds: int) -> list[dict[str, Any]] | None:
        """How a program ended on each request (`state`, `output`), in order; None where a sandbox ended or hung.

        Args:
            program: its text.
            requests: `stdin` and `most`, bytes of output; or `calls`, the test of a function (`CodeTest.request`).
            cpu_seconds: per request.
        """
        results: list[dict[str, Any]] = []
        several: set[str] = set()
        try:
            for request in requests:
                if sum(result["state"] == "time" for result in results) >= LATE:
                    results.append({"state": "skipped", "output": ""})
                else:
                    results.append(self._run(program, request, cpu_seconds, several))
        except WorkerError:
            return None
        return results

    def _run(self, program: str, request: Mapping[str, Any], cpu_seconds: int, several: set[str]) -> dict[str, Any]:
        """How a program ended on a request.

        Args:
            program: its text.
            request: as for `run`.
            cpu_seconds: of it.
            several: which of `program` and `judge` start processes, as far as that is known. Where no control group
                limits their memory, one that turns out to is run again, with a share of the memory for each process.
        """
        while True:
            if "stdin" in request:
                asked = {"program": program, "cpu": cpu_seconds, "processes": "program" in several, **request}
                replies = {"program": self._process.request(asked, _wall(cpu_seconds))}
            else:
                replies = self._test(program, request, cpu_seconds, several)
            found = {name for name, reply in replies.items() if reply["state"] == "processes"}
            if found <= several:
                return _verdict(**replies) if "judge" in replies else replies["program"]
            several |= found

    def compare(self, pairs: Sequence[tuple[str, str]], cpu_seconds: int) -> list[bool] | None:
        """Which outputs are right, of pairs of the right one and the one written; None where a sandbox ended."""
        asked = {"calls": {"pairs": pairs}, "cpu": cpu_seconds, "most": _VERDICT + 9 * len(pairs)}
        try:
            reply = self._judging().request(asked, _wall(cpu_seconds))
        except WorkerError:
            return None
        if reply["state"] == "done":
            return [found is True for found in json.loads(reply["output"])]
        if len(pairs) == 1:  # an output that cannot be compared within the limits is not right
            return [False]
        each = [self.compare([pair], cpu_seconds) for pair in pairs]
        return None if None in each else [bool(found and found[0]) for found in each]

    def _test(
        self, program: str, request: Mapping[str, Any], cpu_seconds: int, several: set[str]
    ) -> dict[str, dict[str, Any]]:
        """Run a test in one process, `judge`, and the program that it calls in another; they share a socket."""
        mine = {"program": program, "context": request["context"], "hidden": request["hidden"]}
        ours, theirs = socket.socketpair()
        try:
            common = {"cpu": cpu_seconds, "most": _VERDICT, "link": True}
            self._process.send({"calls": mine, "processes": "program" in several, **common}, files=[ours.fileno()])
            judge = self._judging()
            calls = {**request, "packages": self._packages}
            judge.send({"calls": calls, "processes": "judge" in several, **common}, files=[theirs.fileno()])
        finally:
            ours.close()
            theirs.close()
        return {"judge": judge.reply(_wall(cpu_seconds)), "program": self._process.reply(_wall(cpu_seconds))}

    def _judging(self) -> SubprocessWorker:
        if self._judge is None:
            folders = package_folders()
            self._judge = _start(*folders)
            self._packages = [f"/packages/{place}" for place in range(len(folders))]
        return self._judge

    def close(self) -> None:
        """End the processes and everything that they started."""
        self._process.kill()
        if self._judge is not None:
            self._judge.kill()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _verdict(judge: Mapping[str, Any], program: Mapping[str, Any]) -> dict[str, Any]:
    """How a test ended, of the replies of its two processes."""
    if judge["state"] == "done":
        found = json.loads(judge["output"] or '{"verdict": "failed", "detail": ""}')
        if found["verdict"] != "failed" or program["state"] != "time":
            return {"state": "done", "verdict": found["verdict"], "output": found["detail"]}
    late = "time" in (judge["state"], program["state"])
    return {"state": "time" if late else "failed", "output": ""}


def _wall(cpu_seconds: int) -> float:
    return 2.0 * cpu_seconds + 16.0


def package_folders() -> list[str]:
    """Folders of the packages that tests may import: where this interpreter's own packages, numpy and pytest are."""
    specs = [find_spec(name) for name in ("numpy", "pytest")]
    found = [str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin]
    return list(dict.fromkeys(f for f in (*found, sysconfig.get_path("purelib")) if Path(f).is_dir()))


def _start(*packages: str) -> SubprocessWorker:
    python = os.path.realpath(sys.executable)
    script = str(Path(__file__).with_name("code_start.py"))
    try:
        return SubprocessWorker(
            [python, "-I", "-S", "-B", script, *packages],
            start_seconds=_START_SECONDS,
            description="process that runs programs in isolation",
            pass_files=True,
            environment={},
        )
    except MissingDependencyError as error:
        raise MissingDependencyError(f"{error}. To run programs of a model, {ALLOW_IT}") from error


@functools.cache
def check_isolation() -> str:
    """Make sure that programs can be run in isolation on this machine.

    Returns:
        What limits the memory of a program with several processes, as `Sandbox.memory`.

    Raises:
        MissingDependencyError: they cannot; says what to change.
    """
    with Sandbox() as sandbox:
        memory = sandbox.memory
        results = sandbox.run("print('x')", [{"stdin": "", "most": 9}], 10)
        judged = run_tests(read_tests("assert f(1) == 2"), "def f(x): return x + 1", sandbox, cpu_seconds=10)
    if results is None or results[0]["output"] != "x\n" or judged != 1:
        raise MissingDependencyError(
            "the interpreter does not run in isolation, because it needs files outside its own folder and /usr; leave "
            "code rows out, or use another Python"
        )
    return memory


def run_tests(tests: Sequence[CodeTest], program: str, sandbox: Sandbox, *, cpu_seconds: float) -> float | None:
    """The share of tests that a program passes; None where a sandbox failed.

    Args:
        tests: at least one.
        program: its text.
        sandbox: runs and judges it.
        cpu_seconds: per test, rounded up; twice as much and a second by the clock. A program that is late three times
            is not run again, and passes none of the other tests.

    Raises:
        DataError: a test fails without the program, or only the program could say how it ends.
    """
    cpu = math.ceil(cpu_seconds)
    results = sandbox.run(program, [test.request for test in tests], cpu)
    if results is None:
        return None
    for result in results:
        if result.get("verdict") in ("broken", "not judged"):
            raise DataError(f"a test is {result['verdict']}: {result['output']}")
    ended = [(test.expected, r["output"]) for test, r in zip(tests, results, strict=True) if r["state"] == "done"]
    written = [(expected, output) for expected, output in ended if expected is not None]
    right = sandbox.compare(written, cpu) if written else []
    if right is None:
        return None
    passed: int = sum(result.get("verdict") == "passed" for result in results)
    return float((passed + sum(right)) / len(tests))
