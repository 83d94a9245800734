"""What a model wrote is read in linear time: quadratic work on texts of this length takes minutes, not a second."""

import pytest

from guerdon.tasks import answer_text, answer_words, answers, quantities
from guerdon.tasks import reasoning as stories
from guerdon.tasks.code import code_tests
from guerdon.tasks.verifier import check_exact, check_numeric

pytestmark = pytest.mark.hostile("verdicts")

LENGTH = 100_000
PIECES = (
    "1", " ", "{", "}", "\\", ",", "a", "$", "\n", "(", ")", "^", "_", "=", ".", "-", "*", "/", ":", "1 ", "a ",
    "\\boxed", "\\boxed{", "\\boxed{1},", "\\text{", "\\frac{1", "answer ", "answer is ", "Answer: ", "final answer: ",
    "**",
    "#", "####", "<answer>", "</answer>", "is and ", "if ", "(A) ", "(A) (B) ", "1h ", "m ", "per ", "\u00b2", "\u2212",
    "\u00bd", "^\\circ", "no solutions ", "there is no ", "doubt ", "x=1,", "$x$ ", "So ", "wait ", "\\approx ",
    "</think>", "<think>", "A is wrong ", "isn't ", "9:00 ", "{1 \\over ", "\\color{", "all real ", "Tom's ", "? ",
    "answer\n", "```python\n", "1e9", "=<<",
)  # fmt: skip
WHOLE = {  # these read a response or a question as it is
    "final_answer": answers.final_answer,
    "concluded": answers.concluded,
    "question": lambda text: quantities.same_number("1", "1 h", 0.0, text),
    "options_of": answer_words.options_of,
    "numeric": lambda text: check_numeric(text, "1"),
    "exact": lambda text: check_exact(text, "1"),
    "stated_answer": stories.stated_answer,
    "program_of": code_tests.program_of,
}
PARTS = {  # these read an answer, which is bounded
    "is_list": answers.is_list,
    "prose": answer_text.prose,
    "same_number": lambda text: quantities.same_number(text, "1"),
    "arithmetic": quantities.arithmetic,
    "compare_words": lambda text: answer_words.compare_words("1", text),
    "compare_choices": lambda text: answer_words.compare_choices("B", text, "(A) 1 (B) 2"),
    "is_empty": answer_words.is_empty,
    "plain_maths": answer_words.plain_maths,
    "by_name": lambda text: answer_words.by_name("x=1,y=2", text),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", WHOLE)
def test_long_repetitive_responses(name):
    for piece in PIECES:
        repeated = piece * (LENGTH // len(piece))
        for text in (f"1{repeated}", f"\\boxed{{{repeated}}}"):
            WHOLE[name](text)


@pytest.mark.timeout(30)
def test_deep_html():
    deep = LENGTH // 7
    assert answers.without_html("<b>" * deep + "7" + "</b>" * deep).count("<b>") == deep - 8
    assert answers.without_html("<p><b><i>7</i></b></p>") == "7"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PARTS)
def test_long_repetitive_answers(name):
    for piece in PIECES:
        PARTS[name](f"x{piece * (2000 // len(piece))}!")


@pytest.mark.timeout(60)
def test_numbers_are_bounded_before_they_are_computed():
    assert quantities.numbers_of("1e999999999") == quantities.numbers_of("9" * 5000) == ()
    assert quantities.numbers_of("1" + "0" * 150) == (10**150,)
    assert quantities.arithmetic("9" * 5000) is quantities.arithmetic("(" * 5000) is None
    assert quantities.same_number("9" * 5000, "9" * 5000) is None
    assert check_numeric("\\boxed{1e99999999999}", "5").verdict == "answer_unparsable"
