"""Word problems: every question can be read back, and lines are judged by what they calculate, whatever their words."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.step_benchmarks import generated_bench
from guerdon.labels.labelers import ExactLabeler, PromptedSolution
from guerdon.policies.batches.step_splitters import split
from guerdon.policies.batches.tokens import split_steps
from guerdon.settings.data import GeneratedDataSettings, StorySettings
from guerdon.settings.train import MistakesSettings
from guerdon.tasks.prompt_files import load_prompts
from guerdon.tasks.reasoning import covers, family_of, generate, line_value, stated_answer, step_truth, task_family
from guerdon.train.sft import demonstrate
from tables import cases

FAMILIES = [
    StorySettings(),
    StorySettings(steps=1, ops="-", high=4),
    StorySettings(steps=4, min_steps=2, ops="+-*/", high=12),
    StorySettings(steps=3, ops="/", high=60),
]
PEARS = task_family(StorySettings()).prompt(
    "Mia buys 3 boxes with 4 pears in each box. Mia gives 5 pears to Tom. How many pears does Mia have now?"
)


@pytest.mark.parametrize("family", FAMILIES, ids=range(len(FAMILIES)))
def test_questions_are_read_back_and_their_solutions_are_true(family):
    for prompt in generate(family, 60, 20)[0]:
        truth = step_truth(prompt, prompt.solution)
        assert truth.complete
        assert truth.outcome
        assert truth.correct == truth.follows == (True,) * truth.expected
        assert (family.min_steps or family.steps) <= truth.expected <= family.steps
        assert int(prompt.ground_truth) >= 2 or family.ops == "/"
        json.dumps(dict(prompt.extra_info))
        assert family_of(prompt).prompt(prompt.question) == prompt


@pytest.mark.parametrize(
    ("question", "solution", "answer"),
    [
        (PEARS.question, "Mia has 3 * 4 = 12 pears.\nMia has 12 - 5 = 7 pears.\n", "7"),
        (
            "Tom has twelve books. Anna is 30 years old. Anna gives Tom two books. Tom sells all books for 3 dollars "
            "each. How many dollars does Tom get?",
            "Tom has 12 + 2 = 14 books.\nTom gets 14 * 3 = 42 dollars.\n",
            "42",
        ),
        (
            "Leo has 8 coins. A year later Leo has 3 times as many coins. Leo sorts all coins into 2 equal piles and "
            "keeps only one pile. Leo shares all coins equally among 4 friends. How many coins does each friend get?",
            "Leo has 8 * 3 = 24 coins.\nLeo has 24 / 2 = 12 coins.\nEach friend gets 12 / 4 = 3 coins.\n",
            "3",
        ),
    ],
)
def test_solutions_by_hand(question, solution, answer):
    prompt = task_family(StorySettings()).prompt(question)
    assert (prompt.solution, prompt.ground_truth) == (solution, answer)


@cases(
    ("text", "correct", "follows", "complete"),
    [
        ("3 * 4 = 12 pears\n12 - 5 = 7 pears", (True, True), (True, True), True),
        ("Mia buys 3 x 4 = 12 pears.\n\nSo she has 12 pears.\nThen 12 - 5 = 7.\nThe answer is 7.",
         (True,) * 4, (True,) * 4, True),
        ("1. 3 \u00d7 4 = $12\n2. 12-5 = <<12-5=7>>7\n#### 7", (True,) * 3, (True,) * 3, True),
        ("3*4-5=7", (True,), (True,), True),                       # two calculations in a line
        ("12 pears\n7 pears", (True, True), (True, True), True),   # results alone
        ("3 * 4 = 13\n13 - 5 = 8", (False, False), (False, True), False),
        ("6 * 2 = 12\n12 - 5 = 8", (True, False), (True, False), False),
        ("3 * 5 = 12\n12 - 5 = 7", (False, True), (False, True), False),  # an equation that does not hold
        ("12 - 5 = 7", (False,), (False,), False),
        ("7", (False,), (False,), False),
        ("3 * 4 = 12\n12 - 5 = 7\n7 + 1 = 8", (True, True, False), (True, True, False), False),
        ("hello\n12 - 5 = 7", (False, True), (False, False), False),
        ("", (), (), False),
        ("\n \n", (), (), False),
    ],
)  # fmt: skip
def test_lines_are_judged_by_what_they_calculate(text, correct, follows, complete):
    truth = step_truth(PEARS, text)
    assert (truth.correct, truth.follows, truth.complete) == (correct, follows, complete)
    assert truth.first_error == (correct.index(False) if False in correct else -1)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3 * 4 = 12\n12 - 5 = 7 pears", "7"),
        ("The answer is 7 pears.\n\nI hope that 1 of 2 helps", "7"),
        ("So \\boxed{7}. It was 12 before.", "7"),
        ("#### 1,007", "1007"),
        ("7.50 dollars", "15/2"),
        ("so it is seven", None),
        ("9 / 0 = 1/0", None),
    ],
)
def test_the_answer_of_a_response(text, answer):
    truth = step_truth(PEARS, text)
    assert truth.answer == answer
    assert truth.outcome == (answer == "7")
    assert str(stated_answer(text)) == str(answer)


def test_what_a_line_states():
    assert [covers(line) for line in ("7 pears", "3 * 4 = 12", "3*4-5=7", "-3 + 4 = 1", "x = 3")] == [0, 1, 2, 1, 0]
    assert [line_value(line) for line in ("a 7 b 8", "= 3", "3 * 4 = 12 of 20", "none")] == [8, 3, 12, None]


@given(st.text(alphabet="0123456789+-*/=().,$ x<>\n:abAnswer is#\u00d7", max_size=80))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_list_of_right_and_wrong_steps(text):
    truth = step_truth(PEARS, text)
    assert len(truth.correct) == len(truth.follows) == len(truth.spans)
    if truth.spans:
        assert truth.spans[0][0] == 0
        assert truth.spans[-1][1] == len(text)
        assert all(a[1] == b[0] for a, b in zip(truth.spans, truth.spans[1:], strict=False))
        assert [text[a:b] for a, b in truth.spans] == split_steps(text, "\n")  # as labels and rewards cut it


def test_exact_labels_of_sentences():
    text = "She buys 3 x 4 = 12 pears.\n\nThen 12 + 5 = 17.\nThe answer is 17."
    solution = Solution("a", PEARS.question, split(text, "separator", separator="\n"), separator="\n")
    labels = ExactLabeler().label([PromptedSolution(solution, PEARS)])[0]
    assert labels.values == (1.0, 0.0, None)


def test_mistakes_and_benches_are_wrong_where_they_say_so():
    family = StorySettings(steps=3, ops="+-")
    for solution in generated_bench([family], 20, seed=0):
        assert (solution.meta["first_error"] == -1) == all(solution.labels)
    wrong = 0
    for prompt in generate(family, 40, 10)[0]:
        truth = step_truth(prompt, demonstrate(prompt, MistakesSettings(facts=0.5), np.random.default_rng(0)))
        assert truth.expected == len(truth.correct)
        wrong += not all(truth.follows)
    assert 5 < wrong < 40


def test_questions_that_were_changed_are_refused():
    family = task_family(StorySettings())
    for changed in ("", "How many?", PEARS.question + " Why?", PEARS.question.replace("gives", "lends"),
                    PEARS.question.replace("gives 5 pears", "gives 5 coins"), "Mia has 4 pears. How many pears does "
                    "Mia have now?"):  # fmt: skip
        with pytest.raises(DataError, match="not a question of the family story"):
            family.prompt(changed)
    with pytest.raises(DataError, match="no word problem fits"):
        task_family(StorySettings(steps=8, ops="/", high=4)).sample(np.random.default_rng(0))


def test_worked_examples_before_every_question():
    data = GeneratedDataSettings(
        task=StorySettings(), train_size=6, val_size=3, shots=2, system_prompt="Short.", n_samples=4
    )
    train, validation = load_prompts(data)
    plain, held = load_prompts(data.model_copy(update={"shots": 0}))
    assert [p.question for p in train] == [p.question for p in plain[2:]]
    assert [p.question for p in validation] == [p.question for p in held]
    for prompt in (*train, *validation):
        assert [m["role"] for m in prompt.messages] == ["system", *["user", "assistant"] * 2, "user"]
        assert prompt.messages[2]["content"] == plain[0].solution.strip()
        assert prompt.messages[3]["content"] == plain[1].question
        assert step_truth(prompt, prompt.solution).complete
    with pytest.raises(DataError, match=r"data\.shots is 6") as refused:
        load_prompts(data.model_copy(update={"shots": 6}))
    assert refused.value.field == "data.shots"
