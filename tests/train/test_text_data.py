"""From labelled solutions to lessons: what is trained towards, what is left out, who is held out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from text_lessons import data_of, study_of, sums

from guerdon.episodes.solution_files import write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError
from guerdon.labels.data_set import with_rewards
from guerdon.settings.train import (
    ImplicitTrainSettings,
    OutcomeTrainSettings,
    StepwiseTrainSettings,
    VerdictTrainSettings,
)
from guerdon.tasks.trained_questions import question_name
from guerdon.train.text import (
    data_paths,
    make_lessons,
    read_data,
    split_questions,
    start_model,
    step_targets,
)

torch.set_num_threads(1)

STUDY = study_of()


def settings_for(kind=StepwiseTrainSettings, **options):
    return kind(save_dir="unused", bf16=False, **options)


def solution(labels, rewards=(), **more):
    steps = tuple(f"{k}+0={k};" for k in range(len(labels)))
    return Solution(id="s", question="0+0=?", steps=steps, labels=labels, rewards=rewards, **more)


# targets


def test_hard_labels_are_targets_and_missing_ones_have_no_weight():
    targets, weights = step_targets(solution((1.0, None, 0.0)), settings_for())
    assert targets.tolist() == [1, 0, 0]
    assert weights.tolist() == [1, 0, 1]


def test_soft_labels_stay_what_they_are():
    targets, weights = step_targets(solution((0.8, 0.25, 1.0)), settings_for(labels="soft"))
    np.testing.assert_array_equal(targets, np.array([0.8, 0.25, 1.0], np.float32))
    assert weights.tolist() == [1, 1, 1]


def test_a_soft_label_is_never_cut_to_a_hard_one_in_silence():
    with pytest.raises(DataError, match=r"labels\[1\] is 0.8, .*labels: soft, or give a threshold") as refused:
        step_targets(solution((1.0, 0.8)), settings_for())
    assert refused.value.field == "labels"


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 8))
def test_from_the_threshold_on_a_label_is_right(eighths, threshold):
    targets, weights = step_targets(solution(tuple(n / 8 for n in eighths)), settings_for(threshold=threshold / 8))
    assert targets.tolist() == [float(n >= threshold) for n in eighths]
    assert (weights == 1).all()


def test_the_size_of_a_reward_weighs_its_step():
    paid = with_rewards(solution((1.0, 1.0, 0.0, 1.0), is_correct=False), "SE")
    targets, weights = step_targets(paid, settings_for())
    assert targets.tolist() == [1, 1, 0, 1]
    np.testing.assert_allclose(weights, [0.625, 0.75, 0.875, 1.0])
    _, plain = step_targets(paid, settings_for(rewards="ignore"))
    assert plain.tolist() == [1, 1, 1, 1]
    _, hard = step_targets(with_rewards(paid, "HE"), settings_for())
    assert hard.tolist() == [1, 1, 1, 1]


def test_a_reward_can_be_the_target():
    right = solution((1.0, 0.0), is_correct=False)
    targets, weights = step_targets(with_rewards(right, "SE"), settings_for(rewards="target"))
    np.testing.assert_allclose(targets, [0.875, 0.0])
    assert weights.tolist() == [1, 1]
    targets, _ = step_targets(with_rewards(right, "HE"), settings_for(rewards="target"))
    assert targets.tolist() == [0, 0]  # HE pays nothing in a wrong solution
    _, none = step_targets(right, settings_for(rewards="target"))
    assert none.tolist() == [0, 0]


def test_an_outcome_is_a_target_of_its_own():
    settings = settings_for(OutcomeTrainSettings)
    model = start_model(settings, STUDY.text_policy, separator=";")
    made = make_lessons(model, [solution((1.0,), is_correct=right) for right in (True, False)], settings)
    assert [target.tolist() for target in made.targets] == [[1], [0]]
    assert [weight.tolist() for weight in made.weights] == [[1], [1]]


# lessons


def test_labels_stand_on_their_own_tokens():
    made = sums(questions=6, rollouts=1)
    settings = settings_for()
    model = start_model(settings, STUDY.text_policy, separator=";")
    lessons = make_lessons(model, made, settings)
    for one, reading, target in zip(made, lessons.readings, lessons.targets, strict=True):
        text = model.tokenizer.decode(reading.ids[reading.start :])
        assert text == one.text
        for k, end in enumerate(reading.ends_S):
            assert model.tokenizer.decode(reading.ids[: end + 1]).endswith("".join(one.steps[: k + 1]))
            assert target[k] == one.labels[k]


def test_what_cannot_be_used_is_left_out_and_counted():
    settings = settings_for(max_length=17)  # 10 of the prompt and one step
    model = start_model(settings, STUDY.text_policy, separator=";")
    fitting = sums(questions=1, rollouts=1)[0]
    rows = [
        fitting,
        replace(fitting, labels=(None, None)),
        replace(fitting, labels=()),
        replace(fitting, steps=(), labels=()),
        replace(fitting, steps=("é", "1"), labels=(1.0, 1.0)),
        replace(fitting, labels=(None, 1.0)),
        replace(fitting, steps=("", "1+1=2;"), labels=(1.0, 1.0)),
        replace(fitting, steps=("", "1+1=2;"), labels=(1.0, None)),
    ]
    lessons = make_lessons(model, rows, settings)
    assert lessons.solutions == [0, 6]
    assert dict(lessons.counts) == {
        "no_label": 3, "no_step": 1, "unknown_character": 1, "too_long": 1, "cut": 1, "cut_steps": 1, "empty_steps": 2,
    }  # fmt: skip
    assert [len(r.ends_S) for r in lessons.readings] == [1, 2]
    assert lessons.weights[1].tolist() == [0, 1]


def test_verdicts_are_cut_where_their_request_would_not_fit():
    tiny = {"hidden_size": 32, "layers": 1, "heads": 2, "intermediate": 64}
    settings = settings_for(VerdictTrainSettings, tiny=tiny, max_length=80)
    model = start_model(settings, STUDY.text_policy, separator=";")
    one = sums(questions=1, rollouts=1)[0]
    whole = model.read(one.question, one.steps)
    lessons = make_lessons(model, [one], settings)
    assert whole.ends_S[1] + 1 + whole.tail > 80 >= whole.ends_S[0] + 1 + whole.tail
    assert lessons.readings[0].ends_S.tolist() == whole.ends_S[:1].tolist()


@pytest.mark.parametrize("kind", [OutcomeTrainSettings, ImplicitTrainSettings])
def test_outcomes_need_no_label_but_a_checked_answer_and_the_whole_text(kind):
    settings = settings_for(kind, max_length=24)
    model = start_model(settings, STUDY.text_policy, separator=";")
    one = replace(sums(questions=1, rollouts=1)[0], labels=(), rewards=())
    rows = [one, replace(one, is_correct=None), replace(one, steps=("1+1=2;" * 9,))]
    lessons = make_lessons(model, rows, settings)
    assert lessons.solutions == [0]
    assert dict(lessons.counts) == {"unknown_outcome": 1, "too_long": 1}


# who is held out


def test_no_question_is_on_both_sides():
    solutions = sums(questions=40, rollouts=3)
    spaced = [replace(s, id=s.id + "x", question=f"  {s.question} ") for s in solutions]  # the same questions
    both = [*solutions, *spaced]
    train, val = split_questions(both, 0.25, seed=3)
    assert sorted([*train, *val]) == list(range(len(both)))
    assert not {question_name(both[i]) for i in train} & {question_name(both[i]) for i in val}
    held = {question_name(both[i]) for i in val}
    assert 5 <= len(held) <= 15  # a quarter of 40, by their hashes
    few = solutions[:30]
    assert {question_name(few[i]) for i in split_questions(few, 0.25, seed=3)[1]} <= held  # data may grow
    backwards = both[::-1]
    again = {question_name(backwards[i]) for i in split_questions(backwards, 0.25, seed=3)[1]}
    assert again == {question_name(both[i]) for i in val}  # whatever their order
    assert again != {question_name(both[i]) for i in split_questions(both, 0.25, seed=4)[1]}
    assert len(split_questions(both, 0.0, seed=0)[1]) == 0
    with pytest.raises(DataError, match="one question is too few"):
        split_questions(both[:1], 0.1, seed=0)


# where the data is


def test_the_label_section_says_where_the_data_is_unless_the_settings_do():
    label = study_of(label={"save_dir": "d", "method": 2, "reward": "SE", "labeler": "judge"}).label
    assert data_paths(settings_for(), label) == ("d/prm_dataset_method2_SE",)
    assert data_paths(settings_for(data_path=("a", "b")), label) == ("a", "b")
    with pytest.raises(ConfigError, match="needs data_path, or a label section") as refused:
        data_paths(settings_for(), None)
    assert refused.value.key == "data_path"


def test_the_card_of_the_data_names_the_folder(tmp_path):
    for name, card in (("a", {"method": 1, "reward": "SE", "labeler": "judge"}), ("b", {"method": 1, "reward": "HE"})):
        write_solutions(tmp_path / name / "records.jsonl", sums(questions=2))
        (tmp_path / name / "card.json").write_text(__import__("json").dumps(card))
    one = read_data(settings_for(data_path=str(tmp_path / "a")), None)
    assert (one.folder, one.labelers, one.separator) == ("method1_SE", ("judge",), ";")
    both = read_data(settings_for(data_path=(str(tmp_path / "a"), str(tmp_path / "b"))), None)
    assert both.folder is None
    assert len(both.solutions) == 8
    assert data_of().folder is None
