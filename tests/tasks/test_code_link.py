"""Calls between a test and a program in two processes: what correct programs may do, and what no program may."""

import json
import os

import pytest
from test_code_tests import isolated

from guerdon.errors import DataError
from guerdon.tasks.code.code_calls import same_output
from guerdon.tasks.code.code_forms import tests_of_row as columns
from guerdon.tasks.code.code_tests import Sandbox, program_of, read_tests, run_tests

pytestmark = pytest.mark.skipif(not isolated(), reason="this machine has no namespaces for isolation")


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as process:
        yield process


def share(sandbox, body, program, cpu=5):
    """The share of one test, the body of `check(candidate)`, that a program with a function `f` passes."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    gold = json.dumps({"entry_point": "f", "test": f"def check(candidate):\n{lines}"})
    return run_tests(read_tests(gold), program, sandbox, cpu_seconds=cpu)


VALUES = (
    "1, -3, 1.5, float('inf'), 'a\\ud800\\n', True, None, (1, (2,)), [1, []], {1: [2], (3,): None}, {1}, "
    "frozenset({1}), "
    "b'x\\x00', bytearray(b'x'), 1 + 2j, 10**50, -(2**100_000), range(1, 9, 2), int, ValueError, "
    "collections.deque([1], 3), collections.Counter('aab'), collections.OrderedDict(b=1, a=2), "
    "collections.defaultdict(list, a=[1]), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5, 6), "
    "datetime.timedelta(1, 2, 3), decimal.Decimal('1.50'), fractions.Fraction(1, 3)"
)
HONEST = {
    "every plain value and its type": (
        f"import collections, datetime, decimal, fractions\nfor value in [{VALUES}]:\n    found = candidate(value)\n"
        "    assert found == value and type(found) is type(value), value",
        "def f(x): return x"),
    "not a number": ("assert candidate() != candidate()", "def f(): return float('nan')"),
    "named tuples": ("p = candidate(1)\nassert p == (1, 2) and p.y == 2",
                     "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(x): return P(x, 2)"),
    "views": ("assert candidate({'a': 1}) == {'a'}\nassert sorted(candidate({'b': 1})) == ['b']", "def f(x): return "
        "x.keys()"),
    "a list changed in place": (
        "x = [3, 1, 2]\nassert candidate(x) is None\nassert x == [1, 2, 3]", "def f(x): x.sort()"),
    "a row of a board": ("x = [[1], [2]]\nrow = x[0]\ncandidate(x)\nassert x == [[1, 9], [2]] and row == [1, 9]",
                         "def f(x): x[0].append(9)"),
    "a map, a set and an array": (
        "d, s, b = {'a': [1]}, {1}, bytearray(b'x')\nassert candidate(d, s, b=b) is d\n"
        "assert d == {'a': [1, 2], 'b': 3} and s == {2} and b == bytearray(b'xy')",
        "def f(d, s, b):\n    d['a'].append(2); d['b'] = 3; s.add(2); s.discard(1); b.extend(b'y'); return d"),
    "a copy": ("x = [1]\ny = candidate(x)\nassert y == x and y is not x", "def f(x): return list(x)"),
    "an argument that stays": ("x = [2, 1]\nassert candidate(x) == [1, 2] and x == [2, 1]", "def f(x): return "
        "sorted(x)"),
    "exceptions": (
        "for bad, kind in [(-1, ValueError), ('a', TypeError), (0, ZeroDivisionError), (2, KeyError)]:\n    try:\n"
        "        candidate(bad)\n    except kind as error:\n        assert bad != -1 or str(error) == 'negative'\n"
        "    else:\n"
        "        raise AssertionError(bad)",
        "def f(x):\n    if x < 0: raise ValueError('negative')\n    return {}[x] if x == 2 else 1 / x"),
    "an exception of its own": ("try:\n    candidate()\nexcept ArithmeticError as error:\n"
                                "    assert error.args == (3,)",
                                "class Odd(ArithmeticError): pass\ndef f(): raise Odd(3)"),
    "a generator": ("import types\ng = candidate(3)\nassert next(g) == 0 and list(g) == [1, 2]\n"
                    "assert isinstance(candidate(1), types.GeneratorType)\nassert list(candidate(0)) == []",
                    "def f(n):\n    for i in range(n): yield i"),
    "an endless iterator": ("g = candidate()\nassert [next(g) for _ in range(3)] == [0, 2, 4]",
                            "import itertools\ndef f(): return itertools.count(0, 2)"),
    "an iterator as argument": ("assert candidate(iter([1, 2]), (i for i in [3])) == [1, 2, 3]",
                                "def f(a, b): return [*a, *b]"),
    "a closure": ("assert candidate(2)(3) == 5", "def f(n): return lambda m: m + n"),
    "a callback": ("calls = []\nassert candidate(lambda x: calls.append(x) or 2 * x, [1, 2]) == [2, 4]\n"
                   "assert calls == [1, 2]",
                   "def f(g, xs): return list(map(g, xs))"),
    "a decorator": ("@candidate\ndef g(x):\n    return x + 1\nassert g(1) == 4",
                    "def f(g):\n    def wrapped(*a, **k): return 2 * g(*a, **k)\n    return wrapped"),
    "a callback that raises": ("def bad(x):\n    raise LookupError('no')\nassert candidate(bad) == 'no'",
                               "def f(g):\n    try: g(1)\n    except LookupError as error: return str(error)"),
    "an object of the test": ("class Node:\n    pass\nn = Node()\nn.value = 1\ncandidate(n)\nassert n.value == 2",
                              "def f(n): n.value += 1"),
    "a match": ("assert candidate('ab')\nassert not candidate('x')", "import re\ndef f(s): return re.match('a', s)"),
    "a coroutine": ("import asyncio\nassert asyncio.run(candidate(1)) == 2",
                    "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1"),
    "printing": ("import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
                 "    assert candidate(3) == 4\nassert out.getvalue() == '3\\n'",
                 "print('loaded')\ndef f(x):\n    print(x)\n    return x + 1"),
    "printing bytes": ("assert candidate() == 1", "import sys\ndef f():\n    sys.stdout.buffer.write(b'x'); return 1"),
    "typing without import": ("assert candidate([1]) == 1", "def f(x: List[int]) -> Optional[int]: return x[0]"),
    "a block for the command line": (
        "assert candidate(1) == 1", "def f(x): return x\nif __name__ == '__main__':\n    import sys\n"
                                    "    sys.exit(f(2))"),
    "recursion, classes, data classes": (
        "assert candidate(300) == 300",
        "from dataclasses import dataclass\n@dataclass\nclass N:\n    n: int\n"
        "def f(x): return x and N(1).n + f(x - 1)"),
    "a state between calls": ("assert [candidate(), candidate()] == [1, 2]",
                              "n = 0\ndef f():\n    global n\n    n += 1\n    return n"),
    "many calls": ("assert sum(candidate(i) for i in range(5000)) == 12497500", "def f(x): return x"),
    "deep recursion": ("assert candidate(990) == 990", "def f(x): return x and 1 + f(x - 1)"),
    "a callback that calls the program": (
        "@candidate\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
        "assert fib(90) == 2880067194370816120",
        "def f(g):\n    known = {}\n    def remember(n):\n        if n not in known: known[n] = g(n)\n"
        "        return known[n]\n    return remember"),
    "context managers": ("with candidate() as x:\n    assert x == 1",
                         "import contextlib\n@contextlib.contextmanager\ndef f(): yield 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_of_every_form_pass(name, sandbox):
    body, program = HONEST[name]
    assert share(sandbox, body, program) == 1


def test_classes_of_a_program(sandbox):
    program = (
        "class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n"
        "    def __mul__(self, k): return V(self.x * k)\n    def __lt__(self, o): return self.x < o.x\n"
        "    def __str__(self): return f'V{self.x}'\n    def __contains__(self, x): return x == self.x\n"
        "    def __getitem__(self, i): return self.x[i]\n"
        "class Box(list):\n    def double(self): return [2 * x for x in self]\n"
        "import enum\nclass Color(enum.Enum):\n    RED = 1\ndef paint(): return Color.RED\nLIMIT = 7\n"
    )
    gold = (
        "from solution import V, Box, Color, paint, LIMIT\ndef test_vector():\n    v = (V(1) + V(2)) * 2\n"
        "    assert v.x == 6 and str(v) == 'V6' and V(1) < V(2) and isinstance(v, V) and 6 in v\n    v.x = 'ab'\n"
        "    assert v[1] == 'b' and v == v and v != None and v is not None\n"
        "def test_box():\n    b = Box()\n    b.append(2)\n"
        "    assert b.double() == [4] and len(b) == 1 and list(b) == [2]\n"
        "def test_rest():\n    assert paint() == Color.RED and paint().value == 1 and LIMIT == 7\n"
    )
    assert run_tests(read_tests(gold), program, sandbox, cpu_seconds=5) == 1
    wrong = program.replace("self.x * k", "self.x").replace("2 * x", "x").replace("LIMIT = 7", "LIMIT = 8")
    assert run_tests(read_tests(gold), wrong, sandbox, cpu_seconds=5) == 0


@pytest.mark.hostile("programs")
@pytest.mark.parametrize(
    "check", ["assert Diff([1]) == [7]", "assert not Diff([1]) != [7]", "x = Diff([1])\nassert x == [7]"]
)
def test_a_function_with_the_name_of_a_class_is_no_class(check, sandbox):
    always = (
        "class Diff:\n    def __init__(self, x): pass\n    def __eq__(self, other): return True\n"
        "    __ne__ = __lt__ = __eq__\n"
    )
    gold = f"assert Diff([2]) == [3]\n{check}"
    assert run_tests(read_tests(gold), always, sandbox, cpu_seconds=5) == 0
    assert run_tests(read_tests(gold), "def Diff(x): return [7] if x == [1] else [3]", sandbox, cpu_seconds=5) == 1


@pytest.mark.hostile("programs")
def test_equality_that_only_the_program_could_tell_is_no_verdict(sandbox):
    always = "class V:\n    def __init__(self, x): pass\n    def __eq__(self, other): return True\n"
    gold = "from solution import V\ndef test_v():\n    assert V(1) == V(1)"
    with pytest.raises(DataError, match=r"not judged: it compares objects of the program's own class V with =="):
        run_tests(read_tests(gold), always, sandbox, cpu_seconds=5)


VECTOR = (
    "class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n"
    "    def __iadd__(self, o): self.x += 10 * o.x; return self\n    def __sub__(self, o): return V(self.x - o.x)\n"
    "    def __eq__(self, o): return self.x == o.x\ndef made(x): return V(x)\n"
)


@pytest.mark.hostile("programs")
@pytest.mark.parametrize(
    "test",
    ["assert V(1) + V(2) == V(3)", "assert made(2) == V(2)", "v = V(1) - V(2)\n    w = V(3)\n    assert v == w",
     "assert [V(1)] == [V(1)]", "assert V(1) != made(1)", "class W(V): pass\n    assert W(1).x == 1"],
)  # fmt: skip
def test_objects_of_the_programs_class_on_both_sides_are_no_verdict(test, sandbox):
    gold = f"from solution import V, made\ndef test_v():\n    {test}"
    with pytest.raises(DataError, match=r"not judged: it (compares objects of|derives a class from) the prog"):
        run_tests(read_tests(gold), VECTOR, sandbox, cpu_seconds=5)


def test_what_the_attributes_of_such_objects_say_is_judged(sandbox):
    gold = (
        "from solution import V\ndef test_v():\n    v = V(1) + V(2)\n    w = v\n    v += V(2)\n"
        "    assert v.x == 23 and w is v and w.x == 23 and (V(5) - V(3)).x == 2 and V(1) != None"
    )
    assert run_tests(read_tests(gold), VECTOR, sandbox, cpu_seconds=5) == 1
    assert run_tests(read_tests(gold), VECTOR.replace("10 *", ""), sandbox, cpu_seconds=5) == 0
    added = VECTOR.replace("__iadd__", "nothing")  # then `+=` is `+`
    assert run_tests(read_tests(gold), added, sandbox, cpu_seconds=5) == 0


@pytest.mark.hostile("programs")
@pytest.mark.parametrize("check", ["assert abs(Mean([1]) - 7.5) < 1e-6", "assert 7.5 - Mean([1]) == 0",
                                   "x = Mean([1])\nassert x == 7.5"])  # fmt: skip
def test_a_class_in_place_of_a_function_is_not_asked(check, sandbox):
    near = (
        "class Mean:\n    def __init__(self, x): pass\n    def __sub__(self, o): return 0.0\n"
        "    __rsub__ = __sub__\n    def __eq__(self, o): return True\n"
    )
    row = {"test_list": [check], "code": "def Mean(x): return 7.5"}
    tests = read_tests(columns(row))
    assert run_tests(tests, near, sandbox, cpu_seconds=5) == 0
    assert run_tests(tests, row["code"], sandbox, cpu_seconds=5) == 1


@pytest.mark.hostile("programs")
@pytest.mark.parametrize("lookup", ["f, V", "V, f", "V\nfrom solution import f"])
@pytest.mark.parametrize("alias", ["f = V", "W = V\ndef f(x): return W(x)", "def f(x): return V(x)"])
def test_a_function_by_another_name_of_a_class_is_no_class(lookup, alias, sandbox):
    near = "class V:\n    def __init__(self, x): self.x = x\n    def __sub__(self, o): return 0.0\n"
    gold = (
        f"from solution import {lookup}\ndef test_f():\n    assert abs(f(1) - 7) < 1e-6\n"
        "def test_v():\n    assert V(1).x == 1"
    )
    assert run_tests(read_tests(gold), f"{near}{alias}\n", sandbox, cpu_seconds=5) == 0.5
    assert run_tests(read_tests(gold), f"{near}def f(x): return 7\n", sandbox, cpu_seconds=5) == 1


def test_an_object_is_the_same_one_each_time(sandbox):
    program = (
        "class One:\n    _one = None\n    def __new__(cls):\n        cls._one = cls._one or object.__new__(cls)\n"
        "        return cls._one\nclass Node:\n    def __init__(self, v): self.v, self.next = v, None\n"
    )
    gold = (
        "from solution import One, Node\ndef test_one():\n    assert One() is One() and len({One(), One()}) == 1\n"
        "def test_nodes():\n    a, b = Node(1), Node(2)\n    a.next = b\n    b.next = a\n"
        "    assert a.next is b and a.next.next is a and a is not b and a.next.v == 2\n"
    )
    assert run_tests(read_tests(gold), program, sandbox, cpu_seconds=5) == 1
    assert run_tests(read_tests(gold), program.replace("cls._one or ", ""), sandbox, cpu_seconds=5) == 0.5


def test_decimals_of_functions_are_compared_as_those_of_outputs(sandbox):
    gold = json.dumps({"inputs": [[1], [2], [3]], "outputs": [0.3, [1.0, [2.5]], {"a": 1e300}], "fn_name": "f"})
    program = "def f(x): return [0.1 + 0.2, [1.0000001, (2.5,)], {'a': 1.00000001e300}][x - 1]"
    assert run_tests(read_tests(gold), program, sandbox, cpu_seconds=5) == 1
    for wrong in ("0.1 + 0.21", "True", "'0.3'", "None", "[0.3, 0.3]", "10**400", "float('nan')"):
        lines = program.replace("0.1 + 0.2,", f"{wrong},")
        assert run_tests(read_tests(gold), lines, sandbox, cpu_seconds=5) == pytest.approx(2 / 3), wrong
    whole = json.dumps({"inputs": [[1]], "outputs": [3], "fn_name": "f"})
    assert run_tests(read_tests(whole), "def f(x): return 3.0000001", sandbox, cpu_seconds=5) == 0


SEND = "import json, os\ndef send(*m): os.write(3, json.dumps(m).encode() + b'\\n')\n"
FAKES = {
    "an object that is equal to all": (
        "assert candidate(1) == 7\nassert not candidate(1) != 7",
        "class A:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
        "    __hash__ = None\ndef f(x): return A()"),
    "an object that is near to all": (
        "assert abs(candidate(1) - 7.5) < 1e-6",
        "class A:\n    def __sub__(self, o): return 0.0\n    __rsub__ = __sub__\n    def __abs__(self): return 0.0\n"
        "    def __float__(self): return 7.5\n    def __lt__(self, o): return True\ndef f(x): return A()"),
    "a member of every set": ("assert candidate(1) in {7, 8} or candidate(1) in [7, 8]",
                              "class A:\n    def __eq__(self, o): return True\n    def __hash__(self): return 7\n"
                              "def f(x): return A()"),
    "a number that is equal to all": (
        "assert candidate(1) == 7", "class A(int):\n    def __eq__(self, o): return True\n    __hash__ = None\n"
                                    "def f(x): return A(1)"),
    "a class of the same name as the function": (
        "assert candidate(1) == 7", "class f:\n    def __init__(self, x): pass\n    def __eq__(self, o): return True"),
    "an early end": ("assert candidate(1) == 7", "import os\ndef f(x): os._exit(0)"),
    "an early end at once": ("assert candidate(1) == 7", "import sys\nsys.exit(0)"),
    "an early end where errors are expected": (
        "try:\n    candidate(1)\nexcept BaseException:\n    pass", "import os\ndef f(x): os._exit(0)"),
    "an exit": ("assert candidate(1) == 7", "import sys\ndef f(x): sys.exit(0)"),
    "the end of a loop of the test": ("assert all(map(lambda x: candidate(x) == 7, [1]))", "def f(x): raise "
        "StopIteration"),
    "an end of the test's generator": ("assert all(candidate(x) == 7 for x in [1])", "def f(x): raise GeneratorExit"),
    "a skipped test": ("assert candidate(1) == 7", "import unittest\ndef f(x): raise unittest.SkipTest('no')"),
    "a patched builtin": ("assert len(candidate([1])) == 9",
                          "import builtins\nbuiltins.len = lambda x: 9\nbuiltins.isinstance = lambda a, b: True\n"
                          "def f(x): return x"),
    "frames": ("secret = 4711\nassert candidate(1) == secret",
               "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
               "        if 'secret' in frame.f_locals: return frame.f_locals['secret']\n        frame = frame.f_back"),
    "files": ("assert candidate(1) == 4711",
              "import glob, re\ndef f(x):\n"
              "    for name in glob.glob('/tmp/**', recursive=True) + ['/proc/1/mem', '/proc/self/mem']:\n"
              "        try:\n            if '47' + '11' in open(name, errors='replace').read(): return int('47' + "
              "'11')\n"
              "        except OSError: pass"),
    "objects in memory": ("assert candidate(1) == 4711",
                          "import gc\ndef f(x): return int('47' + '11') if any('47' + '11' in str(o)[:9999] for o "
                          "in gc.get_objects() if isinstance(o, dict) and 'wanted' in o) else 0"),
    "the globals of a callback": (
        "secret = 4711\nassert candidate(lambda: secret) == secret + 1",
        "def f(g):\n    try: return g.__globals__['secret'] + 1\n    except AttributeError: pass\n"
        "    try: return g._ask('get', '__globals__')['secret'] + 1\n    except Exception: return 0"),
    "a method of the test's object that is not public": (
        "class N:\n    _secret = 4711\nassert candidate(N()) == 4711",
        "def f(n):\n    for name in ('_secret', '__class__', '__dict__'):\n        try: return n._ask('get', name)\n"
        "        except Exception: pass"),
    "a reply of its own": ("assert candidate(1) == 7", SEND + "def f(x):\n    send('done', '', [], True); "
        "send('done', '', [], True)"),
    "an exception without a kind": ("assert list(map(candidate, [1])) == []\nassert all(map(candidate, [1]))",
                                    SEND + "def f(x):\n    send('raised', '', [], [], ['list', []], ['dict', []]); "
                                           "os._exit(0)"),
    "a call of what it was not given": ("assert candidate(1) == 7",
                                        SEND + "def f(x):\n    for i in range(-9, 9): send('call', i, [], {}); "
                                               "send('get', i, '__class__')\n    return 8"),
    "nonsense": ("assert candidate(1) == 7", "import os\ndef f(x):\n    os.write(3, b'\\xff\\x00{]\\n'); return 7"),
    "a verdict": ("assert candidate(1) == 7",
                  "import os\ndef f(x):\n    for i in range(64):\n"
                  "        try: os.write(i, b'{\"verdict\": \"passed\", \"detail\": \"\"}\\n')\n"
                  "        except OSError: pass\n    os._exit(0)"),
    "a number of 10^9 digits": ("assert candidate(1) == 7", SEND + "def f(x):\n    send('done', '', [], "
        "['fraction', '1e999999999', '0x1'])"),
    "a decimal of 10^9 digits": ("assert candidate(1) == 7 or candidate(1) + 1 > candidate(1) * 1 and "
                                 "int(candidate(1)) == 7",
                                 SEND + "def f(x):\n    send('done', '', [], ['decimal', '1e999999999'])"),
    "digits without end": ("assert candidate(1) == 7", "import os\ndef f(x):\n"
                                                       "    os.write(3, b'[\"done\",\"\",[],' + b'9' * 4_000_000 + "
                                                       "b']\\n')"),
    "nesting without end": ("assert candidate(1) == 7", "import os\ndef f(x):\n"
                                                        "    os.write(3, b'[\"done\",\"\",[],' + b'[' * 4_000_000 + "
                                                        "b'\\n')"),
    "a line without end": ("assert candidate(1) == 7", "import os\ndef f(x):\n"
                                                       "    while True: os.write(3, b'9' * 65536)"),
    "an endless loop": ("assert candidate(1) == 7", "def f(x):\n    while True: pass"),
    "a list without end": ("assert candidate(1) == 7", "def f(x): return [0] * (1 << 25)"),
    "an endless iterator": ("assert list(candidate(1)) == [7]", "import itertools\n"
        "def f(x): return itertools.repeat(7)"),
}  # fmt: skip


@pytest.mark.hostile("programs")
@pytest.mark.parametrize("name", FAKES)
def test_no_program_passes_a_test_but_by_its_values(name, sandbox):
    body, program = FAKES[name]
    assert share(sandbox, body, program, cpu=2) == 0
    assert share(sandbox, "assert candidate(1) == 7", "def f(x): return 7") == 1  # and the next one is judged


def test_a_value_may_be_large(sandbox):
    assert (
        share(
            sandbox,
            "assert candidate(17) % 1000 == 72 and candidate(17) == 2 ** (2 ** 17)",
            "def f(x): return 2 ** 2 ** x",
        )
        == 0
    )
    assert share(sandbox, "assert candidate(17) == 2 ** (2 ** 17)", "def f(x): return 2 ** 2 ** x") == 1


FAMILIES = """
import ctypes, errno, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def refused(made):
    return made == -1 and ctypes.get_errno() == errno.EAFNOSUPPORT
