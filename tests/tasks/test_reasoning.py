import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.errors import DataError
from guerdon.settings.data import AutomatonSettings, ChainSettings, RegisterSettings, SwapSettings
from guerdon.tasks.prompts import Prompt, check_contamination
from guerdon.tasks.reasoning import generate, step_spans, step_truth, task_family
from tables import cases, refuses

FAMILIES = [
    ChainSettings(),
    ChainSettings(modulus=100, high=120, steps=9, min_steps=2, ops="+*"),
    ChainSettings(modulus=None, steps=5, high=99),
    ChainSettings(steps=7, min_steps=4, any_order=3, ops="+-"),
    ChainSettings(modulus=None, steps=5, any_order=5, ops="+-"),
    RegisterSettings(),
    RegisterSettings(modulus=30, inputs=1, steps=8),
    SwapSettings(),
    SwapSettings(items=2, steps=1),
    AutomatonSettings(),
    AutomatonSettings(states=10, symbols=1, steps=12),
]
NAMES = [f"{s.family}-{i}" for i, s in enumerate(FAMILIES)]
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHI0123456789=?;+-*"
CHAIN = task_family(ChainSettings(steps=3))


def chain(question="3+5=?;?*2=?;?-7=?;"):
    return CHAIN.prompt(question)


@pytest.mark.parametrize(
    ("family", "question", "solution", "answer"),
    [
        (ChainSettings(steps=3), "3+5=?;?*2=?;?-7=?;", "3+5=8;8*2=6;6-7=9;", "9"),
        (ChainSettings(modulus=100, high=99), "47-75=??;??*03=??;", "47-75=72;72*03=16;", "16"),
        (ChainSettings(modulus=None), "3-5=?;?*12=?;", "3-5=-2;-2*12=-24;", "-24"),
        (RegisterSettings(), "a=3;b=4;c=a+b=?;d=c*a=?;", "c=3+4=7;d=7*3=1;", "1"),
        (SwapSettings(items=3), "ABC;12=???;23=???;", "12=BAC;23=BCA;", "BCA"),
        (AutomatonSettings(states=3, symbols=2), "a=120;b=002;0a=?;?b=?;?a=?;", "0a=1;1b=0;0a=1;", "1"),
    ],
)
def test_solutions_by_hand(family, question, solution, answer):
    prompt = task_family(family).prompt(question)
    assert (prompt.solution, prompt.ground_truth) == (solution, answer)
    assert step_truth(prompt, solution).complete


@cases("family", FAMILIES, ids=NAMES)
def test_the_gold_solution_is_true_and_lines_up_with_the_question(family):
    rng = np.random.default_rng(3)
    made = task_family(family)
    for _ in range(20):
        prompt = made.sample(rng)
        truth = step_truth(prompt, prompt.solution)
        assert truth.complete
        assert truth.outcome
        assert all(truth.follows)
        assert (truth.first_error, truth.answer) == (-1, prompt.ground_truth)
        assert (family.min_steps or family.steps) <= truth.expected <= family.steps
        assert set(prompt.question + prompt.solution) <= set(ALPHABET)
        asked = [line for line in prompt.question.split(";") if "?" in line]
        solved = prompt.solution.split(";")[:-1]
        assert len(asked) == len(solved)
        if getattr(family, "modulus", 10) is not None:  # one width for all numbers: a constant distance to copy at
            widths = [len(a) for a in asked], [len(s) for s in solved]
            assert widths[0] == widths[1] or (family.family == "register" and family.modulus > 10)
        json.dumps(dict(prompt.extra_info))


def test_every_chain_agrees_with_plain_arithmetic():
    rng = np.random.default_rng(0)
    for _ in range(200):
        prompt = task_family(ChainSettings(steps=5, modulus=97, high=150)).sample(rng)
        value = None
        for line in prompt.question.split(";")[:-1]:
            op = next(c for c in "+-*" if c in line)
            left, right = line.split("=")[0].split(op)
            left = int(left) if value is None else value
            value = {"+": left + int(right), "-": left - int(right), "*": left * int(right)}[op] % 97
        assert int(prompt.ground_truth) == value


