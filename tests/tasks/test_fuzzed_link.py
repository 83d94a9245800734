"""What a program can write on its socket to the test, at random: never a pass, never a hang, and the next is judged.

A test looks for a number that the program does not know. The program writes messages of its own, whole, cut, huge, or
between those of its process, or has its process answer with values that it made up.
"""

import json

import pytest
from hypothesis import strategies as st
from test_code_tests import isolated

from fuzzing import LIMIT_S, fuzz
from guerdon.errors import DataError
from guerdon.tasks.code.code_tests import Sandbox, read_tests, run_tests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S),
    pytest.mark.skipif(not isolated(), reason="this machine has no namespaces for isolation"),
]

SECRET = 470_411_862_947
LOOKS = [  # for the number, in every way in which tests look at what a function gives
    "assert candidate(1) == {0}", "assert not candidate(1) != {0}", "assert abs(candidate(1) - {0}) < 1e-6",
    "assert candidate(1) in ({0},)", "assert candidate(1) in {{{0}, 8}}", "assert {0} in candidate(1)",
    "assert list(candidate(1)) == [{0}]", "assert sorted(candidate([1])) == [{0}]", "assert next(candidate(1)) == {0}",
    "x = [1]\ncandidate(x)\nassert x == [{0}]", "x = {{1: [2]}}\ncandidate(x)\nassert x[1] == [{0}]",
    "try:\n    candidate(1)\nexcept ValueError as error:\n    assert error.args == ({0},)\nelse:\n    assert False",
    "class N:\n    _secret = {0}\nassert candidate(N()) == {0}", "assert candidate(1).x == {0}",
    "assert candidate(1)(2) == {0}", "assert candidate(lambda: {0}) == {0} + 1", "assert candidate(1)[0] == {0}",
    "assert str(candidate(1)) == '{0}'", "assert float(candidate(1)) == {0}", "assert int(candidate(1)) == {0}",
    "assert candidate(1) >= {0} and candidate(2) <= {0}", "with candidate(1) as x:\n    assert x == {0}",
    "import asyncio\nassert asyncio.run(candidate(1)) == {0}", "assert max(candidate(1), candidate(2)) == {0}",
    "for value in candidate(1):\n    assert value == {0}\nassert value == {0}", "assert f'{{candidate(1)}}' == '{0}'",
    "import math\nassert math.isclose(candidate(1), {0})", "assert candidate(1) + 1 == {0} + 1",
]  # fmt: skip

names = st.sampled_from(["f", "A", "x", "_secret", "__class__", "__dict__", "__eq__", "__globals__", "__name__", "",
"int",
                         "object", "type", "ValueError", "StopIteration", "GeneratorExit", "SystemExit", "KeyError",
                         "BaseException", "NotJudgedError", "Skipped", "generator", "coroutine", "class"])  # fmt: skip
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.floats(), names, st.text(max_size=5),
    st.sampled_from([10**30, "0x1", "-0x1", "0x0", "1e999999999", "Infinity", "NaN", "\ud800", "2020-01-01",
    "9" * 5000]),
)  # fmt: skip
KINDS = [
    "list",
    "tuple",
    "set",
    "frozenset",
    "deque",
    "keys",
    "values",
    "items",
    "dict",
    "Counter",
    "OrderedDict",
    "defaultdict",
    "named",
    "int",
    "scalar",
    "complex",
    "bytes",
    "bytearray",
    "range",
    "fraction",
    "decimal",
    "timedelta",
    "datetime",
    "date",
    "time",
    "type",
    "error",
    "errors",
    "mine",
    "yours",
    "argument",
    "nothing",
]
ACTIONS = ["get", "set", "iter", "next", "len", "bool", "getitem", "setitem", "delitem", "str", "repr", "enter", "exit",
           "await", "isinstance", "operator", "call", "done", "raised", "nothing"]  # fmt: skip


def kinds(inner):
    """Values in the form of the link, with parts that fit their kind and with others."""
    several = st.lists(inner, max_size=3)
    pairs = st.lists(st.tuples(inner, inner).map(list), max_size=3)
    return st.one_of(
        st.tuples(st.sampled_from(KINDS[:7]), several).map(list),
        st.tuples(st.sampled_from(KINDS[7:12]), pairs).map(list),
        st.tuples(st.just("named"), names, st.lists(names, max_size=2), several).map(list),
        st.tuples(st.just("mine"), st.integers(-1, 5), names, names).map(list),
        st.tuples(st.sampled_from(["yours", "argument"]), st.integers(-2, 4)).map(list),
        st.tuples(st.just("errors"), st.lists(names, max_size=3)).map(list),
        st.tuples(st.just("error"), st.lists(names, max_size=3), inner, inner).map(list),
        st.builds(lambda kind, parts: [kind, *parts], st.sampled_from(KINDS), several),
        several,
        st.dictionaries(names, inner, max_size=2),
    )


