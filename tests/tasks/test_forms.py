r"""Comparison of answers as mathematics, by class: `=` equal, `!` different, `?` no verdict, `t` too much work."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import E, I, Rational, pi

pytest.importorskip("math_verify")

from guerdon.tasks.expressions import UndefinedError, UnreadableError, expression, symbol
from guerdon.tasks.rounding import Rounding
from guerdon.tasks.verifier_worker import compare
from tables import cases

WORDS = {"equal": "=", "different": "!", "timeout": "t", "gold_unparsable": "?", "answer_unparsable": "?"}

# true answer, stated answer, verdict
EXACT = [
    (r"3^{-60}", r"3^{-59}", "!"), (r"3^{-60}", r"\frac{1}{3^{60}}", "="), (r"\frac{1}{90!}", r"\frac{1}{91!}", "!"),
    (r"\frac{1}{2^{120}}", r"\frac{2^{119}+1}{2^{120}}", "!"), (r"1-10^{-40}", "1", "!"), (r"10^{-40}", "0", "!"),
    (r"\sqrt{2}+10^{-300}", r"\sqrt{2}", "!"), (r"\pi+10^{-900}", r"\pi", "!"), (r"\pi", r"\frac{355}{113}", "!"),
    (r"e^{\pi\sqrt{163}}", "262537412640768744", "!"), (r"\sqrt{61}", "7.8102497", "!"), (r"\sqrt{61}", "7.81", "!"),
    (r"x+10^{-50}", "x", "!"), (r"x+0.166667", r"x+\frac16", "!"), (r"0.1666667x", r"\frac{x}{6}", "!"),
    (r"\{7^{-50},2\}", r"\{7^{-49},2\}", "!"), (r"(\frac{1}{80!},3)", r"(\frac{1}{81!},3)", "!"),
    (r"[0,7^{-50}]", r"[0,7^{-49}]", "!"), (r"[0,7^{-50}]", r"[0,\frac{1}{7^{50}}]", "="),
    (r"x=7^{-50}", r"x=7^{-49}", "!"),
    (r"\begin{pmatrix}7^{-50}&1\end{pmatrix}", r"\begin{pmatrix}7^{-49}&1\end{pmatrix}", "!"),
    (r"x \le 7^{-50}", r"x \le 7^{-49}", "!"), (r"1000001:1000000", "1:1", "!"), (r"\frac16", "0.166667", "!"),
    (r"x^{0.5}", r"\sqrt{x}", "="), (r"0.25\pi", r"\frac{\pi}{4}", "="),
]  # fmt: skip
CONSTANTS = [
    (r"e^{i\pi/6}", r"\frac{\sqrt3+i}{2}", "="), (r"e^{i\pi/6}", r"\frac{\sqrt3-i}{2}", "!"), (r"\text{15}", "15", "="),
    (r"\sqrt{3}+\sqrt{5}", r"\sqrt{8+2\sqrt{15}}", "="), (r"\sqrt{3}+\sqrt{5}", r"\sqrt{8+2\sqrt{14}}", "!"),
    (r"\sqrt[3]{7+5\sqrt{2}}", r"1+\sqrt{2}", "="), (r"\cos 36^\circ", r"\frac{1+\sqrt5}{4}", "="),
    (r"\cos\frac{2\pi}{5}", r"\frac{\sqrt5-1}{4}", "="), (r"\log_3 81", "4", "="), (r"\ln 12", r"\ln 3+2\ln 2", "="),
    (r"\ln(2+\sqrt3)", r"-\ln(2-\sqrt3)", "="), (r"\ln(2+\sqrt3)", r"\ln(2-\sqrt3)", "!"),
    (r"\arctan\frac13+\arctan\frac12", r"\frac{\pi}{4}", "="), (r"\arccos\frac{5}{13}", r"\arctan\frac{12}{5}", "="),
    (r"\arctan\frac13+\arctan\frac14", r"\frac{\pi}{4}", "!"), (r"3^{\sqrt2}\cdot 3^{\sqrt2}", r"9^{\sqrt2}", "="),
    (r"(2+e)^2", r"4+4e+e^2", "="), (r"3e", r"3\mathrm{e}", "="), (r"3e", "3", "!"), (r"3\mathrm{e}", "3", "!"),
    (r"4-2i", r"4-2\mathrm{i}", "="), (r"4-2i", r"4+2\mathrm{i}", "!"), (r"(2+i)^2", "3+4i", "="),
    (r"\arcsin\frac14", r"\operatorname{arcsin}\frac14", "="), (r"\operatorname{lcm}(6,8)", "24", "="),
    (r"\binom{7}{3}", "35", "="), (r"2\binom{7}{3}", "70", "="), (r"12", "3(4)", "="), (r"7", "3(4)", "!"),
    (r"7", "3 4", "?"), (r"\frac{7}{2}", r"3\frac12", "="), (r"\frac32", r"3\left(\frac12\right)", "="),
    (r"\sum_{k=1}^{5} k^2", "55", "="), (r"\sin 30^\circ", r"\frac12", "="), (r"1.5\times10^4", "1.5e4", "="),
]  # fmt: skip
FUNCTIONS = [
    (r"x^2-5x+6", r"(x-2)(x-3)", "="), (r"x^2-5x+6", r"(x-2)(x+3)", "!"), (r"\frac{x^2-4}{x-2}", "x+2", "="),
    (r"(x+1)^{700}", r"(1+x)^{700}", "="), (r"(x+1)^{30}", r"(x+1)^{29}", "!"), (r"\sqrt{x^2}", "x", "!"),
    (r"\sqrt{uv}", r"\sqrt{u}\sqrt{v}", "="), (r"\cos 2x", r"1-2\sin^2 x", "="), (r"\cos 2x", r"1-2\sin x", "!"),
    (r"3\cdot3^n", r"3^{n+1}", "="), (r"(n+2)!", r"(n+2)(n+1)!", "="), (r"n!", r"(n+1)!", "!"),
    (r"\binom{n}{2}", r"\frac{n^2-n}{2}", "="), (r"\ln(uv)", r"\ln u+\ln v", "="), (r"\ln|x|+C", r"\ln|x|", "!"),
    ("5t", "5", "!"), ("4c", "4d", "!"), ("6m", "6", "!"), ("R-r", "0", "!"), ("X+1", "x+1", "="),
    ("f(x+2)", "f(2+x)", "="), ("f(x)", "f(y)", "!"), ("f(x)=x^3", "f(t)=t^3", "="), ("f(x)=x^3", "x^3", "="),
    ("f(x)=x^3", "f(t)=t^2", "!"), (r"x+10^{-60}\cos x", "x", "!"), (r"\cosh x", r"\frac{e^x+e^{-x}}{2}", "="),
]  # fmt: skip
REGIONS = [
    (r"x<1 \text{ or } x>4", r"x<1 \text{ and } x>4", "?"), (r"x<1 \text{ and } x>4", r"x<1 \text{ and } x>4", "="),
    (r"\emptyset", r"x<1 \land x>4", "?"), (r"x>1 \text{ and } x<4", "(1,4)", "="), (r"\{2,3\}", "(2,3)", "?"),
    (r"\{2,3\}", "[2,3]", "?"), ("(2,3)", r"\{2,3\}", "?"), (r"\{2,3\}", "(2,4)", "!"), (r"\{(1,2)\}", "(1,2)", "="),
    ("(1,2)", r"\{(1,2)\}", "="), (r"\{(1,2)\}", "(2,1)", "!"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]", "="),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,3],[2,4]]", "!"),
    ("(1,4]", r"1<x\le4", "="), (r"1<x\le4", "(1,4]", "="), ("(1,4]", "1 < x <= 4", "="), ("(1,4]", r"1\le x<4", "!"),
    (r"[2,\infty)", r"x\ge2", "="), (r"[2,\infty)", "2 <= x", "="), (r"[2,\infty)", "x>2", "!"),
    (r"x\ge2", r"[2,\infty)", "="), (r"-5<x<5", "|x|<5", "="), ("|x|<5", "-5<x<5", "="), ("|x|<5", "(-5,5)", "="),
    (r"|x|\le5", "(-5,5)", "!"), (r"(-\infty,-4)\cup(1,\infty)", r"x<-4 \text{ or } x>1", "="),
    (r"x<-4 \text{ or } x>1", r"(1,\infty)\cup(-\infty,-4)", "="), (r"(-\infty,-4)\cup(1,\infty)", "x<-4, x>1", "="),
    (r"(-\infty,-4)\cup(1,\infty)", r"(-\infty,-4]\cup(1,\infty)", "!"), ("x^2<16", "-4<x<4", "="),
    (r"x\in(1,4]", r"1<x\le4", "="), (r"(1,4]", r"x\in(1,4]", "="), ("x<1", "y<1", "!"),
    (r"2\le|w|\le3", r"w\in[-3,-2]\cup[2,3]", "="), (r"\emptyset", r"\varnothing", "="),
    (r"\varnothing", r"\{ \}", "="), (r"\emptyset", r"\{0\}", "!"), (r"\emptyset", "0", "!"),
    (r"\emptyset", "(5,2)", "!"), (r"\mathbb{R}", r"(-\infty,\infty)", "="),
    (r"\mathbb{R}\setminus\{3\}", r"x\ne3", "="), (r"\mathbb{R}\setminus\{3\}", r"(-\infty,3)\cup(3,\infty)", "="),
    (r"\{x : x>4\}", r"(4,\infty)", "="), (r"\{x \mid x>4\}", r"x\ge4", "!"), ("]3,6[", "(3,6)", "="),
    ("]3,6]", "(3,6]", "="), ("x>a", r"(a,\infty)", "="), ("0<f(x)<3", "(0,3)", "="), ("x<2", "-x>-2", "="),
    ("x<2", "x>-2", "!"), ("x != 4", r"x \neq 4", "="),
]  # fmt: skip
LISTS = [
    (r"\{4,9\}", r"\{9,4\}", "="), (r"\{4,9\}", r"\{4,9,16\}", "!"), ("4,9", r"\{9,4\}", "="), ("(4,9)", "(9,4)", "!"),
    ("(4,9)", "4,9", "="), ("(4,9)", "9,4", "!"), ("(9,4)", r"\{4,9\}", "!"), ("(1,2,5)", "(1,5,2)", "!"),
    ("4,9", "4,4,9", "?"), (r"\{(1,6),(6,1)\}", "(6,1),(1,6)", "="), ("(1,6),(6,1)", "(1,6),(6,2)", "!"),
    (r"\pm6", "6,-6", "="), (r"\pm6", r"\{-6,6\}", "="), (r"\pm6", "6", "!"), ("6", r"\pm6", "!"),
    (r"x=\pm6", "x=6, x=-6", "="), (r"5\pm\sqrt2", r"5+\sqrt2, 5-\sqrt2", "="), (r"5\pm\sqrt2", r"5\mp\sqrt2", "="),
    (r"5\pm\sqrt2", r"5\pm\sqrt3", "!"), ("[7]", "7", "="), ("7", r"\{7\}", "="),
    ("a=8, b=5", r"b=5 \text{ and } a=8", "="), ("a=8, b=5", "a=5, b=8", "!"), ("a=8, b=5", "8, 5", "="),
    ("a=8, b=5", "(8,5)", "="), ("a=8, b=5", "5, 8", "?"), ("8, 5", "a=8, b=5", "="), ("(a,b)=(8,5)", "(8,5)", "="),
    ("(8,5)", "(a,b)=(8,5)", "="), ("(a,b)=(8,5)", "(5,8)", "!"), ("(a,b)=(8,5)", "a=8, b=5", "="),
    ("(a,b)=(8,5)", "(b,a)=(5,8)", "="), ("x=4, x=-9", "-9, 4", "="), ("a=8,b=5;a=1,b=2", "(1,2),(8,5)", "="),
    ("a=8,b=5;a=1,b=2", "(8,5),(1,3)", "!"), ("1;2;3", r"\{3,2,1\}", "="), ("t=3, 6, 9", "t=9, 6, 3", "="),
    ("t=3, 6, 9", "t=3, 6, 8", "!"), ("(x,y)=(2,7),(7,2)", "(7,2),(2,7)", "="),
    (r"x = \frac{\pi}{3} + 2\pi k, k\in\mathbb{Z}", r"x=\frac{\pi}{3}+2k\pi", "="), ("5, 6 or 9", "9, 6, 5", "="),
    ("x=1", "y=1", "!"),
]  # fmt: skip
OTHERS = [
    (r"\begin{pmatrix}3\\8\end{pmatrix}", r"\begin{bmatrix}3\\8\end{bmatrix}", "="),
    (r"\begin{pmatrix}3&8\\1&4\end{pmatrix}", r"\begin{pmatrix}3&8\\1&5\end{pmatrix}", "!"),
    (r"\begin{pmatrix}3&8\\1&4\end{pmatrix}", r"\begin{vmatrix}3&8\\1&4\end{vmatrix}", "!"),
    ("4", r"\begin{vmatrix}3&8\\1&4\end{vmatrix}", "="),
    (r"\begin{pmatrix}3&8\end{pmatrix}", r"\begin{pmatrix}3\\8\end{pmatrix}", "!"),
    (r"\begin{pmatrix}3&8\\1&4\end{pmatrix}", r"\left[\begin{array}{cc}3 & 8\\1&4\end{array}\right]", "="),
    (r"\begin{pmatrix}3\\8\end{pmatrix}", "(3,8)", "="),
    (r"\begin{pmatrix}3\\8\end{pmatrix}", r"\langle 3,8\rangle", "="),
    (r"\begin{pmatrix}3\\8\end{pmatrix}", "(8,3)", "!"),
    (r"\begin{pmatrix}4&1\end{pmatrix}", r"\begin{pmatrix}1&1\end{pmatrix}+\begin{pmatrix}3&0\end{pmatrix}", "="),
    (r"\frac{2}{9}", r"0.\overline{2}", "="), (r"\frac{2}{9}", r"0.2\dot{2}", "="), (r"\frac{2}{9}", "0.(2)", "="),
    (r"\frac{2}{9}", "0.222222", "!"), (r"\frac{1}{13}", r"0.\overline{076923}", "="),
    (r"\frac{1}{13}", r"0.\dot{0}7692\dot{3}", "="), (r"\frac{47}{30}", r"1.5\overline{6}", "="),
    ("2", r"1.\overline{9}", "="), ("3x-6y+9=0", r"y=\frac{x}{2}+\frac32", "="), ("3x-6y+9=0", r"-x+2y-3=0", "="),
    ("3x-6y+9=0", "-x+2y+3=0", "!"), ("y=4/x", "xy=4", "="), (r"x+y\le7", r"7\ge x+y", "="),
    (r"x+y\le7", "x+y<7", "!"), (r"x+y\le7", r"3x+3y\le21", "="), ("9=2a+c", "2a+c", "!"), ("x^2+b=0", "0", "!"),
    ("y=5x", "5x", "="), ("y=5x", "y=6x", "!"), ("5:9", "10:18", "="), ("5:9", "9:5", "!"), ("5:9", r"\frac59", "="),
    ("1:2:5", "2:4:10", "="), ("S_{ABC}:T=5:9", "5:9", "="), ("3:00", "4:00", "!"), ("123_4", "123_{4}", "="),
    ("123_4", "122_4", "!"), ("123_4", "123", "="), ("123_4", "27", "?"), ("a<b<c", "c>b>a", "="),
    ("a<b<c", "a<c<b", "!"), ("45678", r"45,\!678", "="), ("45678", r"45{,}678", "="),
    (r"\angle B = 40^\circ", r"40^\circ", "="), ("5", "1/0", "!"), ("1/0", "5", "?"), ("???", "5", "?"),
    ("5", r"\foo", "?"), ("0.17", r"\frac16", "!"), ("101_2", "(1,0)", "!"), ("1:2", "(1,2)", "!"),
    ("(1,2)", "[1,2]", "!"), ("(1,2)", "(1,2,3)", "!"), ("[[1,2],[3,4]]", "(1,2,3,4)", "!"),
    ("[[1,2],[3,4]]", "[[1,2]]", "!"), ("x+y=1", "x-y=1", "!"), ("x^2+y^2=1", "5", "!"), ("x<1", "(1,2,3)", "!"),
    (r"(a,b)\cup(c,d)", r"(1,2)\cup(c,d)", "t"),
]  # fmt: skip
TOO_MUCH = [
    r"9^{9^{9}}", r"(10^9)!", "((((50!)!)!)!)!", r"2^{10^{10}}", r"\binom{10^{9}}{5\cdot10^{8}}", r"0.5^{-10^{12}}",
    "x^{10^{9}}", r"10^{-10^{9}}", r"\sqrt{2}^{10^{10}}", "e^{e^{e^{100}}}", r"\lfloor e^{10^{8}}\rfloor",
    r"\{1,9^{9^{9}}\}", r"x>9^{9^{9}}", "1e999999999",
]  # fmt: skip


@cases(("gold", "answer", "expected"), EXACT + CONSTANTS + FUNCTIONS + REGIONS + LISTS + OTHERS)
def test_verdicts(gold, answer, expected):
    assert WORDS[compare(gold, answer)[0]] == expected


x, a, b = (symbol(name) for name in "xab")


@cases(
    ("text", "value"),
    [
        (r"7 \bmod 3", 1), (r"50\%", Rational(1, 2)), ("2^-3", Rational(1, 8)), ("2^+3", 8), ("2^3^2", 512),
        ("2 1/2", Rational(5, 2)), (r"2\frac{3}{2}", 3), (r"\mathrm x", x), (r"\mathrm{pi}", pi),
        (r"\mathrm{ab}", a * b), (r"\mathrm{aeb}", a * E * b), (r"\operatorname{sqrt}4", 2), ("2I", 2 * I),
        (r"2\imath", 2 * I),
        ("x'", symbol("x'")), ("x_1", symbol("x_1")), ("x_{12}", symbol("x_12")), (r"\bar{x}", symbol(r"\bar x")),
        (r"\sin^{-1}\frac12", pi / 6), (r"\sin -\frac{\pi}{6}", -Rational(1, 2)),
        (r"\sin +\frac{\pi}{6}", Rational(1, 2)),        (r"\sqrt[3]{-8}", -2), (r"\int_0^1 x dx", Rational(1, 2)),
    ],
)  # fmt: skip
def test_expressions_are_read_as_they_are_meant(text, value):
    assert expression(text) == value


@cases(
    ("text", "kind", "words"),
    [
        ("x^'", UnreadableError, "a derivative"),
        (r"\frac1.52", UnreadableError, "a decimal without braces"),
        (r"2\frac32", UnreadableError, "a number in front of a fraction"),
        ("2 5/3", UnreadableError, "two numbers side by side"),
        (r"\mathrm{a+b}", UnreadableError, r"'a\+b' in an expression"),
        (r"\gcd(1.5,2)", UnreadableError, "gcd of what is not an integer"),
        (r"\sqrt[0]{2}", UnreadableError, "the index of a root"),
        (r"\frac{1}{0}", UndefinedError, "division by zero"),
        (r"\ln 0", UndefinedError, "division by zero"),
        (r"\sum_{k=1}^{3} \frac{1}{k-2}", UndefinedError, "division by zero"),
    ],
)
def test_what_is_no_certain_expression_says_why(text, kind, words):
    with pytest.raises(UnreadableError, match=words) as refused:
        expression(text)
    assert type(refused.value) is kind


@pytest.mark.hostile("verdicts")
@cases("answer", TOO_MUCH)
def test_what_is_too_large_has_no_verdict_and_is_not_computed(answer):
    assert compare("1", answer)[0] == "timeout"


@pytest.mark.hostile("verdicts")
@pytest.mark.parametrize(
    "answer",
    ["(" * 900, "-" * 1900 + "1", r"\sqrt{" * 300 + "2" + "}" * 300, "(1," * 400, "1," * 999, r"\{" * 600, "|x" * 900],
)
def test_deep_and_long_texts_are_unreadable(answer):
    assert compare("1", answer)[0] == "answer_unparsable"


@pytest.mark.hostile("verdicts")
@pytest.mark.parametrize(
    "answer", ["a" * 1900 + "+1=5", "\\alpha" * 200 + "^=5", "9" * 1990 + "=x(", "a " * 900 + "(=5"]
)
def test_no_pattern_takes_more_than_linear_time(answer):
    """A pattern that tries all ways to split the letters would never end."""
    assert compare("5", answer)[0] in WORDS


def test_what_cannot_be_decided_is_neither_equal_nor_different():
    cos = r"\cos(\cos(\cos(\cos 1)))"
    verdict, detail = compare(rf"e^{{{cos}}}+10^{{-2000}}", rf"e^{{{cos}}}+10^{{-2001}}")
    assert verdict == "different"  # the exact difference is a fraction
    verdict, detail = compare(r"\cos(1+10^{-1500})", r"\cos 1")
    assert (verdict, detail) == ("timeout", "the same to 1000 digits, and not shown to be equal")


@cases(
    ("gold", "answer", "rounding", "expected"),
    [
        (r"\sqrt{61}", "7.81", Rounding(places=2), "="), (r"\sqrt{61}", "7.82", Rounding(places=2), "!"),
        (r"\sqrt{61}", "7.8", Rounding(places=2), "!"), (r"\sqrt{61}", "7.8102", Rounding(places=2), "="),
        (r"\sqrt{61}", "7.81", Rounding(figures=3), "="), (r"\sqrt{61}", "7.8", Rounding(figures=3), "!"),
        (r"\sqrt{61}", "8", Rounding(places=0), "="), (r"\sqrt{61}", "7", Rounding(places=0), "!"),
        (r"\sqrt{61}", "7.81", Rounding(), "="), (r"\sqrt{61}", "8", Rounding(), "!"),
        (r"\sqrt{61}", "7.81", None, "!"),
        (r"(\sqrt3,e)", "(1.73,2.72)", Rounding(places=2), "="),
        (r"(\sqrt3,e)", "(1.73,2.71)", Rounding(places=2), "!"),
        (r"1000\sqrt2", "1400", Rounding(places=-2), "="), (r"1000\sqrt2", "1430", Rounding(places=-2), "!"),
        (r"\sqrt{61}", "7.8099", Rounding(places=2), "!"), (r"1000\sqrt2", "1410", Rounding(figures=3), "="),
        (r"1000\sqrt2", "1420", Rounding(figures=3), "!"), (r"\frac13", "0.33", Rounding(places=2), "="),
        (r"\{\sqrt3,e\}", r"\{2.72,1.73\}", Rounding(places=2), "="), ("5.20", "3\\sqrt3", Rounding(places=2), "="),
        ("5.2", "3\\sqrt3", None, "?"), ("5.3", "3\\sqrt3", None, "!"), ("5.196152422706632", "3\\sqrt3", None, "="),
        (r"\sqrt{53.29001}", "7.3", Rounding(places=2), "="), (r"x\sqrt2", "1.41x", Rounding(places=2), "!"),
    ],
)  # fmt: skip
def test_a_decimal_counts_where_the_question_allows_it(gold, answer, rounding, expected):
    assert WORDS[compare(gold, answer, rounding=rounding)[0]] == expected


def test_a_tolerance_holds_in_tuples_and_intervals_too():
    assert compare(r"(\sqrt3, 2]", "(1.7321, 2]", 1e-4) == ("equal", "within 0.0001")
    assert compare(r"\{\sqrt3, 2\}", r"\{2, 1.74\}", 1e-4) == ("different", "")


INTEGERS = st.integers(2, 60)


@settings(deadline=None, max_examples=60)
@given(INTEGERS, INTEGERS, INTEGERS, st.integers(1, 5))
def test_roots_are_equal_exactly_when_they_are(a, b, c, wrong):
    """sqrt(a) + sqrt(b) squared is a + b + 2 sqrt(ab); another number under the root is another value."""
    gold = rf"{c}(\sqrt{{{a}}}+\sqrt{{{b}}})"
    assert compare(gold, rf"{c}\sqrt{{{a + b}+2\sqrt{{{a * b}}}}}")[0] == "equal"
    assert compare(gold, rf"{c}\sqrt{{{a + b}+2\sqrt{{{a * b + wrong}}}}}")[0] == "different"


@settings(deadline=None, max_examples=60)
@given(st.integers(-30, 30), st.integers(1, 30), st.booleans(), st.booleans())
def test_an_interval_is_its_inequality_in_both_directions(low, width, left, right):
    high = low + width
    interval = f"{'(' if left else '['}{low}, {high}{')' if right else ']'}"
    relation = rf"{low} {'<' if left else '<='} x {'<' if right else '<='} {high}"
    other = rf"{low} {'<=' if left else '<'} x {'<' if right else '<='} {high}"
    assert compare(interval, relation)[0] == compare(relation, interval)[0] == "equal"
    assert compare(interval, other)[0] == compare(other, interval)[0] == "different"


@settings(deadline=None, max_examples=60)
@given(st.fractions(min_value=0, max_value=10, max_denominator=99))
def test_a_repeating_decimal_is_its_fraction(value):
    whole, rest = divmod(value.numerator, value.denominator)
    digits, places = "", {}
    while rest and rest not in places:
        places[rest] = len(digits)
        digit, rest = divmod(rest * 10, value.denominator)
        digits += str(digit)
    if rest:
        start = places[rest]
        text = rf"{whole}.{digits[:start]}\overline{{{digits[start:]}}}"
        assert compare(rf"\frac{{{value.numerator}}}{{{value.denominator}}}", text)[0] == "equal"
        assert compare(rf"\frac{{{value.numerator + 1}}}{{{value.denominator}}}", text)[0] == "different"


@pytest.mark.hostile("verdicts")
@settings(deadline=None, max_examples=200)
@given(st.text(alphabet=r"\frac{}()[],;=<>x1.^_|! +-/sqrtpm", max_size=40))
def test_no_text_makes_the_comparison_raise(text):
    assert compare("1", text)[0] in WORDS
