"""Programming tasks: their tests are read, programs run in isolation, and no program talks itself into a pass."""

import json
import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from guerdon.errors import DataError, MissingDependencyError
from guerdon.settings.data import FilesDataSettings
from guerdon.tasks import prompt_files
from guerdon.tasks.code import code_tests
from guerdon.tasks.code.code_calls import same_output
from guerdon.tasks.code.code_tests import Sandbox, check_isolation, is_code, program_of, read_tests, run_tests
from guerdon.tasks.prompt_files import load_prompts
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import Verifier, outcome
from guerdon.types import Failure
from tables import cases

SUMS = json.dumps({"inputs": ["1\n", "5\n", "7\n", "9\n"], "outputs": ["2\n", "6\n", "8\n", "10\n"]})
RIGHT = "print(int(input()) + 1)"


def isolated():
    try:
        check_isolation()
    except MissingDependencyError:
        return False
    return True


needs_isolation = pytest.mark.skipif(not isolated(), reason="this machine has no namespaces for isolation")


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as process:
        yield process


def share(sandbox, tests, program, cpu=5.0):
    return run_tests(read_tests(tests), program, sandbox, cpu_seconds=cpu)


@cases(
    ("ability", "gold", "code"),
    [
        ("code", "anything", True), ("Code", "5", True), ("math", SUMS, True), ("", "assert f(1, 2) == 3", True),
        ("", "import math\nassert f(1) == 2", True), ("", '["assert f(1) == 2"]', True),
        ("", '{"fn_name": "f", "inputs": [[1]], "outputs": [2]}', True), ("math", "5", False),
        ("", '[{"input": "1\\n", "output": "2\\n", "testtype": "stdin"}]', True),
        ("", "{'inputs': ['1'], 'outputs': ['2']}", True), ("", json.dumps(SUMS), True),
        ("", '{"language": "python", "inputs": ["1"], "outputs": ["2"]}', True), ("", '{"test_cases": []}', True),
        ("", "def check(c):\n            assert c(1) == 2", True), ("", "def f(x):\n    return x", True),
        ("", "        self.assertEqual(f(1), 2)", True), ("", '[["1"], ["2"]]', False), ("", "class A: 5", False),
        ("", "\\{1, 2\\}", False), ("", "we assert that it is 5", False), ("", "", False),
    ],
)  # fmt: skip
def test_which_rows_are_programming_tasks(ability, gold, code):
    assert is_code(ability, gold) == code


def test_the_program_is_the_last_closed_block_of_python():
    assert program_of("a\n```python\nx = 1\n```\nb\n```py\ny = 2\n```\n") == "y = 2\n"
    assert program_of("```\nx = 1\n```") == "x = 1\n"
    assert program_of("```python\nx = 1\n```\n```bash\nls\n```") == "x = 1\n"
    for none in ("x = 1", "", "```python\nx = 1\n", "```bash\nls\n```"):
        assert program_of(none) is None


@cases(
    ("expected", "written", "same"),
    [
        ("2\n", "2", True), ("1 2\n3\n", "1  2 \n3\n\n", True), ("a b", "a\nb", False), ("YES", "yes", False),
        ("0.5", "0.5000001", True), ("0.5", "0.51", False), ("2", "2.0", False), ("2.0", "2", True), ("", "", True),
        ("", "x", False), ("1.0", "nan", False), ("1.0e999", "2e999", False), ("5", "5\n5", False),
    ],
)  # fmt: skip
def test_what_counts_as_the_same_output(expected, written, same):
    assert same_output(expected, written) == same


