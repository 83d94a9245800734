"""Tasks of several turns of the Berkeley Function Calling Leaderboard (`multi_turn_base`), as a world of messages.

The prompt of a row is the id of a task, `multi_turn_base_0` to `multi_turn_base_199`. The model calls the functions of
the task's classes until it answers without a complete call, which ends the user's turn. The turn is right where the
state of all classes is that of the gold solution, and its results are among those of the calls so far; at least one
call is needed, except where the gold solution has none.

Methods are called with JSON arguments, in a process of its own that has limits and begins each task again: the calls so
far are made once more, which repeats their results. Nothing that a model writes is executed as a program.

    world = BFCL()
    step = world.reset({"messages": [{"role": "user", "content": "multi_turn_base_0"}]})
    step = world.step({"role": "assistant", "content": "", "tool_calls": [...]})        # the results
    step = world.step({"role": "assistant", "content": "It is done."})    # step.reward 1.0 if the turn was right
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import resource
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module, resources
from typing import Any

from guerdon.errors import DataError, GuerdonError, boundary, did_you_mean, needs, said_by
from guerdon.processes.subprocess_worker import SubprocessPool, WorkerError, answer_requests
from guerdon.types import Message, Tool
from guerdon.worlds.messages import WorldStep, calls_of, result_of

Call = Mapping[str, Any]
"""A call of a function: `name` and `arguments`."""

_MISSING = "agent.type bfcl needs {name}: pip install --no-deps bfcl-eval==2026.3.23 mpmath"
_SUITE = "BFCL_v4_multi_turn_base.json"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}  # of BFCL, in JSON schema
_SECONDS = 5.0  # of processor time, for all calls of a task
_MEMORY = 2 << 30  # bytes of the process


class BFCL:
    """A task. A turn of the user that was solved is paid 1, with the reply that ends it; all other replies 0.

    The outcome is 1 if all turns were solved.

    Args:
        turn_rewards: pay single turns; false: the outcome alone.

    Raises:
        MissingDependencyError: bfcl-eval is not installed.
    """

    def __init__(self, turn_rewards: bool = True) -> None:
        with needs(_MISSING):
            import bfcl_eval  # noqa: F401
            import mpmath  # noqa: F401
        self._paid = turn_rewards
        self._id = ""
        self._task: Mapping[str, Any] = {}
        self._tools: tuple[Tool, ...] = ()
        self._called: list[list[Call]] = []
        self._right: list[bool] = []

    def reset(self, row: Mapping[str, Any]) -> WorldStep:
        """Begin the task whose id is the row's last message.

        Raises:
            DataError: there is no such task.
        """
        *system, asked = row["messages"]
        self._id = str(asked["content"]).strip()
        tasks = _rows(_SUITE)
        if self._id not in tasks:
            hint = did_you_mean(self._id, tasks)
            raise DataError(
                f"the prompt of a row for bfcl is the id of a task, got {self._id[:40]!r}{hint}", field="prompt"
            )
        self._task, self._tools = tasks[self._id], tools_of(self._id)
        self._called, self._right = [[]], []
        first = self._task["question"][0]
        return WorldStep((*system, *first), state=self._name(), tools=self._tools)

    def step(self, message: Message) -> WorldStep:
        """Call what a reply calls; one without calls ends the user's turn."""
        calls = calls_of(message, message.get("bad_calls") or {})
        if calls:
            results = tuple(result_of(call, self._result(call)) for call in calls)
            return WorldStep(results, self._reward(False), state=self._name())
        self._right.append(self._is_right())
        reward, turns = self._reward(self._right[-1]), self._task["question"]
        if len(self._right) == len(turns):
            return WorldStep((), reward, done=True, outcome=float(all(self._right)))
        self._called.append([])
        return WorldStep(tuple(turns[len(self._right)]), reward, state=self._name())

    def _result(self, call: Mapping[str, Any]) -> str:
        """What a call returns; one that cannot be made is left out of the task."""
        if "bad" in call:
            return f"error: {call['bad']}"
        name, known = call["function"]["name"], [tool["function"]["name"] for tool in self._tools]
        if name not in known:
            return f"error: there is no function {name!r}{did_you_mean(name, known)}"
        turn = self._called[-1]
        turn.append({"name": name, "arguments": call["function"]["arguments"]})
        try:
            return str(self._ask({})["result"])
        except WorkerError:  # which the model can cause, so that it is no failure
            turn.pop()
            return f"error: {name} needs too much time or memory"

    def _is_right(self) -> bool:
        """Whether the turn is right; not where its calls leave no time or memory to judge it."""
        try:
            return bool(self._ask({"judge": True})["right"])
        except WorkerError:
            return False

    def _ask(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return _processes().request({"id": self._id, "turns": self._called, **more}, 10 * _SECONDS)

    def _reward(self, right: bool) -> float | None:
        return float(right) if self._paid else None

    def _name(self) -> str:
        """A hash of the state: equal calls in the same task lead to the same one."""
        return hashlib.sha256(json.dumps([self._id, self._called], sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _rows(name: str) -> dict[str, dict[str, Any]]:
    """Rows of a file of bfcl-eval, by their id or name."""
    text = resources.files("bfcl_eval").joinpath("data", name).read_text(encoding="utf-8")
    rows = map(json.loads, text.splitlines())
    return {row.get("id") or row["name"]: row for row in rows}


@functools.cache
def tools_of(task: str) -> tuple[Tool, ...]:
    """The functions of a task, as JSON schemas.

    Args:
        task: its id.
    """
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING as FILES

    row = _rows(_SUITE)[task]
    found: list[Tool] = []
    for kind in row["involved_classes"]:
        for name, function in _rows(f"multi_turn_func_doc/{FILES[kind]}").items():
            if name not in row.get("excluded_function", ()):
                parameters = _json_schema(function["parameters"])
                described = {"name": name, "description": function["description"], "parameters": parameters}
                found.append({"type": "function", "function": described})
    return tuple(found)


def _json_schema(given: Any) -> Any:
    """A schema with BFCL's names of types in those of JSON schema."""
    if isinstance(given, list):
        return [_json_schema(value) for value in given]
    if not isinstance(given, dict):
        return given
    found = {key: _json_schema(value) for key, value in given.items()}
    if isinstance(given.get("type"), str):
        found["type"] = _TYPES.get(given["type"], given["type"])
    return found


@functools.cache
def _processes() -> SubprocessPool:
    """The process of tasks, for all worlds of this one."""
    command = [sys.executable, "-m", "guerdon.worlds.bfcl"]
    return SubprocessPool(command, workers=1, once=True, start_seconds=120.0, description="process of bfcl")


# What runs in the process.


class Task:
    """The classes of a task, as they are at its beginning.

    Args:
        name: of the task.
    """

    def __init__(self, name: str) -> None:
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

        row = _rows(_SUITE)[name]
        self.classes: list[Any] = []
        for kind in row["involved_classes"]:
            made = getattr(import_module(CLASS_FILE_PATH_MAPPING[kind]), kind)()
            if kind not in STATELESS_CLASSES:
                made._load_scenario(json.loads(json.dumps(row["initial_config"].get(kind, {}))))
            self.classes.append(made)

    def method(self, name: str) -> Any:
        """The method of one of the classes."""
        return next(getattr(one, name) for one in self.classes if hasattr(one, name))

    def call(self, call: Call) -> str:
        """What a call returns, as text."""
        try:
            with boundary(DataError, ""):
                found = self.method(call["name"])(**call["arguments"])
        except GuerdonError as error:
            return f"error: {said_by(error.__cause__ or error)}"
        if isinstance(found, str):
            return found
        try:
            return json.dumps(found)
        except (TypeError, ValueError):  # numbers of mpmath, dates
            return str(found)

    def state(self) -> list[dict[str, Any]]:
        """The public attributes of the classes."""
        return [{key: value for key, value in vars(one).items() if not key.startswith("_")} for one in self.classes]


def gold_calls(name: str) -> list[list[Call]]:
    """The calls of the gold solution of a task, turn by turn; arguments by position get their names.

    Args:
        name: of the task.
    """
    task, found = Task(name), []
    for turn in _rows(f"possible_answer/{_SUITE}")[name]["ground_truth"]:
        calls: list[Call] = []
        for text in turn:
            call: Any = ast.parse(text, mode="eval").body
            values = [ast.literal_eval(value) for value in call.args]
            named = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
            bound = inspect.signature(task.method(call.func.id)).bind(*values, **named)
            calls.append({"name": call.func.id, "arguments": dict(bound.arguments)})
        found.append(calls)
    return found


def is_right(name: str, turns: Sequence[Sequence[Call]], task: Task, results: Sequence[str]) -> bool:
    """Whether the last of some turns is right.

    Args:
        name: of the task.
        turns: the calls of each.
        task: after these calls.
        results: of all of them.
    """
    solution, gold = gold_calls(name)[: len(turns)], Task(name)
    wanted: list[str] = []
    for turn in solution:
        wanted = [gold.call(call) for call in turn]
    if not solution[-1]:
        return True
    return bool(turns[-1]) and task.state() == gold.state() and Counter(wanted) <= Counter(results)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the last call; or whether the last turn is right."""
    name, turns = request["id"], request["turns"]
    task = Task(name)
    results = [task.call(call) for turn in turns for call in turn]
    if request.get("judge"):
        return {"right": is_right(name, turns, task, results)}
    return {"result": results[-1]}


def _import_classes() -> None:
    """Import the classes of all tasks, so that the first call does not pay for it."""
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    for kind in {kind for row in _rows(_SUITE).values() for kind in row["involved_classes"]}:
        import_module(CLASS_FILE_PATH_MAPPING[kind])


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    answer_requests(_answer, alarm=20 * _SECONDS, processor=_SECONDS, prepare=_import_classes)


if __name__ == "__main__":
    _main()
