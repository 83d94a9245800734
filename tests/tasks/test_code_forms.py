"""The forms in which public data sets hold tests: hand-written tasks of each, through files of rows, both ways.

The columns are those of public sources: openai/human-eval (data/HumanEval.jsonl.gz); the package evalplus 0.3.1 (its
HumanEval+ and MBPP+); LiveCodeBench's lcb_runner/benchmarks/code_generation.py (public_test_cases,
private_test_cases, metadata.func_name); rllm-org/rllm's rllm/rewards/code_reward.py (TACO, APPS, DeepCoder,
PrimeIntellect, KodCode); and the cards of KodCode-V1, mbpp, mbppplus, AceCode-87K and LeetCodeDataset.
"""

import json
from datetime import date

import numpy as np
import pytest
from test_code_tests import isolated, settings_for

from guerdon.errors import DataError
from guerdon.settings.data import FilesDataSettings
from guerdon.tasks.code.code_forms import tests_from as read
from guerdon.tasks.code.code_forms import tests_of_row as columns
from guerdon.tasks.code.code_tests import Sandbox, is_code, read_tests, run_tests
from guerdon.tasks.prompt_files import load_prompts
from guerdon.tasks.verifier import Verifier
from memory_rows import prompt_from_row
from tables import cases

needs_isolation = pytest.mark.skipif(not isolated(), reason="this machine has no namespaces for isolation")

HUMANEVAL = {
    "task_id": "HumanEval/x", "entry_point": "undo",
    "prompt": "def shift(s: str):\n    return ''.join(chr((ord(c) - 95) % 26 + 97) for c in s)\n\n\n"
              "def undo(s: str):\n    \"\"\"Undo shift.\n    >>> undo('cd')\n    'ab'\n    \"\"\"\n",
    "canonical_solution": "    return ''.join(chr((ord(c) - 99) % 26 + 97) for c in s)\n",
    "test": "METADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    import random\n    import string\n"
            "    for _ in range(9):\n        s = ''.join(random.choice(string.ascii_lowercase) for _ in range(5))\n"
            "        assert candidate(shift(s)) == s\n    assert True\n",
}  # fmt: skip
PLUS = {
    "entry_point": "halves", "prompt": "def halves(xs):\n    \"\"\"Half of each.\"\"\"\n",
    "test": "import numpy as np\nfrom math import inf\n\ndef is_floats(x) -> bool:\n    if isinstance(x, float):\n"
            "        return True\n"
            "    return isinstance(x, (list, tuple)) and all(isinstance(i, float) for i in x)\n\n\n"
            "def assertion(out, exp, atol):\n    if atol == 0 and is_floats(exp):\n        atol = 1e-6\n"
            "    if out != exp and atol != 0:\n        assert np.allclose(out, exp, rtol=1e-07, atol=atol)\n    else:\n"
            "        assert out == exp, 'different'\n\n\ndef check(candidate):\n"
            "    inputs = [[[1, 2]], [[]], [[inf]]]\n"
            "    results = [[0.5, 1.0], [], [inf]]\n    for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
            "        assertion(candidate(*inp), exp, 0)\n",
}  # fmt: skip
MBPP = {
    "text": "Write a function that adds one.", "code": "def inc(x):\n    return x + 1",
    "test_list": ["assert inc(1) == 2", "assert inc(-1) == 0", "assert math.isclose(inc(0.5), 1.5)"],
    "test_setup_code": "", "test_imports": ["import math"], "challenge_test_list": [],
}  # fmt: skip
CLASSES = {
    "prompt": "Write a function to find the longest chain of pairs.",
    "test_list": ["assert chain([Pair(5, 24), Pair(15, 25), Pair(27, 40)]) == 2", "assert height(tree) == 2"],
    "test_setup_code": "tree = Node(1)\ntree.left = Node(2)",
}  # fmt: skip
SUM_NAMED = {"prompt": "The sum of the common divisors.", "code": "def sum(a, b):\n    return a + b",
             "test_list": ["assert sum(10, 15) == 6", "assert sum(4, 6) == 3"]}  # fmt: skip