@pytest.mark.hostile("programs")
@cases(
    ("gold", "why"),
    [
        ("5", "there is none"), ("{}", "two lists"), ('{"inputs": ["1"]}', "two lists"),
        ('{"inputs": ["1"], "outputs": []}', "two lists"), ('{"inputs": [], "outputs": []}', "there is none"),
        ('{"fn_name": "a b", "inputs": [[1]], "outputs": [1]}', "not a name"), ("assert", "invalid syntax"),
        ("assert True", "no function of the program is called"), ("import os\nos.remove('x')", "there is none"),
        ("assert sum([1, 2]) == 3", "no function of the program is called.*entry_point"),
        ("assert f(1) == x", "could define both"), ("assert f(g(1)) == 2", "the program could define both"),
        ("assert same(f(1), 3)", "could define both"), ("assert Same(f(1), 3)", "could define both"),
        ("def same(a, b):\n    return near(a, b)\nassert same(f(1), 3)", "could define both"),
        ("def check(f):\n    assert f(1)", "needs entry_point"),
        ("import no_such_package_of_anyone\nassert f(1)", "import no_such_package_of_anyone, which is not installed"),
        ("from .helpers import near\nassert f(1)", "which is not installed"),
        ("from solution import f\ndef test_f():\n    assert near(f(1), 2)", "near is used, which neither"),
        ("from solution import f\n@mock.patch('solution.g')\ndef test_f(g):\n    assert f(1)", "replaces a part"),
        ("from solution import f\ndef test_f(monkeypatch):\n    monkeypatch.setattr('builtins.input', f)", "replaces"),
        ('{"entry_point": "f", "test": "def check(c):\\n    assert near(c(1), 2)"}', "near is used, which neither"),
        ('[{"input": "1", "output": "2", "testtype": "interactive"}]', "of the type 'interactive'"),
        ('[{"input": "1", "output": "2", "testtype": "functional"}]', "metadata.func_name"),
        ('[{"input": "1"}]', "a test has input and output"),
        ('{"public_test_cases": "[]", "private_test_cases": "eJxrYJmayQABPVKzU"}',
         "private_test_cases: they are a compressed pickle.*store them as JSON"),
        ("eJxrYJmayQABPVKzUvOLVSq" * 3, "compressed pickle"),
    ],
)  # fmt: skip
def test_tests_that_could_be_faked_or_not_be_evaluated_are_refused(gold, why):
    with pytest.raises(DataError, match=why):
        read_tests(gold)


@needs_isolation
def test_the_outcome_is_the_share_of_tests_passed(sandbox):
    assert share(sandbox, SUMS, RIGHT) == 1
    assert share(sandbox, SUMS, "n = int(input())\nprint(n + 1 if n < 6 else 0)") == 0.5
    assert share(sandbox, SUMS, "print(2)") == 0.25
    assert share(sandbox, SUMS, "syntax error") == 0
    assert share(sandbox, SUMS, RIGHT + "\nraise SystemExit(3)") == 0  # it failed, whatever it wrote
    assert share(sandbox, SUMS, RIGHT + "\nexit()") == 1


@needs_isolation
def test_functions_of_apps_and_asserts_of_mbpp(sandbox):
    apps = json.dumps({"fn_name": "f", "inputs": [[[1, 2]], [[3]], [[]]], "outputs": [[3], 3, [0]]})
    assert share(sandbox, apps, "def f(x): return sum(x)") == 1
    assert share(sandbox, apps, "class Solution:\n    def f(self, x): return sum(x)") == 1
    assert share(sandbox, apps, "def g(x): return sum(x)") == 0
    typed = "class Solution:\n    def f(self, x: List[int]) -> Optional[int]: return list(accumulate([0, *x]))[-1]"
    assert share(sandbox, apps, typed) == 1
    lines = json.dumps({"fn_name": "f", "inputs": ["[1, 2]\n1"], "outputs": ["[2, 3]"]})
    assert share(sandbox, lines, "def f(x, n): return tuple(v + n for v in x)") == 1
    mbpp = (
        "import math\nassert f(1, 2) == 3, 'a message'\nassert math.isclose(f(0.1, 0.2), 0.3)\nassert not f(0, 0)\n"
        "assert set(f([1], [2])) == {2, 1}\nassert f((1,), (2,))[-1] == 2 and f(1, 1) in (2, 3)\n"
        "assert f(10**9, 7) == 10**9 + 7\nassert f(1, 0) is not None"
    )
    assert len(read_tests(mbpp)) == 7
    assert share(sandbox, mbpp, "def f(a, b): return a + b") == 1
    assert share(sandbox, mbpp, "def f(a, b): return None") == pytest.approx(1 / 7)
    assert share(sandbox, json.dumps(["assert f(1) == 1", "assert f(2) == 4"]), "def f(x): return x") == 0.5
    solution = "class Solution:\n    def f(self, x): return 2 * x"
    assert share(sandbox, "assert Solution().f(1) == 2\nassert Solution().f(2) == 5", solution) == 0.5
    counted = "assert f('ab') == {'a': 1, 'b': 1}\nassert f('') == {}"
    assert share(sandbox, counted, "from collections import Counter\ndef f(x): return Counter(x)") == 1