def test_a_slip_is_the_first_error_and_what_follows_from_it_is_told_apart():
    truth = step_truth(chain(), "3+5=9;9*2=8;8-7=1;")
    assert truth.correct == (False, False, False)
    assert truth.follows == (False, True, True)
    assert (truth.first_error, truth.answer, truth.outcome) == (0, "1", False)
    truth = step_truth(chain(), "3+5=8;8*2=5;6-7=9;")  # wrong on the way, right in the end
    assert truth.correct == (True, False, True)
    assert truth.follows == (True, False, False)
    assert (truth.first_error, truth.answer, truth.outcome, truth.complete) == (1, "9", True, False)


def test_lines_that_are_malformed_missing_or_too_many():
    empty = step_truth(chain(), "")
    assert (empty.correct, empty.spans, empty.first_error, empty.answer, empty.outcome) == ((), (), -1, None, False)
    short = step_truth(chain(), "3+5=8;8*2=6;")
    assert (short.correct, short.first_error, short.outcome, short.complete) == ((True, True), -1, False, False)
    odd = step_truth(chain(), "3+5=8;what?;6-7=9;")
    assert odd.correct == (True, False, True)
    assert odd.follows == (True, False, False)
    long = step_truth(chain(), "3+5=8;8*2=6;6-7=9;9+1=0;;")
    assert long.correct == (True, True, True, False, False)
    assert (long.first_error, long.answer, long.outcome) == (3, "0", False)
    open_end = step_truth(chain(), "3+5=8; 8*2=6;\n6-7=9")
    assert open_end.complete
    assert step_truth(chain(), "6-7=9").outcome  # the answer alone, however it was reached
    assert step_truth(chain(), "9").answer is None
    assert step_truth(chain(), "3+5=" + "9" * 20000 + ";8*2=6").correct == (False, True)


def test_a_variable_that_does_not_matter_may_be_wrong():
    prompt = task_family(RegisterSettings()).prompt("a=3;b=4;c=a+b=?;d=a*b=?;e=d-a=?;")
    truth = step_truth(prompt, "c=3+4=6;d=3*4=2;e=2-3=9;")
    assert truth.correct == (False, True, True)
    assert truth.follows == (False, True, True)
    assert truth.outcome
    renamed = step_truth(prompt, "c=3+4=7;x=3*4=2;e=2-3=9;")  # what d is was never said
    assert renamed.follows == (True, False, False)


def test_spans_cover_the_text_without_gaps():
    assert step_spans("a;bb;c") == ((0, 2), (2, 5), (5, 6))
    assert step_spans("a;\n") == ((0, 3),)
    assert step_spans(" ") == ((0, 1),)
    assert step_spans(";;") == ((0, 1), (1, 2))
    assert step_spans("x\n\ny", "\n\n") == ((0, 3), (3, 4))


@st.composite
def texts(draw, alphabet):
    """Anything at all, and text that looks much like a solution."""
    near = st.text(alphabet=alphabet + " \n", max_size=60)
    return draw(st.one_of(st.text(max_size=60), near, st.lists(near, max_size=8).map(";".join)))


@pytest.mark.hostile("verdicts")
@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(0, 5))
def test_any_text_is_a_list_of_steps_and_never_an_error(family, data, seed):
    made = task_family(family)
    prompt = made.sample(np.random.default_rng(seed))
    text = data.draw(texts(ALPHABET))
    truth = step_truth(prompt, text)
    assert len(truth.correct) == len(truth.follows) == len(truth.spans)
    assert "".join(text[a:b] for a, b in truth.spans) == text
    assert all(a < b for a, b in truth.spans)
    assert truth.first_error == next((k for k, right in enumerate(truth.correct) if not right), -1)
    assert truth.outcome == (truth.answer == prompt.ground_truth)
    if truth.complete:
        assert truth.outcome
    for k, right in enumerate(truth.correct):  # what is true after true lines also follows from them
        if all(truth.correct[: k + 1]):
            assert right
            assert truth.follows[k]


@pytest.mark.parametrize("family", [f for f in FAMILIES if getattr(f, "any_order", 1) == 1], ids=str)
@settings(deadline=None, max_examples=30)
@given(st.data(), st.integers(0, 100))
def test_one_changed_character_is_one_wrong_line(family, data, seed):
    made = task_family(family)
    prompt = made.sample(np.random.default_rng(seed))
    place = data.draw(st.integers(0, len(prompt.solution) - 1))
    other = data.draw(st.sampled_from([c for c in ALPHABET if c not in (prompt.solution[place], ";")]))
    if prompt.solution[place] == ";":
        return
    line = prompt.solution[:place].count(";")
    truth = step_truth(prompt, prompt.solution[:place] + other + prompt.solution[place + 1 :])
    assert truth.correct == tuple(k != line for k in range(truth.expected))
    assert truth.first_error == line
    assert not truth.follows[line]