values = st.recursive(plain, kinds, max_leaves=8)
changed = st.lists(st.tuples(st.integers(-1, 2), values).map(list), max_size=2)
printed = st.sampled_from(["", "x\n", "x" * 5000]) | plain
messages = st.one_of(
    st.tuples(st.just("done"), printed, changed, values).map(list),
    st.tuples(st.just("raised"), printed, changed, st.lists(names, max_size=3), values, values).map(list),
    st.tuples(st.just("call"), st.integers(-2, 5), st.lists(values, max_size=2), st.dictionaries(names, values,
    max_size=1)),
    st.builds(lambda action, number, parts: [action, number, *parts], st.sampled_from(ACTIONS), st.integers(-2, 5),
              st.lists(names | values, max_size=3)),
    values,
)  # fmt: skip


def line(message):
    """A message as bytes."""
    return json.dumps(message).encode() + b"\n"


lines = messages.map(line)
cut = st.builds(lambda data, share: data[: int(share * len(data))], lines, st.floats(0, 1))
flipped = st.builds(
    lambda data, share, new: data[: int(share * len(data))] + new + data[int(share * len(data)) + 1 :],
    lines, st.floats(0, 1), st.binary(max_size=3),
)  # fmt: skip
HUGE = ["b'9' * 9_000_000", "b'[' * 3_000_000 + b'\\n'", "b'[\"done\",\"\",[],' + b'9' * 5_000_000 + b']\\n'",
        "b'\\n' * 100_000", "b'[\"done\",\"\",[],0]\\n' * 20_000", "b'[\"call\",0,[],{}]\\n' * 20_000",
        "b'[\"done\",\"' + b'x' * 7_000_000 + b'\",[],1]\\n'"]  # fmt: skip
pieces = st.lists(st.one_of(lines, lines, cut, flipped, st.binary(max_size=20)).map(repr) | st.sampled_from(HUGE),
                  min_size=1, max_size=6).map(lambda found: f"[{', '.join(found)}]")  # fmt: skip
ENDS = ["return 8", "return x", "raise ValueError(8)", "os._exit(0)", "return A()", "return iter([8])",
        "while True: pass",
        "return f", "os.close(3)", "return x() + 0 if callable(x) else [8]"]  # fmt: skip
HEAD = """
import os, sys, threading
class A:
    x = 8
    def __eq__(self, other): return True
    def __iter__(self): return iter([8])
link = sys.modules["guerdon.tasks.code.code_link"]
def write(pieces):
    try:
        for piece in pieces:
            os.write(3, piece)
    except OSError:
        pass
"""
ways = st.sampled_from(["early", "called", "beside", "answers", "values", "names"])


def program(way, written, made, end):
    """A program that writes at its start, when it is called, or from a thread, or changes what its process says."""
    start = {
        "early": f"write({written})",
        "called": "",
        "beside": f"threading.Thread(target=write, args=({written},), daemon=True).start()",
        "answers": f"MADE = {made!r}\nlink.Link._answer = lambda self, message: MADE[message[0] == 'call']",
        "values": f"MADE = {made!r}\nlink.Link.pack = lambda self, value, arguments=(): MADE[callable(value)][-1]",
        "names": f"MADE = {made!r}\nlink.Link._mine = lambda self, value: ['mine', 1, *MADE[0]][:4]",
    }[way]
    now = f"    write({written})\n" if way in ("called", "names") else ""
    return f"{HEAD}{start}\ndef f(x=0, **named):\n{now}    {end}\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as process:
        yield process


def judged(sandbox, look, source):
    """The share of one test that a program passes; None: there is no verdict, or it is not the program's to give."""
    body = "".join(f"    {text}\n" for text in look.format(SECRET).split("\n"))
    gold = json.dumps({"entry_point": "f", "test": f"def check(candidate):\n{body}"})
    try:
        found = run_tests(read_tests(gold), source, sandbox, cpu_seconds=1)
    except DataError:
        return None
    assert found is not None, "a sandbox ended or did not answer in time"
    return found


@pytest.mark.hostile("programs")
def test_no_bytes_on_the_link_are_a_pass(sandbox):
    def run(look, way, written, made, end):
        source = program(way, written, made, end)
        assert not judged(sandbox, look, source), source

    fuzz(
        run, examples=100, look=st.sampled_from(LOOKS), way=ways, written=pieces,
        made=st.lists(messages.map(list_of), min_size=2, max_size=2), end=st.sampled_from(ENDS),
    )  # fmt: skip
    assert judged(sandbox, LOOKS[0], f"def f(x): return {SECRET}") == 1


def list_of(message):
    """A message, which has parts."""
    return list(message) if isinstance(message, list | tuple) and message else [message]


@pytest.mark.parametrize("look", LOOKS)
def test_every_look_is_passed_by_a_program_that_knows_the_number(look, sandbox):
    knows = {
        "list(": "return [S]", "sorted(": "return [S]", "next(": "return iter([S])", "value in": "return [S]",
        "in candidate": "return [S]", "x == [": "x[:] = [S]", "x[1]": "x[1][:] = [S]", "except": "raise ValueError(S)",
        ".x ==": "return P(S)", "(1)(2)": "return lambda y: S", "lambda:": "return x() + 1", ")[0]": "return [S]",
        "with": "return contextlib.nullcontext(S)", "asyncio": "return later()",
    }  # fmt: skip
    end = next((end for part, end in knows.items() if part in look), "return S")
    head = "import collections, contextlib\nP = collections.namedtuple('P', 'x')\nasync def later(): return S\n"
    assert judged(sandbox, look, f"S = {SECRET}\n{head}def f(x): {end}\n") == 1