@needs_isolation
@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("from fractions import Fraction\ndef f(x): return Fraction(x, 2)", 1),
        ("from decimal import Decimal\ndef f(x): return Decimal(x) / 2", 1),
        ("from decimal import Decimal\ndef f(x): return Decimal(x) / 3", 0),
        ("from decimal import Decimal\ndef f(x): return Decimal('nan')", 0),
        ("class N:\n    shape = ()\n    def item(self): return 0.5\nN.__module__ = 'numpy'\ndef f(x): return N()", 1),
        ("class N:\n    shape = (1,)\n    def item(self): return 0.5\nN.__module__ = 'numpy'\ndef f(x): return N()", 0),
    ],
)
def test_numbers_of_other_types_are_equal_as_in_python(sandbox, program, passed):
    assert share(sandbox, "assert f(1) == 0.5", program) == passed


HOSTILE = {
    "never ends": "while True: pass",
    "sleeps": "import time\ntime.sleep(1000)",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "leaves a child": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)",
    "memory bomb": "x = bytearray(1 << 40)",
    "memory bomb, slowly": "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "endless output": "while True: print('2' * 10**6)",
    "fills the disk": "with open('x', 'wb') as f:\n    while True: f.write(b'x' * 10**6)",
    "fills the disk with files": "for i in range(10**6):\n    open(f'x{i}', 'wb').close()",
    "ends at once": "import os\nos._exit(0)",
    "exits": "import sys\nsys.exit()",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "kills all": "import os\nos.kill(-1, 9)",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "says that it passed": 'print(\'{"results": [{"state": "done", "output": "2"}]}\')\nprint(\'PASSED\')',
    "writes to every descriptor": (
        "import os\nfor i in range(3, 64):\n    try: os.write(i, b'{\"results\": []}\\n')\n    except OSError: pass"
    ),
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
}


@pytest.mark.hostile("programs")
@needs_isolation
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_pass_nothing_and_the_next_one_runs(name, sandbox):
    one = json.dumps({"inputs": ["1"], "outputs": ["2"]})
    assert share(sandbox, one, HOSTILE[name], cpu=1.0) == 0
    assert share(sandbox, one, RIGHT) == 1


LOOKS = """
import ctypes, json, os, socket
found = {"files": sorted(os.listdir("/")), "home": os.path.exists(PLACE), "tmp": sorted(os.listdir("/tmp"))}
found["environment"] = sorted(set(os.environ) - {"LC_CTYPE"})
def refused(do):
    try: do()
    except OSError: return True
    return False
def network():
    socket.create_connection(("127.0.0.1", PORT), 1)
found["network"] = refused(network)
found["datagram"] = refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT)))
found["outside"] = all(refused(lambda p=p: open(p + "/x", "w")) for p in ("/", "/usr", "/dev", "/etc", PREFIX))
found["memory"] = refused(lambda: open("/proc/1/mem", "rb"))
libc = ctypes.CDLL(None, use_errno=True)
found["namespace"] = libc.unshare(0x10000000) != 0
found["mount"] = libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) != 0
found["trace"] = libc.ptrace(16, 1, 0, 0) != 0  # PTRACE_ATTACH
found["processes"] = os.getpid() < 10000 and os.getppid() == 0
print(json.dumps(found))
"""