def test_generated_sets_are_seeded_distinct_and_apart():
    train, validation = generate(ChainSettings(steps=2), 300, 50)
    assert (len({p.question for p in train}), len({p.id for p in train}), len(validation)) == (300, 300, 50)
    check_contamination(train, validation)
    assert generate(ChainSettings(steps=2), 300, 50) == (train, validation)
    more, same = generate(ChainSettings(steps=2), 400, 50)
    assert same == validation
    assert more[:300] == train
    assert generate(ChainSettings(steps=2, seed=1), 300, 50)[0] != train
    with pytest.raises(DataError, match="hardly more than"):
        generate(SwapSettings(items=2, steps=1), 5, 0)


def test_truth_needs_a_generated_prompt_that_nobody_changed():
    prompt = chain()
    plain = Prompt(id="1", messages=prompt.messages, ground_truth="1", data_source="x")
    with pytest.raises(DataError, match="not a generated problem"):
        step_truth(plain, "")
    odd = Prompt(
        id="1", messages=prompt.messages, ground_truth="1", data_source="x",
        extra_info={"family": "chain", "parameters": {"hardness": 3}},
    )  # fmt: skip
    with pytest.raises(DataError, match="no family of this version") as refused:
        step_truth(odd, "")
    assert refused.value.field == "extra_info"


@cases("family", FAMILIES, ids=NAMES)
@cases("question", ["", ";", "hello", "3+5=?", "a=1;", "ABC;", "a=12;b=1;0a=?;", "a=1;b=c+a=?;", "1+1=?;x"])
def test_a_question_of_another_kind_is_refused(family, question):
    with pytest.raises(DataError, match="not a question of the family"):
        task_family(family).prompt(question)


# Steps with several right continuations.

FREE = task_family(ChainSettings(steps=4, any_order=2, ops="+-"))
QUESTION = "3+5=?;?-2=?;?+2=?;?+2=?;"  # blocks: +5 and -2; +2 and +2


@cases(
    ("text", "follows", "first_error"),
    [
        ("3+5=8;8-2=6;6+2=8;8+2=0;", (True,) * 4, -1),
        ("3-2=1;1+5=6;6+2=8;8+2=0;", (True,) * 4, -1),
        ("3+5=8;8+5=3;3+2=5;5+2=7;", (True, False, True, True), 1),  # +5 is used up
        ("3+2=5;5+5=0;0+2=2;2+2=4;", (False, False, True, True), 0),  # of the next block; it stands for +5
        ("3+2=5;5-2=3;3+2=5;5+2=7;", (False, True, True, True), 0),
        ("3-2=1;1+5=7;7+2=9;", (True, False, True), 1),
        ("3-2=1;1+5=6;6+2=8;8+2=0;0+2=2;", (True,) * 4 + (False,), 4),
        ("3-2=1;x;6+2=8;", (True, False, False), 1),
    ],
)
def test_a_block_of_operations_may_come_in_any_order(text, follows, first_error):
    truth = step_truth(FREE.prompt(QUESTION), text)
    assert (truth.follows, truth.first_error) == (follows, first_error)
    assert truth.correct == tuple(k < first_error or first_error < 0 for k in range(len(follows)))
    assert truth.complete == (first_error < 0 and len(follows) == 4)


@given(seed=st.integers(0, 999), block=st.integers(1, 4), modulus=st.sampled_from([None, 10, 100]))
@settings(max_examples=40, deadline=None)
def test_every_order_within_blocks_is_right_and_has_the_same_answer(seed, block, modulus):
    family = task_family(ChainSettings(steps=6, any_order=block, ops="+-", modulus=modulus))
    rng = np.random.default_rng(seed)
    prompt = family.sample(rng)
    problem = family.solve(prompt.question)
    lines = []
    for k in range(6):
        right = problem.next_lines(k, lines)
        assert problem.follow(k, lines) == right[0]
        assert len(right) <= min(block - k % block, 6 - k)
        lines.append(right[int(rng.integers(len(right)))])
    truth = step_truth(prompt, "".join(line + ";" for line in lines))
    assert truth.complete
    assert truth.outcome


def test_orders_need_operations_that_commute():
    with refuses("any_order"):
        ChainSettings(any_order=2)
