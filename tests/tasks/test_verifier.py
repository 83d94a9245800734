import os
import signal
import sys
import threading
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.errors import MissingDependencyError
from guerdon.settings.data import ChainSettings, GSM8KDataSettings
from guerdon.tasks import verifier as verifier_module
from guerdon.tasks.answer_text import normalized
from guerdon.tasks.answers import final_answer, last_boxed
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.quantities import numbers_of, same_number
from guerdon.tasks.reasoning import task_family
from guerdon.tasks.verifier import (
    MathPool,
    OwnVerifier,
    Verifier,
    VerifierResult,
    check_exact,
    check_numeric,
    outcome,
    verifier_from,
)
from guerdon.types import Failure
from raisers import WAYS
from tables import cases

FAKE = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    answer = json.loads(line)["answer"]
    if answer == "hang":
        while True: time.sleep(60)
    if answer == "die": os.kill(os.getpid(), 9)
    if answer == "nonsense": print("hello", flush=True); continue
    print(json.dumps({"verdict": "different", "detail": str(os.getpid())}), flush=True)
"""  # the worker's protocol, with answers that misbehave
HANGS = "\\sum_{k=1}^{10^{9}} k!"  # sympy adds for hours


def prompt(gold, source="test", **extra):
    return Prompt(id="0", messages=({"role": "user", "content": "?"},), ground_truth=gold, data_source=source, **extra)


@pytest.fixture(scope="module")
def math():
    pytest.importorskip("math_verify")
    with Verifier("math", timeout=60, workers=1) as verifier:
        yield verifier


@cases(
    ("text", "answer"),
    [
        ("so \\boxed{42}.", "42"),
        ("first \\boxed{1}, then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\fbox{7} \\boxed {8}", "8"),
        ("\\boxed{1} and cut off \\boxed{2", "1"),
        ("#### 5 but \\boxed{6}", "6"),
        ("work\n#### 1,200\n", "1,200"),
        ("The answer is 3.5. Yes.", "3.5"),
        ("**Answer:** $\\frac{1}{2}$", "\\frac{1}{2}"),
        ("The final answer is: (B).", "(B)"),
        ("answer is 1. Wait, the answer is 2.", "2"),
        ("I doubt the answer is 5", None),
        ("I don\u2019t think the answer is 5.", None),
        ("The answer is 4. Let me see if the final answer is 5.", None),
        ("I was not sure, but now the answer is 5.", "5"),
        ("42", None),
        ("", None),
        ("\\boxed{}", None),
        ("####", None),
        ("}}}}\\boxed{", None),
    ],
)
def test_the_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.hostile("verdicts")
@settings(deadline=None)
@given(st.text(alphabet="\\boxed{}#a1 answer is:$.\n", max_size=80))
def test_extraction_and_reading_never_raise(text):
    for found in (final_answer(text), last_boxed(text)):
        assert found is None or isinstance(found, str)
    normalized(text)
    numbers_of(text)


@pytest.mark.hostile("verdicts")
def test_a_model_that_repeats_itself_costs_no_time():
    assert last_boxed("\\boxed{" * 50_000) is None  # quadratic work here took minutes
    assert final_answer("answer is " * 20_000 + "5") == "5"


@cases(
    ("text", "value"),
    [
        ("72", 72), ("1,234", 1234), ("1,234,567.5", Fraction(2469135, 2)), ("$5.00", 5), ("-$3", -3), ("$-3", -3),
        ("−7", -7), ("1/2", Fraction(1, 2)), ("1 1/2", Fraction(3, 2)), ("\\frac{3}{4}", Fraction(3, 4)),
        ("-\\dfrac{1}{2}", Fraction(-1, 2)), ("2\\frac12", Fraction(5, 2)), ("1{,}000", 1000), ("3 hours", 3),
        ("1 000", 1000),
        ("12\\text{ cm}", 12), ("x = 5", 5), ("2+3=5", 5), ("1.5\\times10^{3}", 1500), ("2e3", 2000),
        (".5", Fraction(1, 2)), ("$12$", 12), ("5.", 5), ("0.1", Fraction(1, 10)),
    ],
)  # fmt: skip
def test_numbers_are_read_exactly(text, value):
    assert numbers_of(text) == (value,)


@cases(
    "text",
    [
        "",
        "abc",
        "2+3",
        "5 or 6",
        "2x",
        "x5",
        "1,23",
        "3,000,00",
        "3:30",
        "10^5",
        "1/0",
        "minus 5",
        "1 00",
        "9" * 300,
        "1e999",
    ],
)
def test_what_is_not_one_number_states_none(text):
    assert numbers_of(text) == ()


def test_percentages_tolerance_and_what_cannot_be_compared():
    assert same_number("50", "50%")
    assert same_number("0.5", "50\\%")
    assert same_number("12.5 percent", "1/8")
    assert not same_number("5", "50%")
    assert same_number("1/3", "0.3333") is False
    assert same_number("1/3", "0.3333", 1e-3)
    assert same_number("a", "1") is None


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_two_fractions_are_the_same_exactly_when_they_are(a, b):
    assert same_number(f"{a.numerator}/{a.denominator}", f"{b.numerator}/{b.denominator}") == (a == b)
    assert same_number(str(a), f"{2 * a.numerator}/{2 * a.denominator}")


@given(st.integers(-(10**12), 10**12))
def test_thousands_separators_change_nothing(n):
    assert numbers_of(f"{n:,}") == numbers_of(str(n)) == (n,)


@pytest.mark.hostile("verdicts")
def test_a_verdict_that_is_missing_is_a_failure_and_never_zero():
    assert outcome(VerifierResult("equal")) == 1.0
    assert outcome(VerifierResult("different")) == 0.0
    for word in ("gold_unparsable", "answer_unparsable", "timeout"):
        judgement = VerifierResult(word, detail="why")
        assert judgement.correct is None
        assert outcome(judgement) == judgement.failure == Failure(word, "why")
    assert outcome(VerifierResult("answer_unparsable"), unparsable="wrong") == 0.0
    assert isinstance(outcome(VerifierResult("timeout"), unparsable="wrong"), Failure)
    assert isinstance(outcome(VerifierResult("gold_unparsable"), unparsable="wrong"), Failure)


@pytest.mark.parametrize(
    ("response", "gold", "verdict"),
    [
        ("#### 1200", "1,200", "equal"), ("The answer is $1,200.", "1200", "equal"), ("#### 7", "8", "different"),
        ("it is 8", "8", "answer_unparsable"), ("#### eight", "8", "answer_unparsable"),
        ("#### 8", "x", "gold_unparsable"), ("", "", "gold_unparsable"),
    ],
)  # fmt: skip
def test_numeric(response, gold, verdict):
    assert check_numeric(response, gold).verdict == verdict


@pytest.mark.parametrize(
    ("response", "gold", "verdict"),
    [
        ("Paris", "paris", "equal"), ("The answer is 'Paris'.", "Paris", "equal"),
        ("\\boxed{\\text{ Paris }}", "Paris", "equal"), ("London", "Paris", "different"),
        (" ", "Paris", "answer_unparsable"), ("x", " ", "gold_unparsable"),
    ],
)  # fmt: skip
def test_exact(response, gold, verdict):
    assert check_exact(response, gold).verdict == verdict


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("3\\sqrt{13}", "3*sqrt(13)", "equal"), ("6+9i", "6+9*I", "equal"), ("6+9*I", "6+9i", "equal"),
        ("[5]", "x=5", "equal"), ("x=5", "[5]", "equal"), ("x^3", "x**3", "equal"), ("2\\pi", "2*pi", "equal"),
        ("x^2+1", "Poly(x**2 + 1, x, domain='ZZ')", "equal"), ("\\sqrt{51}", "7.1414", "different"),
        ("\\frac{1}{2}", "0.5", "equal"), ("x^2-1", "(x-1)(x+1)", "equal"), ("\\{1,2\\}", "\\{2,1\\}", "equal"),
        ("1", "2", "different"), ("7", "???", "answer_unparsable"), ("???", "7", "gold_unparsable"),
        ("\\sum_{i=1}^{3} i", "6", "equal"), ("(1+i)^2", "2i", "equal"), ("1", "9" * 3000, "answer_unparsable"),
    ],
)  # fmt: skip
def test_math(math, gold, answer, verdict):
    assert math.check(f"So \\boxed{{{answer}}}.", prompt(gold)).verdict == verdict


@pytest.mark.parametrize(
    ("question", "gold", "answer", "verdict"),
    [
        ("Give it to two decimal places.", "\\sqrt{61}", "7.81", "equal"),
        ("Give it to two decimal places.", "\\sqrt{61}", "7.82", "different"),
        ("Give it to two decimal places.", "\\frac{1}{3}", "0.33", "equal"),
        ("Give it to two decimal places.", "7.81", "\\sqrt{61}", "equal"),
        ("How long is it?", "\\sqrt{61}", "7.81", "different"),
        ("How long is it?", "\\frac{1}{3}", "0.33", "different"),
        ("Solve it.", "(1,4]", "1 < x <= 4", "equal"), ("Solve it.", "x \\neq 3", "x != 3", "equal"),
        ("Solve it.", "(1,4]", "1 <= x <= 4", "different"),
        ("Which?", "\\begin{pmatrix} 3 \\\\ 8 \\end{pmatrix}", "\\begin{bmatrix} 3 \\\\ 8 \\end{bmatrix}", "equal"),
        ("Which?", r"\begin{pmatrix}3\\8\end{pmatrix}", r"\begin{pmatrix}3\\9\end{pmatrix}", "different"),
    ],
)  # fmt: skip
def test_math_with_a_question(math, question, gold, answer, verdict):
    asked = Prompt(id="0", messages=({"role": "user", "content": question},), ground_truth=gold, data_source="test")
    assert math.check(f"So \\boxed{{{answer}}}.", asked).verdict == verdict


def test_math_without_an_answer_or_a_gold_answer_asks_no_process(math):
    assert math.check("I do not know", prompt("1")).verdict == "answer_unparsable"
    assert math.check("\\boxed{1}", prompt(" ")).verdict == "gold_unparsable"


def test_a_tolerance_is_declared_never_assumed():
    pytest.importorskip("math_verify")
    with Verifier("math", timeout=60, workers=1, tolerance=1e-3) as verifier:
        near, far = (verifier.check(f"\\boxed{{{a}}}", prompt("\\sqrt{51}")) for a in ("7.1414", "7.2"))
    assert (near.verdict, near.detail, far.verdict) == ("equal", "within 0.001", "different")


@pytest.mark.hostile("verdicts")
def test_a_comparison_that_never_ends_is_killed_and_the_next_one_is_answered():
    pytest.importorskip("math_verify")
    with MathPool(workers=1, timeout=1.0) as pool:
        verdict, detail = pool.compare("1", HANGS)
        assert (verdict, detail) == ("timeout", "no verdict within 1 s")
        pool.timeout = 60
        assert pool.compare("1/2", "0.5") == ("equal", "")
        worker = pool._slots.queue[-1].process
        os.kill(worker.pid, signal.SIGKILL)  # from outside, as an out-of-memory killer would
        worker.wait()
        assert pool.compare("1/3", "0.5") == ("different", "")
        assert pool.restarts == 2


@pytest.mark.hostile("verdicts")
def test_processes_that_hang_die_or_talk_nonsense():
    with MathPool(workers=1, timeout=0.2, command=[sys.executable, "-c", FAKE]) as pool:
        assert pool.compare("1", "hang")[0] == "timeout"
        pool.timeout = 60
        _, first = pool.compare("1", "2")
        _, second = pool.compare("1", "3")
        assert first == second  # the process stays
        assert pool.compare("1", "die") == ("timeout", "the comparing process ended twice")
        assert pool.compare("1", "nonsense") == ("timeout", "the comparing process ended twice")
        assert pool.compare("1", "2")[1] != first
        assert pool.restarts == 5
    with pytest.raises(RuntimeError, match="closed"):
        pool.compare("1", "2")


SECRETS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "HF_AUTH_TOKEN", "GUERDON_TOKEN", "OTHER_SECRET")


@pytest.mark.hostile("secrets")
def test_no_secret_reaches_the_process_that_parses_what_a_model_wrote(monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "a-long-secret")
    telling = FAKE.replace("str(os.getpid())", "' '.join(os.environ)")
    with MathPool(workers=1, timeout=60, command=[sys.executable, "-c", telling]) as pool:
        names = pool.compare("1", "2")[1].split()
    assert "PATH" in names
    assert not set(SECRETS) & set(names)


def test_any_number_of_threads_may_ask():
    with MathPool(workers=2, timeout=60, command=[sys.executable, "-c", FAKE]) as pool:
        seen, lock = [], threading.Lock()

        def ask(i):
            verdict, pid = pool.compare("gold", f"answer {i}")
            with lock:
                seen.append((verdict, pid))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(seen) == 12
    assert {verdict for verdict, _ in seen} == {"different"}
    assert len({pid for _, pid in seen}) <= 2


def test_a_process_that_does_not_start_says_so():
    with (
        MathPool(command=[sys.executable, "-c", "pass"]) as pool,
        pytest.raises(MissingDependencyError, match="does not start"),
    ):
        pool.compare("1", "2")


def test_a_missing_library_is_named_at_once(monkeypatch):
    monkeypatch.setattr(verifier_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'guerdon\[text\]'"):
        Verifier("math")
    Verifier("auto").close()  # may never need it


def test_auto_lets_everyone_check_what_they_know_in_order():
    made = task_family(ChainSettings(steps=2)).prompt("3+5=?;?*2=?;")
    grade_school = prompt("1,200", "openai/gsm8k")
    other = prompt("1")
    with Verifier("auto", workers=1, timeout=60, command=[sys.executable, "-c", FAKE]) as verifier:
        judgements = verifier.check_batch(
            ["3+5=8;8*2=6;", "\\boxed{\\sqrt{2}}", "#### 1200", "no answer", "", "#### 3"],
            [made, other, grade_school, grade_school, made, made],
        )
    assert [j.verdict for j in judgements] == [
        "equal",
        "different",
        "equal",
        "answer_unparsable",
        "different",
        "different",
    ]
    assert judgements[1].detail.isdigit()
    assert [j.answer for j in judgements] == ["6", "\\sqrt{2}", "1200", None, None, None]


def test_the_data_section_describes_a_verifier():
    data = GSM8KDataSettings(path="x", verifier="numeric", verifier_tolerance=0.01)
    with verifier_from(data) as verifier:
        assert verifier.check("#### 100.5", prompt("100")).correct
        assert not verifier.check("#### 102", prompt("100")).correct


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("way", WAYS)
def test_a_verifier_of_ones_own_that_raises_fails_one_response(way):
    class Checker:
        def check(self, response, prompt):
            if response == "poison":
                WAYS[way]()
            return VerifierResult("equal" if response == prompt.ground_truth else "different", response)

    own = OwnVerifier("mine:Checker", Checker())

    def checked():
        found.extend(own.check_batch(["7", "poison", "8"], [prompt("7")] * 3))

    found = []
    thread = threading.Thread(target=checked)  # where no signal is handled
    thread.start()
    thread.join()
    assert [one.verdict for one in found] == ["equal", "raised", "different"]
    why = outcome(found[1], unparsable="wrong")
    assert isinstance(why, Failure)
    assert why.reason == "raised"
    assert "raisers.py, line " in why.detail