@pytest.mark.hostile("programs")
@needs_isolation
def test_a_program_sees_an_interpreter_and_an_empty_folder_and_nothing_else(tmp_path, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "GUERDON_TOKEN"):
        monkeypatch.setenv(name, "a-long-secret")
    secret = tmp_path / "secret"
    secret.write_text("x")
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        head = f"PLACE, PORT, PREFIX = {str(secret)!r}, {listening.getsockname()[1]}, {sys.base_prefix!r}\n"
        with Sandbox() as sandbox:
            (result,) = sandbox.run(head + LOOKS, [{"stdin": "", "most": 9999}], 10)
    found = json.loads(result["output"])
    assert found.pop("tmp") == ["main.py"]
    assert found.pop("files")
    assert found.pop("environment") == []
    assert not found.pop("home")
    assert found == dict.fromkeys(found, True)


@pytest.mark.hostile("programs")
@needs_isolation
def test_the_right_outputs_never_reach_the_process_that_runs_programs(sandbox, monkeypatch):
    sent = []
    send = sandbox._process.send
    monkeypatch.setattr(
        sandbox._process, "send", lambda asked, **more: sent.append(json.dumps(asked)) or send(asked, **more)
    )
    assert share(sandbox, json.dumps({"inputs": ["1"], "outputs": ["secret-4711"]}), "print('secret-' + '4711')") == 1
    for gold in (
        "assert f(1) == 'secret-4711'", '{"fn_name": "f", "inputs": [[1]], "outputs": ["secret-4711"]}',
        "from solution import f\ndef test_f():\n    assert f(1) == 'secret-4711'",
        '{"entry_point": "f", "test": "def check(c):\\n    assert c(1) == \'secret-4711\'"}',
    ):  # fmt: skip
        assert share(sandbox, gold, "def f(x): return 'secret-' + '4711'") == 1
    assert len(sent) == 5
    assert not any("secret-4711" in request for request in sent)


@pytest.mark.hostile("programs")
@needs_isolation
@pytest.mark.parametrize(
    "program",
    [
        "class Any:\n    def __eq__(self, other): return True\n    __ne__ = __eq__\ndef f(x): return Any()",
        "class Int(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return Int(9)",
        "import os\ndef f(x):\n    for i in range(64):\n        try: os.write(i, b'[2]')\n"
        "        except OSError: pass\n    os._exit(0)",
        "import json\njson.dumps = lambda value: '[true]'\ndef f(x): return 0",
        "import builtins\nbuiltins.isinstance = lambda a, b: True\ndef f(x): return 'x'",
        "import sys\nsys.modules['__main__']._plain = lambda v: {'other': 'x'}\ndef f(x): return 2",
    ],
)
def test_values_are_compared_where_the_program_is_not(sandbox, program):
    assert share(sandbox, "assert f(1) == 7", program) == 0


@pytest.mark.hostile("programs")
@needs_isolation
def test_a_program_that_is_late_three_times_is_not_run_again(sandbox):
    asked = [{"stdin": str(i), "most": 99} for i in range(5)]
    results = sandbox.run("while True: pass", asked, 1)
    assert [r["state"] for r in results] == ["time"] * code_tests.LATE + ["skipped"] * 2


@needs_isolation
def test_much_output_is_read_where_much_is_expected(sandbox):
    long = "7 " * 500_000
    tests = json.dumps({"inputs": ["a", "b"], "outputs": [long, "7"]})
    assert share(sandbox, tests, "print('7 ' * 500_000)") == 0.5
    assert share(sandbox, tests, "print('7' if input() == 'b' else '7 ' * 500_000)") == 1