pair = (ctypes.c_int * 2)()
FAMILIES = {"INET": 2, "INET6": 10, "NETLINK": 16, "PACKET": 17, "VSOCK": 40, "XDP": 44, "ALG": 38, "BLUETOOTH": 31}
for name, family in FAMILIES.items():
    for kind in (1, 2, 3):
        assert refused(libc.socket(family, kind, 0)), name
        assert refused(libc.socketpair(family, kind, 0, pair)), name
assert refused(libc.syscall(ctypes.c_long(41 if X86 else 198), ctypes.c_ulong((1 << 32) | 2), 1, 0))
a, b = socket.socketpair()
a.sendall(b"x")
assert b.recv(1) == b"x"
socket.socket(socket.AF_UNIX).close()
print("all")
"""
OTHER_NUMBERS = {
    "x32": "libc.syscall(ctypes.c_long(0x40000000 | 41), 2, 1, 0)",
    "32 bits": "run(bytes.fromhex('b867010000bb02000000b901000000ba00000000cd80c3'))",
}


@pytest.mark.hostile("programs")
def test_a_program_has_no_sockets_but_local_ones(sandbox):
    (result,) = sandbox.run(FAMILIES, [{"stdin": "", "most": 99}], 5)
    assert result == {"state": "done", "output": "all\n"}


@pytest.mark.hostile("programs")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its other numbers of system calls")
@pytest.mark.parametrize("name", OTHER_NUMBERS)
def test_calls_by_the_numbers_of_another_architecture_end_a_program(name, sandbox):
    head = (
        "import ctypes, mmap\nlibc = ctypes.CDLL(None)\ndef run(code):\n    page = mmap.mmap(-1, 4096, prot=7)\n"
        "    page.write(code)\n"
        "    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n"
    )
    ended, fine = sandbox.run(head + "import sys\nif input(): " + OTHER_NUMBERS[name] + "\nprint('on')",
                              [{"stdin": text, "most": 99} for text in ("x\n", "\n")], 5)  # fmt: skip
    assert ended["state"] == "failed"
    assert fine == {"state": "done", "output": "on\n"}


@pytest.mark.hostile("programs")
def test_outputs_are_compared_in_linear_time():
    long = "1" * 3_000_000
    assert not same_output("1.5", f"{long}x")
    assert not same_output(f"{long}.5", f"{long}.6")
    assert same_output(f"{long}.5", f"{long}.5")
    assert not same_output("1.5", "1" * 300 + "." + "1" * 99 + "e" + "9" * 99)
    assert program_of("```python\n" * 100_000) is None
    assert program_of("```python\n" * 3 + "x\n```") == "```python\n```python\nx\n"


@pytest.mark.hostile("programs")
def test_long_outputs_are_judged_like_short_ones(sandbox):
    gold = json.dumps({"inputs": ["1"], "outputs": ["0.5"]})
    for program in ("print('9' * 250_000)", "print('.' + '9' * 250_000)", "print('1e' + '9' * 200_000)"):
        assert run_tests(read_tests(gold), program, sandbox, cpu_seconds=2) == 0