LIVE = {
    "question_content": "Add n to all.", "starter_code": "class Solution:\n    def add(self, xs, n):\n        ",
    "public_test_cases": json.dumps([{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "[]\n3", "output": "[]", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "add"}),
}  # fmt: skip
STDIN = {
    "question_content": "Add one.", "starter_code": "", "metadata": "{}",
    "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
    "private_test_cases": [{"input": "7\n", "output": "8\n", "testtype": "stdin"}],
}  # fmt: skip
APPS = {"question": "Add.", "solutions": "[]",
        "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]})}  # fmt: skip
SYNTHETIC = {"prompt": "Add one.", "verification_info": str({"language": "python", "test_cases": [
    {"type": "stdin_stdout", "input": "1\n", "output": "2\n", "fn_name": None}]})}  # fmt: skip
DEEPCODER = {"problem": "Add.", "tests": json.dumps([
    {"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}])}  # fmt: skip
ACECODE = {"question": "Count.", "test_cases": ["assert count('aab', 'a') == 2", "assert count('', 'a') == 0"]}
KODCODE = {
    "question": "Write a stack.", "solution": "class Stack: ...",
    "test": "import pytest\nfrom solution import Stack, EmptyError\n\n\ndef test_push_and_pop():\n    stack = Stack()\n"
            "    stack.push(1)\n    assert len(stack) == 1 and stack.pop() == 1\n\n\ndef test_empty():\n"
            "    with pytest.raises(EmptyError, match='empty'):\n        Stack().pop()\n\n\n"
            "@pytest.mark.parametrize('items', [[], [1, 2]])\ndef test_items(items):\n    stack = Stack()\n"
            "    for item in items:\n        stack.push(item)\n    assert stack.items == items\n\n\n"
            "def test_show(capsys):\n    Stack().show()\n    assert capsys.readouterr().out == '[]\\n'\n",
}  # fmt: skip
STACK = """class EmptyError(Exception):
    pass

class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
    def pop(self):
        if not self.items:
            raise EmptyError("the stack is empty")
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    def show(self):
        print(self.items)
"""
UNITTEST = {
    "question": "Double.", "entry_point": "task_func",
    "test": "import unittest\n\nclass TestCases(unittest.TestCase):\n    def setUp(self):\n        self.x = 2\n"
            "    def test_value(self):\n        self.assertEqual(task_func(self.x), 4)\n    def test_text(self):\n"
            "        with self.assertRaises(TypeError):\n            task_func(None)\n\nif __name__ == '__main__':\n"
            "    unittest.main()\n",
}  # fmt: skip
LEETCODE = {
    "query": "Reverse a linked list.", "entry_point": "Solution().reverse",
    "prompt": "from typing import *\nclass ListNode:\n    def __init__(self, val=0, next=None):\n"
              "        self.val = val\n"
              "        self.next = next\ndef list_node(values):\n    head = None\n    for v in reversed(values):\n"
              "        head = ListNode(v, head)\n    return head\ndef is_same_list(a, b):\n    while a and b:\n"
              "        if a.val != b.val:\n            return False\n        a, b = a.next, b.next\n"
              "    return not a and not b\n",
    "test": "def check(candidate):\n"
            "    assert is_same_list(candidate(head = list_node([1, 2, 3])), list_node([3, 2, 1]))\n",
}  # fmt: skip
PAIRS = """class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b

class Node:
    def __init__(self, value):
        self.value, self.left, self.right = value, None, None

def chain(pairs):
    best = [1] * len(pairs)
    for i, pair in enumerate(pairs):
        for j in range(i):
            if pairs[j].b < pair.a:
                best[i] = max(best[i], best[j] + 1)
    return max(best)

def height(node):
    return 0 if node is None else 1 + max(height(node.left), height(node.right))
"""
IN_PLACE = """class Solution:
    def reverse(self, head: Optional[ListNode]) -> Optional[ListNode]:
        before = None
        while head:
            head.next, before, head = before, head, head.next
        return before
"""
ROWS = {  # a row, a right program, a wrong one, the share that it passes
    "humaneval": (HUMANEVAL, HUMANEVAL["prompt"] + HUMANEVAL["canonical_solution"], "def undo(s): return s", 0),
    "humaneval, the helper faked": (
        HUMANEVAL, "def undo(s):\n    return ''.join(chr((ord(c) - 99) % 26 + 97) for c in s)",
        "def shift(s): return s\ndef undo(s): return s", 0),
    "humaneval plus": (PLUS, "def halves(xs): return [x / 2 + 1e-9 for x in xs]", "def halves(xs): return xs", 0),
    "mbpp": (MBPP, "def inc(x): return x + 1", "def inc(x): return 2 if x == 1 else 0", 2 / 3),
    "mbpp with classes": (CLASSES, PAIRS, PAIRS.replace("1 + max(", "0 + max("), 1 / 2),
    "mbpp, named as a builtin": (SUM_NAMED, "def sum(a, b): return {10: 6, 4: 3}[a]", "def sum(a, b): return 6", 1 / 2),
    "livecodebench": (LIVE, "class Solution:\n    def add(self, xs: List[int], n: int): return [x + n for x in xs]",
                      "def add(xs, n): return []", 1 / 2),
    "livecodebench, stdin": (STDIN, "print(int(input()) + 1)", "print(2)", 1 / 2),
    "apps": (APPS, "def add(a, b): return a + b", "def add(a, b): return [4]", 0),
    "synthetic-1": (SYNTHETIC, "print(int(input()) + 1)", "print(1)", 0),
    "deepcoder": (DEEPCODER, "def add(a, b): return a + b", "def add(a, b): return a - b", 0),
    "acecode": (ACECODE, "def count(s, c): return s.count(c)", "def count(s, c): return len(s)", 1 / 2),
    "kodcode": (KODCODE, STACK, STACK.replace("raise EmptyError", "return str").replace("print(", "len("), 1 / 2),
    "unittest": (UNITTEST, "def task_func(x): return 2 * x", "def task_func(x): return 4", 0),
    "leetcode": (LEETCODE, IN_PLACE, IN_PLACE.replace("return before", "return head"), 0),
    "leetcode, a new list": (
        LEETCODE, "class Solution:\n    def reverse(self, head):\n        found = None\n"
                  "        while head is not None:\n"
        "            found = ListNode(head.val, found)\n            head = head.next\n        return found",
        "class Solution:\n    def reverse(self, head): return head", 0),
}  # fmt: skip
ROWS["unittest"] = (UNITTEST, "def task_func(x): return x + x if x else x + 0", "def task_func(x): return 4", 0)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as process:
        yield process


@needs_isolation
@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_each_form_judges_right_and_wrong_programs(name, sandbox):
    row, right, wrong, share = ROWS[name]
    prompt = prompt_from_row(row, "line 1", "x")
    assert is_code(prompt.ability, prompt.ground_truth)
    tests = read_tests(prompt.ground_truth)
    assert run_tests(tests, right, sandbox, cpu_seconds=5) == 1
    assert run_tests(tests, wrong, sandbox, cpu_seconds=5) == pytest.approx(share)


@needs_isolation
def test_files_of_rows_are_read_and_judged(tmp_path):
    stored = {"prompt": [{"role": "user", "content": "Double."}], "data_source": "x", "ability": "code",
              "reward_model": {"style": "rule", "ground_truth": {"inputs": ["1"], "outputs": ["2"]}}}  # fmt: skip
    files = [tmp_path / f"{number}.jsonl" for number in range(6)]
    for file, row in zip(files, [HUMANEVAL, KODCODE, LIVE, MBPP, LEETCODE, stored], strict=True):
        file.write_text(json.dumps(row) + "\n")
    train, _ = load_prompts(FilesDataSettings(train_files=tuple(map(str, files)), val_size=0))
    assert [p.question[:13] for p in train] == ["def shift(s: ", "Write a stack", "Add n to all.", "Write a funct",
                                                "Reverse a lin", "Double."]  # fmt: skip
    with Verifier("auto", workers=2, timeout=5) as verifier:
        assert {verifier.kind_for(p) for p in train} == {"code"}
        found = verifier.check_batch([f"```python\n{STACK}\n```", "```python\nprint(2)\n```"], [train[1], train[5]])
    assert [result.verdict for result in found] == ["equal", "equal"]


def test_how_many_tests_a_text_holds():
    assert len(read(json.dumps(KODCODE))) == 4
    assert len(read("def check(f):\n    assert f(1)\n    assert f(2)\ncheck(g)")) == 1
    assert len(read("import math\nlimit = 3\nassert f(1) < limit\nfor i in range(3):\n    assert f(i) == i")) == 2
    assert len(read("def near(a, b): return abs(a - b) < 1\nassert near(f(1), 2)\nassert near(f(2), 2)")) == 2
    assert (
        len(read("from solution import f\ndef test_a():\n    assert f(1)\ndef test_b():\n    assert f(2)\ntest_a()"))
        == 2
    )
    assert len(read('"[{\\"input\\": \\"1\\", \\"output\\": \\"2\\"}]"')) == 1  # JSON within JSON


def test_a_single_map_is_one_test():
    (one,) = read('{"input": ["3", "4"], "output": 7}')
    assert (one.request["stdin"], one.expected) == ("3\n4", "7")


def test_arguments_may_be_literals_of_python_one_a_line():
    (one,) = read(json.dumps([{"input": "(1, 'a')\n[2]", "output": "{'a': (1,)}", "fn_name": "f"}]))
    assert one.request["entry"] == "f"
    assert (one.request["arguments"], one.request["wanted"]) == ([[1, "a"], [2]], {"a": [1]})


def test_classes_of_pytest_hold_tests_and_names_may_come_from_all_of_a_module():
    imports = "from math import *\nfrom solution import f"
    body = "    def test_a(self):\n        assert f(1) == floor(pi)"
    text = f"{imports}\nclass TestF:\n{body}\nclass TestG:\n{body}\nclass TestLimits:\n    limit = 3"
    assert [(test.request["name"], test.request["pytest"]) for test in read(text)] == [("TestF", True), ("TestG", True)]


def test_arrays_of_a_row_are_lists_in_its_tests_and_dates_are_texts():
    case = {"input": np.array(["1", "2"]), "output": date(2020, 1, 2)}
    assert json.loads(columns({"question": "q", "tests": [case]})) == {
        "tests": [{"input": ["1", "2"], "output": "2020-01-02"}]
    }


@cases(
    ("text", "words"),
    [
        ('{"inputs": [3], "outputs": [4], "fn_name": "f"}', "a list of its arguments"),
        ('{"test_list": [3]}', "a test has input and output, this is '3'"),
        ('{"test_list": 3}', "'3' is not a test"),
        ("from solution import f\nf(1) == 2\nassert f(2)", r"expected tests, found 'f\(1\) == 2'"),
    ],
)
def test_what_is_no_test_says_why(text, words):
    with pytest.raises(ValueError, match=words):
        read(text)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "How many?", "answer": "5"}, {"question": "q", "answer": "5", "test": "blood"},
        {"question": "q", "answer": ["A", "B"]}, {"question": "q", "answer": "5", "tests": [1, 2]},
        {"question": "q", "reward_model": {"ground_truth": "5"}, "test": "def test_f():\n    assert f(1)"},
        {"question": "q", "answer": {"value": 5}},
    ],
)  # fmt: skip
def test_other_columns_are_no_tests(row):
    assert columns(row) is None


@pytest.mark.hostile("programs")
def test_packed_private_tests_are_refused_by_name(tmp_path):
    packed = {**STDIN, "public_test_cases": "[]", "private_test_cases": "eJxrYJmayQABPVKzUvOLVSqAAABPAEAABQ=="}
    with pytest.raises(DataError, match=r"private_test_cases: they are a compressed pickle.*store them as JSON"):
        load_prompts(settings_for(tmp_path, packed))


@pytest.mark.hostile("programs")
@needs_isolation
def test_a_broken_test_is_no_verdict_on_the_program(sandbox):
    tests = read_tests("import json\njson.loads('{')\nassert f(1) == 2")  # fails before it calls the program
    with pytest.raises(DataError, match=r"a test is broken: .*JSONDecodeError"):
        run_tests(tests, "def f(x): return 2", sandbox, cpu_seconds=5)
    assert run_tests(tests, "x = 1", sandbox, cpu_seconds=5) == 0  # f is missing
    constant = read_tests("from solution import LIMIT\ndef test_limit():\n    assert LIMIT == 7 and LIMIT[0]")
    assert run_tests(constant, "LIMIT = 7", sandbox, cpu_seconds=5) == 0


@needs_isolation
def test_earlier_assertions_leave_their_marks_on_an_object(sandbox):
    gold = "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert s.pop() == 1\nassert len(s) == 0"
    assert run_tests(read_tests(gold), STACK, sandbox, cpu_seconds=5) == 1
    first = STACK.replace("self.items.pop()", "self.items.pop(0)")
    assert run_tests(read_tests(gold), first, sandbox, cpu_seconds=5) == pytest.approx(1 / 3)


@needs_isolation
def test_what_tests_import_is_not_the_programs_although_it_imports_it_too(sandbox):
    code = "import math\ndef area(r): return math.pi * r * r"
    row = {"test_list": ["assert math.isclose(area(1), math.pi)"], "code": code}
    for beside in ({"test_imports": ["import math"]}, {"test_setup_code": "import math"}, {}):
        tests = read_tests(columns(row | beside))
        assert run_tests(tests, code, sandbox, cpu_seconds=5) == 1
        assert run_tests(tests, "import math\nmath.isclose = lambda *a: True\ndef area(r): return 9", sandbox,
                         cpu_seconds=5) == 0  # fmt: skip


@pytest.mark.parametrize("opening", ["[", '{"a": '])
def test_a_text_of_many_brackets_holds_no_tests(opening):
    assert columns({"prompt": "p", "test_list": opening * 200_000}) is None
    assert columns({"prompt": "p", "test_list": opening * 150 + "1" + ("]" if opening == "[" else "}") * 150}) is None