@pytest.mark.hostile("programs")
@needs_isolation
def test_nothing_is_left_when_the_process_that_asked_is_killed(tmp_path):
    """The sandbox ends with its reader, whatever a program does."""
    script = (
        "import os, sys, threading\nfrom guerdon.tasks.code.code_tests import Sandbox\nsandbox = Sandbox()\n"
        "print(sandbox._process.process.pid, flush=True)\n"
        "sandbox.run('import time\\ntime.sleep(1000)', [{'stdin': '', 'most': 9}], 1000)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    watched = os.pidfd_open(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)


def row(gold, ability="code"):
    prompt = [{"role": "user", "content": f"Write a program. {gold[:20]}"}]
    return {"data_source": "taco", "ability": ability, "prompt": prompt,
            "reward_model": {"ground_truth": gold, "style": "rule"}}  # fmt: skip


def settings_for(tmp_path, *rows, **given):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return FilesDataSettings(train_files=str(path), val_size=0, **given)


@needs_isolation
def test_rows_of_primes_data_are_judged_by_their_tests(tmp_path):
    math = {**row("42", "math"), "data_source": "numina"}
    train, _ = load_prompts(settings_for(tmp_path, row(SUMS), math))
    with Verifier("auto", workers=2, timeout=5) as verifier:
        assert [verifier.kind_for(p) for p in train] == ["code", "math"]
        half = "n = int(input())\nprint(n + 1 if n < 6 else 0)"
        texts = [f"```python\n{RIGHT}\n```", f"It is:\n```python\n{half}\n```", "no program", "```python\nx"]
        found = verifier.check_batch(texts, [train[0]] * 4)
    assert [j.verdict for j in found] == ["equal", "different", "answer_unparsable", "answer_unparsable"]
    assert [outcome(j) for j in found[:2]] == [1.0, 0.5]
    assert [j.correct for j in found] == [True, False, None, None]
    assert isinstance(outcome(found[2]), Failure)
    assert outcome(found[2], "wrong") == 0.0


def test_rows_that_would_be_judged_as_something_else_are_refused_at_load(tmp_path):
    asserts = row("assert f(1, 2) == 3", "")
    for verifier in ("math", "numeric", "exact"):
        with pytest.raises(
            DataError, match=f"1 rows are programming tasks.*data.verifier {verifier} cannot judge them"
        ) as refused:
            load_prompts(settings_for(tmp_path, asserts, verifier=verifier))
        assert refused.value.field == "data.verifier"
    with pytest.raises(DataError, match=r"is a programming task, but its tests cannot be read.*leave it out"):
        load_prompts(settings_for(tmp_path, row("5")))
    with pytest.raises(DataError, match="its tests cannot be read"):
        load_prompts(settings_for(tmp_path, row("5", "math"), verifier="code"))


@needs_isolation
def test_code_rows_are_refused_where_programs_cannot_be_isolated(tmp_path, monkeypatch):
    """A sandbox that does not start, as on a machine without namespaces, and a system without them."""
    broken = tmp_path / "code_start.py"
    broken.write_text('print(\'{"error": "unshare: Operation not permitted"}\')')
    monkeypatch.setattr(code_tests, "__file__", str(tmp_path / "code_tests.py"))
    monkeypatch.setattr(prompt_files, "check_isolation", check_isolation.__wrapped__)
    why = r"unshare: Operation not permitted.*kernel.unprivileged_userns_clone=1.*leave code rows out"
    with pytest.raises(MissingDependencyError, match=why):
        load_prompts(settings_for(tmp_path, row(SUMS)))
    monkeypatch.setattr(code_tests.sys, "platform", "darwin")
    with pytest.raises(MissingDependencyError, match="on Linux only"):
        load_prompts(settings_for(tmp_path, row(SUMS)))
    monkeypatch.undo()
    load_prompts(settings_for(tmp_path, row("5", "math")))  # others are read everywhere


def test_a_true_answer_without_tests_is_no_verdict():
    prompt = Prompt(
        id="0", messages=({"role": "user", "content": "?"},), ground_truth="5", data_source="x", ability="code"
    )
    with Verifier("auto") as verifier:
        judgement = verifier.check("```python\nprint(5)\n```", prompt)
    assert judgement.verdict == "gold_unparsable"
    assert isinstance(outcome(judgement, "wrong"), Failure)
