"""Tools of an agent: schemas, calls in processes, failures, the calculator and programs."""

import time
from pathlib import Path

import pytest

from guerdon.errors import ConfigError
from guerdon.settings.agent import ToolAgentSettings
from guerdon.tasks.tools import Tools, calculator, schemas_of
from tables import cases


@pytest.fixture(scope="module")
def tools():
    with Tools(
        ["agent_functions:add", "agent_functions:misbehave", "calculator", "python"], call_timeout=4.0, calls_at_once=1
    ) as found:
        yield found


def test_schemas_come_from_types_and_docstring(tools):
    assert tools.schemas[0] == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first"},
                    "b": {"type": "integer", "description": "the second"},
                },
                "required": ["a", "b"],
            },
        },
    }


CALLS = [
    ("add", {"a": 1, "b": 2}, "3", None, False),
    ("add", {"a": 1}, "error: add: the argument 'b' is missing", None, True),
    ("add", {"a": 1, "b": 2, "c": 3}, "error: add: there is no argument 'c'; there are a, b", None, True),
    ("ad", {}, "error: there is no function 'ad'; there are add, misbehave, calculator, python; did you mean add?",
     None, True),
    ("misbehave", {"how": "raise"}, "error: ValueError: no such page", None, False),
    ("misbehave", {"how": "fail"}, "", "tool_failure", False),
    ("misbehave", {"how": "read"}, "nothing to read", None, False),
    ("misbehave", {"how": "half"}, "error: the result of misbehave cannot be read: there is half of a surrogate pair "
     "('\\ud800') at character 1, in 'a\\ud800'", None, False),
    ("misbehave", {"how": "die"}, "", "tool_died", False),
    ("misbehave", {"how": "hang"}, "", "tool_timeout", False),
    ("calculator", {"expression": "12 * (3 + 4)"}, "84", None, False),
    ("python", {"code": "print(6 * 7)\n1 / 0"},
     'Traceback:\n  File "program", line 2, in <module>\nZeroDivisionError: division by zero\n', None, False),
    ("python", {"code": "while True: pass"}, "error: the program computed", None, False),
]  # fmt: skip


@cases("name, arguments, text, failure, wrong", CALLS)
def test_calls(tools, name, arguments, text, failure, wrong):
    found = tools.call(name, arguments)
    assert (found.failure and found.failure.reason, found.wrong) == (failure, wrong)
    assert text in found.text if name == "python" else found.text == text


@pytest.mark.parametrize("how", ["wait", "leave"])
def test_what_a_tool_started_ends_with_its_process(how, tmp_path, monkeypatch):
    monkeypatch.setenv("LEFT", str(tmp_path / "left"))
    with Tools(["agent_functions:misbehave"], call_timeout=1.0, calls_at_once=1) as found:
        result = found.call("misbehave", {"how": how})
        assert (result.failure and result.failure.reason) == ("tool_timeout" if how == "wait" else None)
    number = int((tmp_path / "left").read_text())
    deadline = time.monotonic() + 60
    while _runs(number):
        assert time.monotonic() < deadline


def _runs(number):
    """Whether a process is there, and not only waited for."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


SUMS = [
    ("2 + 3", "5"), ("7 / 2", "3.5"), ("8 / 2", "4"), ("-2 ** 2", "-4"), ("7 // 2 % 2", "1"), ("2^10", "1024"),
    ("1 / 0", "error: division by zero"), ("9**9**9", "error: the result is too large"), ("(1", "error: "),
    ("a + 1", "error: only numbers"), ("__import__('os')", "error: only numbers"),
    ("(-1) ** 0.5", "error: the result is not"), ("1e400 - 1", "error: the result is too large"),
    ("1e308 * 10", "error: the result is too large"),
]  # fmt: skip


@cases("expression, value", SUMS)
def test_calculator(expression, value):
    assert calculator(expression).startswith(value)


REFUSED = [
    (["agent_functions:untyped"], "has no types or no description"),
    (["agent_functions:silent"], "agent_functions:silent has no docstring"),
    (["agent_parts:Counting"], "is a type, not a function"),
    (["agent_functions:later"], "agent_functions:later is async"),
    (["agent_functions:yields"], "agent_functions:yields yields its results"),
    (["agent_functions:several"], r"has the argument '\*a', which a call cannot give by name"),
    (["agent_functions:unnamed"], "has the argument 'a', which a call cannot give by name"),
    (["agent_functions:Keeper.look"], "has the argument 'self': name a function, or a method of an object"),
    (["agent_functions:paint"], "takes a Colour as 'colours', and a call has JSON values: take typing.Literal"),
    (["operator:add"], "operator:add has the argument 'a', which a call cannot give by name"),
    (["agent_functions:add", "agent_functions:plus"], "two functions are called add"),
]


@cases("names, words", REFUSED)
def test_functions_that_are_no_tools(names, words):
    with pytest.raises(ConfigError, match=words) as refused:
        schemas_of(names)
    assert refused.value.key == "agent.tools"


def test_methods_of_objects_and_enumerations_of_texts_are_tools():
    look, tint = schemas_of(["agent_functions:keeper.look", "agent_functions:tint"])
    assert list(look["function"]["parameters"]["properties"]) == ["a"]
    assert tint["function"]["parameters"]["properties"]["colour"]["enum"] == ["red"]


NAMES = [
    ([], "there is no tool"),
    (["calculator", "calculator"], "calculator is named twice"),
    (["calculater"], "unknown tool 'calculater'.*did you mean 'calculator'"),
    (["agent_functions:nothing"], "there is no nothing in agent_functions"),
    (["no_such_module:f"], "there is no module no_such_module"),
    (["agent_functions:number"], "is a int and cannot be called"),
]


@cases("names, words", NAMES)
def test_names_of_tools(names, words):
    with pytest.raises(ValueError, match=words):
        ToolAgentSettings(tools=names)
