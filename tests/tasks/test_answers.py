"""Answers in whole responses and in words, by the verdict of the math verifier: what counts as stated, what must not.

`=` equal, `!` different, `?` no verdict, `t` out of time; where a row names several, each of them is right.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.tasks.answer_words import by_name, choice_of, is_empty, options_of, without_approximation
from guerdon.tasks.answers import concluded, final_answer, final_answers, is_list
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import Verifier, check_numeric
from tables import cases

VERDICT = {"equal": "=", "different": "!", "answer_unparsable": "?", "gold_unparsable": "g", "timeout": "t"}
AMC = (
    "What is it? $\\textbf{(A) } 15 \\qquad \\textbf{(B) } 17 \\qquad \\textbf{(C) } 19 \\qquad \\textbf{(D) } 21 "
    "\\qquad \\textbf{(E) } \\frac{1}{2}$"
)
LINES = "Which one?\nA. 15\nB. 17\nC. 19\nD. x^2+1"
CITIES = "Which? (A) Paris (B) London (C) Rome"
PLAIN = "?"

# question, true answer, stated answer, verdict
WORDS = [
    ("", "1000.99", "1000,99", "="), ("", "1000,99", "1000.99", "="), ("", "0.125", "0,125", "="),
    ("", "-0.5", "-0,5", "="),
    ("", "1000.99", "1000,98", "!"), ("", "500", "0,500", "?"), ("", "1000", "1000,000", "?"), ("", "2.5", "2,5", "?"),
    (AMC, "B", "(B) 17", "="), (AMC, "B", "\\textbf{(B) }17", "="), (AMC, "B", "B. 17", "="),
    (AMC, "B", "\\text{(B)}", "="), (AMC, "B", "\\textbf{(B)}", "="), (AMC, "B", "C", "!"), (AMC, "B", "(C) 19", "!"),
    (AMC, "B", "(B) 19", "?"), (AMC, "B", "17", "="), (AMC, "B", "19", "!"), (AMC, "B", "18", "?"),
    (AMC, "17", "B", "="), (AMC, "17", "(B) 17", "="), (AMC, "17", "C", "!"), (AMC, "17", "17", "="),
    (AMC, "17", "(C) 17", "?"), (AMC, "17", "(C) 19", "!"), (AMC, "\\frac{1}{2}", "E", "="),
    (AMC, "\\frac{1}{2}", "(E) \\frac{1}{2}", "="), (AMC, "E", "0.5", "="), (AMC, "\\textbf{(B) }17", "B", "="),
    (AMC, "(B)", "B", "="), (LINES, "B", "B. 17", "="), (LINES, "B", "B) 17", "="), (LINES, "17", "B", "="),
    (LINES, "D", "D", "="), (LINES, "x^2+1", "D", "="), (LINES, "x^2+1", "C", "!"), (LINES, "B", "b", "?!"),
    (CITIES, "A", "Paris", "="), (CITIES, "A", "(A) Paris", "="), (CITIES, "A", "London", "!"),
    (CITIES, "Paris", "A", "="), (CITIES, "Paris", "(B) Paris", "?"), (CITIES, "A", "Option A: Paris", "="),
    (CITIES, "A", "option (A)", "="), (PLAIN, "B", "(B) 17", "="), (PLAIN, "17", "(B) 17", "="),
    (PLAIN, "B", "B or C", "!?"), (PLAIN, "B", "(B) or (C)", "?!"), (PLAIN, "B", "(A) and (B)", "?!"),
    (PLAIN, "B", "not B", "?"), (PLAIN, "B", "B is wrong", "?"), (PLAIN, "17", "B", "?"), (PLAIN, "B", "A", "!"),
    (PLAIN, "B", "(B) not 17", "?"), (PLAIN, "B", "(C) 17", "!"), (PLAIN, "\\emptyset", "no real solution", "="),
    (PLAIN, "\\emptyset", "No solutions", "="), (PLAIN, "\\varnothing", "\\text{no solutions}", "="),
    (PLAIN, "no solution", "none", "="), (PLAIN, "no real solutions", "\\emptyset", "="),
    (PLAIN, "\\text{does not exist}", "DNE", "="), (PLAIN, "does not exist", "\\text{none}", "="),
    (PLAIN, "\\{\\}", "\\emptyset", "="), (PLAIN, "\\emptyset", "0", "!"), (PLAIN, "5", "no solution", "!"),
    (PLAIN, "\\emptyset", "5", "!"), (PLAIN, "no solution", "one solution", "!"),
    (PLAIN, "no real solutions", "no rational solutions", "?"),
    (PLAIN, "no solution", "infinitely many solutions", "!"), (PLAIN, "\\emptyset", "\\{\\}", "="),
    (PLAIN, "\\emptyset", "\\{0\\}", "!"), (PLAIN, "\\emptyset", "x \\in \\emptyset", "="),
    (PLAIN, "0", "\\emptyset", "!"), (PLAIN, "x=5", "5", "="), (PLAIN, "5", "x=5", "="),
    (PLAIN, "k = 45, n = 2", "k=45,n=2", "="), (PLAIN, "k = 45, n = 2", "n=2, k=45", "="),
    (PLAIN, "k = 45, n = 2", "n=45, k=2", "!"), (PLAIN, "k = 45, n = 2", "45, 2", "="),
    (PLAIN, "k = 45, n = 2", "(45, 2)", "="), (PLAIN, "k = 45, n = 2", "2, 45", "?"),
    (PLAIN, "(3,2)", "(p,q)=(3,2)", "="), (PLAIN, "(p,q)=(3,2)", "(q,p)=(2,3)", "="),
    (PLAIN, "(p,q)=(3,2)", "(2,3)", "!?"), (PLAIN, "(3,2)", "p=3, q=2", "="), (PLAIN, "(3,2)", "p=2, q=3", "!?"),
    (PLAIN, "(p,q)=(3,2)", "p=3 \\text{ and } q=2", "="),
    (PLAIN, "(2,3),(3,2)", "(x,y)=(2,3) \\text{ or } (x,y)=(3,2)", "="),
    (PLAIN, "\\frac{NO}{BO}=\\frac{1}{\\sqrt{6}}", "\\frac{1}{\\sqrt{6}}", "="), (PLAIN, "2\\mathrm{e}", "2e", "="),
    (PLAIN, "\\frac{1}{3}", "\\frac{1}{3} \\approx 0.333", "="), (PLAIN, "\\frac13", "x = 1/3 \\approx 0.33", "="),
    (PLAIN, "\\frac13", "1/3 \\approx 1.3", "?"), (PLAIN, "\\sqrt{2}", "\\sqrt{2} \\approx 1.414", "="),
    (PLAIN, "\\sqrt{2}", "\\approx 1.414", "?"), (PLAIN, "\\frac12", "\\sin 30^\\circ", "="),
    (PLAIN, "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "="),
    (PLAIN, "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}", "!"),
    (PLAIN, "x \\le 4", "x <= 4", "="), (PLAIN, "x \\neq 5", "x != 5", "="), (PLAIN, "yes", "Yes", "="),
    (PLAIN, "yes", "no", "!"),
    ("?", "10^{-4}", "1e-4", "="),
    ("?", "e-4", "1e-4", "?"), ("?", "e-4", "e - 4", "="), ("?", "1e-4", "e-4", "?"), ("?", "0.0001", "1e-4", "="),
    ("?", "5x^4", "\\frac{d}{dx}x^5", "?"), ("?", "20x^3", "\\dfrac{d^2}{dx^2} x^5", "?"), ("?", "5x^4", "5x^4", "="),
    ("?", "\\frac{5}{12}", "0.41666...", "="), ("?", "\\frac{4}{11}", "0.3636\\ldots", "="),
    ("?", "1", "0.999...", "="),
    ("?", "\\pi", "3.14159...", "?"), ("?", "\\frac{1}{3}", "0.33...", "?"), ("?", "\\frac{2}{3}", "0.333...", "!"),
    ("?", "AC", "A, C", "="), ("?", "AC", "(A) and (C)", "="), ("?", "AC", "\\text{A and C}", "="),
    ("?", "B, D", "BD", "="),
    ("?", "ABD", "A, B", "!"), ("?", "AC", "A, B", "!"), ("?", "AC", "C, A", "?"), ("?", "CAB", "A, B, C", "?"),
    ("?", "N/A", "5", "g"), ("?", "see solution", "5", "g"), ("?", "none", "5", "!"), ("?", "6'", "6", "g"),
    ("?", "3\\times 10^8", "3e9", "!"),
    ("?", "2-3e", "2-3e", "="),
    ("?", "x=6", "6=x", "="),
    ("?", "6", "6 = x", "="),
    ("?", "6", "7 = x", "!"),
    ("?", "2^n", "a_n = 2^n", "="),
    ("?", "4", "x_1 = 4", "="),
    ("?", "\\frac{\\ln 7}{\\ln 2}", "\\log_2 7", "="),
    ("?", "8", "8_9", "?"),
    ("?", "\\frac{3}{7}", "{3 \\over 7}", "="),
    ("?", "15", "{6 \\choose 2}", "="),
    ("?", "12345", "\\underline{12345}", "="),
    ("?", "12345", "\\color{blue}{12345}", "="),
    ("?", "12345", "\\ 12345\\ ", "="),
    ("?", "\\mathbb{R}", "\\text{All real numbers}", "="),
    ("?", "\\text{all real numbers}", "(-\\infty,\\infty)", "="),
    ("?", "\\text{all real numbers}", "(0,\\infty)", "!"),
    ("?", "\\infty", "infinity", "="),
    ("?", "-\\infty", "infinity", "!"),
    ("?", "(-\\infty,3)", "(-oo,3)", "="),
    ("?", "\\text{IV}", "IV", "="),
    ("?", "\\text{June 5}", "June 6", "!"),
    ("?", "\\text{June 5}", "5 June", "?"),
    ("?", "7^{\\text{th}}", "7", "="),
    ("?", "7 zebras", "7", "="),
    ("?", "7 zebras", "8", "!"),
    ("?", "1.5 million", "1500000", "="),
    ("?", "5 dozen", "60", "?"),
    ("?", "7 zebras", "7 lions", "?"), ("?", "7 zebras", "8 lions", "!"),
    ("?", "10^6", "1 million", "="), ("?", "10^6", "2 million", "?"), ("?", "1 million", "10^6", "="),
    ("?", "2\\times10^9", "2\\text{ billion}", "="), ("?", "1{,}500{,}000", "1.5 million", "="),
    ("?", "1.5 billion", "1,500 million", "="), ("?", "1.5 billion", "15 million", "!"),
    ("?", "-3000", "-3 thousand", "="),
    ("?", "5", "5 million", "?"), ("?", "5 million", "\\frac{10}{2}", "?"),
    ("How many million?", "5", "5 million", "?"),
    ("How many million are left?", "5000000", "5 million", "?"),
    *((f"Find $x$ and $y$ if {more}.", gold, answer, verdict) for more, gold, answer, verdict in (
        ("x+y=10", "x=5", "y=5", "?"), ("x+y=10", "x=5", "5=y", "?"), ("x+y=10", "x=5", "x=5", "="),
        ("x+y=10", "x=5", "X=5", "="), ("x+y=10", "x=5", "y=6", "!"), ("x+y=10", "5", "y=5", "="),
        ("x+y=10", "n=5", "y=5", "?"), ("x+y=10", "y=5", "n=5", "?"), ("x+y=10", "n=5", "y=6", "!"),
        ("x+y=10", "n=5", "t=5", "="), ("x+y=10", "y=2x", "x=\\frac{y}{2}", "="),
        ("x+y=10", "x=2, y=3", "a=2, b=3", "?"), ("x+y=10", "x=2, y=3", "a=2, b=4", "!"),
        ("x+y=10", "(x,y)=(3,2)", "(a,b)=(3,2)", "?"), ("x+y=10", "(x,y)=(3,2)", "(y,x)=(2,3)", "="),
    )),
    ("?", "12", "12 or so", "?"),
    ("?", "3:00 PM", "15:00", "="),
    ("?", "3:00 PM", "4:00 PM", "!"),
    ("?", "3:00 PM", "3:00 AM", "!"),
    ("?", "10:30 AM", "10:30", "="),
    ("?", "3:00 PM", "3:00", "?"), ("?", "3:00", "3:00 PM", "?"), ("?", "12:30 PM", "12:30", "="),
    ("?", "12:30 AM", "12:30", "?"), ("?", "3:00 AM", "15:00", "!"),
    ("?", "3:15 \\text{ p.m.}", "16:15", "!"),
    ("?", "2 pm", "14:00", "="), ("?", "2:00 p.m.", "2 \\text{ pm}", "="), ("?", "2 pm", "2 am", "!"),
    ("?", "2 pm", "2", "?"),
    ("?", "2 atm", "202650 Pa", "="), ("?", "2 atm", "202 kPa", "!"),
    ("?", "15:00", "3:00 PM", "="),
    ("?", "8:00", "8:30 AM", "!"),
]  # fmt: skip

# true answer, response, verdict
RESPONSES = [
    ("$\\frac{NO}{BO}=\\frac{1}{3}$", "$\\frac{1}{3}$", "="),
    ("7", "One might think the answer is 7.", "?"), ("7", "It is not true that the answer is 7.", "?"),
    ("100", "So the cost is \\$100.", "="), ("2\\sqrt{2}", "2√2", "="), ("7", "7?", "?"), ("7", "> 7", "?"),
    ("7", "The answer is 7. However, we double it.", "=?"), ("7", "<answer>6</answer><answer>7</answer>", "="),
    ("50%", "So it increased by 50%.", "="), ("4", "The answer is $2+2=4$.", "="), ("Monday", "It is Monday", "?"),
    ("9", "<answer>9</answer>", "="), ("9", "<answer> $9$ </answer>", "="),
    ("9", "<think>so \\boxed{8}</think><answer>9</answer>", "="), ("9", "<answer>8</answer>", "!"), ("9", "9", "="),
    ("9", "9.", "="), ("9", "$9$", "="), ("9", "`9`", "="), ("9", "`$9$`", "="), ("9", "**9**", "="),
    ("9", "The answer is `$9$`.", "="), ("9", "**Final Answer**: 9", "="), ("9", "**Final Answer:** 9", "="),
    ("9", "**Answer:** 9", "="), ("9", "**Answer**: $9$", "="), ("9", "Answer: **9**", "="),
    ("9", "**Final Answer**\n\n9", "="), ("9", "### Final Answer\n9", "="), ("9", "## Answer\n$$9$$", "="),
    ("9", "Answer \\[ 9 \\]", "="), ("9", "Answer \\[\n9\n\\]", "="), ("9", "\\boxed 9", "="),
    ("9", "\\boxed{\\boxed{9}}", "="), ("9", "\\fbox{9}", "="), ("9", "$\\boxed{9}$, so \\boxed{9}", "="),
    ("34", "Final Answer: The largest $n$ is 34.", "="), ("12", "Therefore, the value is 12.", "="),
    ("x \\le 4", "The solution is $x \\le 4$", "="), ("x\\le 4", "The solution is $x \\le 4$.", "="),
    ("12", "So the value is $12$.", "="), ("12", "We compute. Hence the total is 12.", "="),
    ("12", "Some text.\nThus, $x = 12$.", "="), ("12", "The value is not 12.", "?"),
    ("12", "I think the value might be 12.", "?"), ("12", "If x = 3, then the value is 12.", "?"),
    ("12", "Suppose the value is 12.", "?"), ("12", "Is the value 12?", "?"),
    ("12", "The answer is 12. Wait, that's wrong.", "?"), ("12", "The answer is 12? Let me check", "?"),
    ("12", "Maybe the answer is 12.", "?"),
    ("12", "My friend says the answer is 12.", "?"), ("12", "Bob claimed that the answer is 12.", "?"),
    ("12", "I say the answer is 12.", "="), ("12", "As I said, the answer is 12.", "="),
    ("12", "The answer is 12!", "?"), ("12", "The answer is 13!", "?"), ("24", "The answer is 4!", "="),
    ("12", "\\boxed{12!}", "!"),
    ("12", "Suppose the answer is 12.", "?"),
    ("12", "If x is 3, the answer is 12.", "?"), ("12", "A common wrong answer is 12.", "?"),
    ("15", "The answer is 15. A common wrong answer is 12.", "="), ("12", "The answer cannot be 12.", "?"),
    ("12", "The answer is not 12.", "?"), ("12", "So the value is about 12.", "?"),
    ("12", "So the value is at least 12.", "?"), ("12", "So the value is 12 or 13.", "!?"),
    ("12", "So the answer could be 12.", "?"), ("12", "\\boxed{12} is wrong.", "?"),
    ("12", "\\boxed{12}. That is incorrect.", "?"), ("12", "I doubt that the answer is 12.", "?"),
    ("12", "Therefore, the value is 12. But that contradicts the assumption.", "?"),
    ("12", "We assumed the value is 12, which is impossible.", "?"), ("3", "So x is 12 divided by 3.", "?"),
    ("3", "The ratio is 2:3.", "!?"), ("9", "So the perimeter is 12 and the area is 9.", "?"),
    ("1,2", "\\boxed{1} and \\boxed{2}", "="), ("1,2", "\\boxed{2}, \\boxed{1}", "="),
    ("\\{1,2\\}", "$x=\\boxed{1}$ or $x=\\boxed{2}$.", "="), ("1,2", "\\boxed{1}, \\boxed{2}, \\boxed{3}", "!"),
    ("2", "\\boxed{1} and \\boxed{2}", "?"), ("2", "\\boxed{2} and \\boxed{2}", "="),
    ("2", "\\boxed{2}, that is \\boxed{2.0}", "="), ("2", "First \\boxed{1}. Then \\boxed{2}.", "="),
    ("1", "First \\boxed{1}. Then \\boxed{2}.", "!"), ("1,2", "One is \\boxed{1}. The other is \\boxed{2}.", "?"),
    ("2", "\\boxed{1}\nWait, \\boxed{2}", "="), ("3", "\\boxed{1, 2, 3}", "!"),
    ("3", "\\boxed{1}, \\boxed{2}, \\boxed{3}", "?"), ("2", "\\boxed{1,2}", "!"),
    ("no solution", "Therefore, there is no solution.", "="),
    ("\\emptyset", "Thus the equation has no real solutions.", "="), ("5", "Therefore, there are no solutions.", "!"),
    ("B", "B", "="), ("B", "The answer is (B).", "="), ("B", "The answer is B.", "="),
    ("10455", "we get \\boxed{255}. So it has $10,455. Final Answer: The final answer is $10,455$.", "="),
    ("5000", "1e999999999", "?!t"), ("5", "The answer is exactly 5.", "="), ("9", "The answer is $9$ dollars.", "="),
    ("42", "The answers are 41 and 42.", "!?"), ("1, 2", "The answers are 1 and 2.", "="),
    ("7", "So there are 7 ways.", "="), ("7", "Therefore there are 7 more ways.", "?"),
    ("7", "So there are at least 7 ways.", "?"), ("\\frac{3}{4}", "\\boxed{\\frac34}", "="), ("3", "\\boxed 3", "="),
    ("3", "the answer is \\boxed 3.", "="), ("34", "\\boxed 34", "="), ("x", "\\boxed x", "="),
    ("4", "Put it in \\boxed format. The answer is 4.", "="),
    ("7", "<think>\nso \\boxed{8}\n</think>\n7", "="),
    ("7", "<think>\nThe answer is 8.\n</think>\nThe answer is 7.", "="),
    ("7", "<think>\\boxed{7}</think>\nNo idea.", "?"),
    ("7", "<think>\\boxed{7}</think>", "="),
    ("7", "<think>\nso \\boxed{7}", "?"), ("7", "[THINK]so \\boxed{7}", "?"),
    ("7", "<reasoning>\nIt is \\boxed{7}.", "?"),
    ("7", "\\boxed{7} <think>or \\boxed{8}", "?"), ("7", "The tag <think> is used. \\boxed{7}", "="),
    ("7", "<b>Answer:</b> 7", "="), ("7", "<p>The answer is <strong>7</strong>.</p>", "="),
    ("7", "<i>Answer</i>: <b>8</b>", "!"),
    # what the last sentence counts, or says that somebody has
    ("9", "She had 12 and sold 3. She has 9 eggs.", "="), ("40", "Add both. The trip costs $40.", "="),
    ("9", "So the total is 9 eggs.", "="), ("9 km", "Add them. He walks 9000 m.", "="),
    ("9 km", "Add them. He walks 9 miles.", "?"), ("40 dollars", "Add them. The trip costs 40 cents.", "?!"),
    ("9", "We count. She has 9 eggs at first.", "?"), ("9", "She has 9 eggs and 3 hens.", "?"),
    ("9", "I think she has 9 eggs.", "?"), ("9", "She has 9 dozen eggs.", "?"), ("9", "She sells 9 eggs per day.", "?"),
    ("9", "She has 9 more eggs than Tom.", "?"), ("9", "Does she have 9 eggs?", "?"),
    ("9", "So John is 9 times older.", "?"), ("9", "So the ratio is 9 to 5.", "?"),
    (
        "7",
        "<|channel|>analysis<|message|>It is \\boxed{9}<|end|><|start|>assistant<|channel|>final<|message|>"
        "The answer is \\boxed{7}.",
        "=",
    ),
    ("7", "Since a</b it follows. The answer is \\boxed{7}.", "="),
    ("7", "\\boxed{7} is not the answer.", "?"),
    ("7", "The answer is not \\boxed{7}.", "?"),
    ("7", "It can't be \\boxed{7}.", "?"),
    ("7", "Suppose the answer is \\boxed{7}. Then x = 2.", "?"),
    ("7", "So is it $\\boxed{7}$?", "?"),
    ("7", "The answer is not 9 but \\boxed{7}.", "="),
    ("7", "Is it possible? Yes: \\boxed{7}.", "="),
    ("7", "\\boxed{7}!", "="),
    ("7", "\\boxed{8}\n\nCorrection: the answer is 7", "?"),
    ("7", "Probably the answer is 7.", "?"),
    ("7", "Likely, the answer is 7.", "?"),
    ("7", "It would be wrong to say the answer is 7.", "?"),
    ("7", "Nobody says the answer is 7.", "?"),
    ("7", "The student's answer is 7.", "?"),
    ("7", "The previous answer is 7.", "?"),
    ("7", "The problem's answer is 7.", "="),
    ("7", "My first answer was 9, but the answer is 7.", "="),
    ("7", "The answer is 7... or is it 8?", "?"),
    ("7", "The answer is 7. Correction: 8.", "?"),
    ("7", "The answer is 7. This is because 9 is incorrect.", "="),
    ("C", "The answer is C. Option A is incorrect because it is small.", "="),
    ("C", "The answer is **C**.\n\nA is wrong because it is not big.", "="),
    ("C", "The answer is C. C is wrong.", "?"),
    ("C", "Option C", "="),
    ("C", "The correct choice is (C).", "="),
]  # fmt: skip


def asked(gold, question=PLAIN):
    return Prompt(id="0", messages=({"role": "user", "content": question},), ground_truth=gold, data_source="test")


@pytest.fixture(scope="module")
def math():
    pytest.importorskip("math_verify")
    with Verifier("math", timeout=20, workers=2) as verifier:
        yield verifier


def test_words(math):
    found = math.check_batch([f"\\boxed{{{a}}}" for _, _, a, _ in WORDS], [asked(g, q) for q, g, _, _ in WORDS])
    assert [(*row, r.verdict) for row, r in zip(WORDS, found, strict=True) if VERDICT[r.verdict] not in row[3]] == []


def test_responses(math):
    found = math.check_batch([r for _, r, _ in RESPONSES], [asked(g) for g, _, _ in RESPONSES])
    assert [
        (*row, r.verdict) for row, r in zip(RESPONSES, found, strict=True) if VERDICT[r.verdict] not in row[2]
    ] == []


def test_a_statement_that_counts_for_mathematics_counts_for_numbers():
    for gold, response, verdicts in RESPONSES:
        if gold.isdigit() and verdicts in ("=", "?"):
            found = VERDICT[check_numeric(response, gold).verdict]
            assert found == verdicts or (found == "?" and "boxed" not in response), (gold, response, found)


def test_numbers_of_a_list_of_boxes_have_no_verdict():
    assert check_numeric("\\boxed{1} or \\boxed{2}", "2").verdict == "answer_unparsable"
    assert check_numeric("\\boxed{1}, then later.\n\\boxed{2}", "2").verdict == "equal"


@cases(
    ("text", "boxes"),
    [
        ("\\boxed{1} and \\boxed{2}", ["1", "2"]), ("\\boxed{1}. So \\boxed{2}", ["2"]),
        ("\\boxed{1}\n\\boxed{2}", ["1", "2"]),
        ("$x=\\boxed{1}$\n\n$y=\\boxed{2}$", ["1", "2"]), ("\\boxed{1}\nSo we get \\boxed{2}", ["2"]),
        ("\\boxed{1} no, \\boxed{2}", ["2"]),
        ("\\boxed{x = \\boxed{3}}", ["3"]), ("\\\\boxed{\\\\frac{1}{2}}", ["\\frac{1}{2}"]), ("\\boxed{}", []),
        ("none", []),
        ("\\boxed{3 m} pens and \\boxed{4} bins", ["3 m", "4"]), ("#### 7", ["7"]),
        ("\\boxed{0.5} = \\boxed{1/2}", ["0.5"]),
    ],
)  # fmt: skip
def test_the_boxes_of_the_last_sentence(text, boxes):
    assert final_answers(text) == boxes


def test_all_boxes():
    assert final_answers("\\boxed{1}. And \\boxed{2}", every=True) == ["1", "2"]


@cases(
    ("text", "many"),
    [
        ("1, 2", True), ("\\{1\\}", True), ("{1,2,3}", True), ("1 \\text{ and } 2", True), ("(1,2),(2,1)", True),
        ("\\pm 2", True), ("x=1 or x=2", True),
        ("(1,2)", False), ("[1,2)", False), ("1,000", False), ("1{,}000", False), ("12", False),
        ("\\frac{1}{2}", False), ("\\binom{n}{2}", False),
        ("f(x,y)", False), ("1,234,567.5", False), ("x = 5", False),
    ],
)  # fmt: skip
def test_what_is_a_list(text, many):
    assert is_list(text) is many


def test_options_of_questions():
    assert options_of(AMC) == {"A": "15", "B": "17", "C": "19", "D": "21", "E": "\\frac{1}{2}"}
    assert options_of(LINES) == {"A": "15", "B": "17", "C": "19", "D": "x^2+1"}
    assert options_of("Points (A) and (C) are given. What is AB?") == {}
    assert options_of("Given (A) and (B) hold. (A) 1 (B) 2 (C) 3") == {"A": "1", "B": "2", "C": "3"}


@cases(
    ("text", "choice"),
    [
        ("(B)", ("B", "")), ("B", ("B", "")), ("**(B)** 17", ("B", "17")), ("\\mathbf{B}", ("B", "")),
        ("(b) 17", ("B", "17")),
        ("B: 17", ("B", "17")), ("\\text{B. } 17", ("B", "17")), ("choice B", ("B", "")), ("B = 17", None),
        ("BC", None), ("17", None),
        ("Bob", None), ("b", None), ("(x)", None), ("A + 1", None),
    ],
)  # fmt: skip
def test_letters_of_choices(text, choice):
    assert choice_of(text) == choice


def test_what_does_not_exist():
    assert is_empty("no real solutions") == is_empty("There are no real roots.") == "real"
    assert (
        is_empty("\\varnothing") == is_empty("None") == is_empty("does not exist") == is_empty("no such x exists") == ""
    )
    assert (
        is_empty("no 5")
        is is_empty("not 5")
        is is_empty("5")
        is is_empty("no idea")
        is is_empty("one solution")
        is None
    )


def test_values_by_name():
    assert by_name("k=4, n=2", "n=2, k=5") == ([("4", "5"), ("2", "2")], True)
    assert by_name("(p,q)=(3,2)", "(3, 2)") == ([("3", "3"), ("2", "2")], False)
    assert by_name("x=1, x=2", "1, 2") is None
    assert by_name("x_1=1, x_2=2", "2, 1") is None
    assert by_name("k=4, n=2", "a=4, b=2") == ([("4", "4"), ("2", "2")], True)
    assert by_name("k=4, n=2", "a=4, b=2, c=1") is None


def test_an_approximation_behind_a_value_is_left_out():
    assert without_approximation("\\frac{1}{3} \\approx 0.33", "1") == "\\frac{1}{3} "
    for text in ("x \\approx 0.33", "1/3 \\approx 1.3", "\\approx 5"):
        assert without_approximation(text, "1") == text


@pytest.mark.hostile("verdicts")
def test_a_true_answer_that_is_a_long_text_cannot_be_read(math):
    assert math.check("\\boxed{5}", asked("We add the numbers one by one. " * 20)).verdict == "gold_unparsable"


@pytest.mark.hostile("verdicts")
@settings(deadline=None)
@given(st.text(alphabet="\\boxed{}#a1 answer is:$.,=\n(AB)<>/²½①", max_size=80))
def test_no_response_raises(text):
    for found in (concluded(text), final_answer(text), choice_of(text), is_empty(text)):
        assert found is None or found is not False
    assert all(isinstance(answer, str) for answer in final_answers(text))
    options_of(text)
    check_numeric(text, "1", question=text)
