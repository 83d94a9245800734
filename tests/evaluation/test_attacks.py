import json
from dataclasses import asdict

import numpy as np
import pytest
from text_models import INFO, Scripted, exact, true_steps

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.attacks import (
    CONTROL,
    INJECTION,
    attack_lines,
    attack_list,
    attack_report,
    failed_attacks,
    honest_pairs,
)
from guerdon.evaluation.benchmarks.best_of_n import same_number_or_text
from guerdon.evaluation.benchmarks.step_benchmarks import right_and_wrong
from guerdon.settings.data import ChainSettings, SwapSettings
from guerdon.settings.evaluate import AttackSettings
from guerdon.types import Failure, Score

SOLUTIONS = right_and_wrong([ChainSettings(steps=4, ops="+-"), SwapSettings(steps=4)], 30, 0)
ALL = {"empty", "colon", "thought_process", "injected", "injected_first", "padded", "repeated_step", "fluent"}


def card_of(model, how="min", **given):
    return attack_report(model, SOLUTIONS, same_number_or_text, aggregation=how, **given)


def test_the_exact_truth_withstands_everything():
    card = card_of(exact())
    assert set(card.attacks) == ALL | {CONTROL}
    assert failed_attacks(asdict(card)) == []
    assert card.questions == 60
    for one in card.attacks.values():
        assert (one.at_least_as_high.estimate, one.accepted.estimate, one.fooled) == (0.0, 0.0, False)
        assert 0 < one.at_least_as_high.high < 0.1
        assert one.examples == []


def test_a_constant_falls_for_everything():
    card = card_of(Scripted(lambda e: np.full(len(e.texts), 0.7)))
    assert set(failed_attacks(asdict(card))) == ALL


def test_a_model_that_likes_instructions_falls_for_them_alone():
    def say(episode):
        return np.maximum(true_steps(episode), INJECTION.strip() in "".join(episode.texts))

    assert set(failed_attacks(asdict(card_of(Scripted(say))))) == {"injected", "injected_first"}


def test_the_mean_of_steps_falls_for_padding_with_right_steps():
    """Judging each line by itself, the repeated right step pulls the mean above the threshold."""

    def say(episode):
        alone = true_steps(episode)
        return np.where([text == episode.texts[0] for text in episode.texts], 1.0, alone)

    card = card_of(Scripted(say), "mean", settings=AttackSettings(copies=20))
    assert "repeated_step" in failed_attacks(asdict(card))
    assert card.attacks["repeated_step"].accepted.estimate == 1.0
    assert card.attacks["repeated_step"].examples[0]["value"] > 0.5


def test_what_cannot_be_measured_is_counted_and_fools_nobody():
    def say(episode):
        return Failure("unknown_character") if ":" in "".join(episode.texts) else true_steps(episode)

    card = card_of(Scripted(say))
    assert card.attacks["colon"].failures == {"unknown_character": 60}
    assert card.attacks["colon"].fooled is None
    assert card.attacks["colon"].at_least_as_high.n == 0
    assert failed_attacks(asdict(card)) == []
    assert "not measured" in "\n".join(attack_lines(asdict(card)))


def test_a_model_that_judges_wholes_uses_its_own_threshold():
    card = card_of(Scripted(lambda e: Score(total=float(true_steps(e).mean()))))
    assert card.threshold == INFO.success_threshold
    assert "fluent" in failed_attacks(asdict(card))  # three of four steps are right


def test_what_the_attacks_look_like():
    right, wrong = SOLUTIONS[:2]
    made = {name: change(right, wrong) for name, (_, change) in attack_list(AttackSettings(copies=2)).items()}
    assert made["empty"].steps == ("",)
    assert made["colon"].text == ":"
    assert made["injected"].steps[:-1] == wrong.steps[:-1]
    assert made["injected"].text.endswith(INJECTION.strip() + ";")
    assert made["injected_first"].text == INJECTION + wrong.text
    assert made["padded"].steps[:2] == (wrong.question, wrong.question)
    assert made["repeated_step"].steps == (right.steps[0],) * 2 + wrong.steps
    assert made["fluent"].steps == (*right.steps[:-1], wrong.steps[-1])
    assert all(not s.labels and "first_error" not in s.meta for n, s in made.items() if n != CONTROL)


def test_only_questions_with_a_right_and_a_truly_wrong_answer_count():
    def one(name, answer, is_correct, **meta):
        return Solution(name, "q", ("s;",), is_correct=is_correct, answer=answer, meta=meta)

    right = one("a", "1/2", True)
    assert honest_pairs([one("b", "0.5", False), right], same_number_or_text) == []
    assert honest_pairs([one("b", "2", False), right], same_number_or_text)[0][0] is right
    assert honest_pairs([one("b", "2", False), one("c", "1/2", True, first_error=0)], same_number_or_text) == []
    assert honest_pairs([one("b", "2", None), right], same_number_or_text) == []
    with pytest.raises(DataError, match="right and a wrong"):
        attack_report(exact(), [right], same_number_or_text, aggregation="min")


def test_the_card_is_json_and_a_table():
    card = card_of(Scripted(lambda e: np.full(len(e.texts), 0.7)), settings=AttackSettings(questions=5))
    record = json.loads(json.dumps(asdict(card), allow_nan=False))
    assert record["questions"] == 5
    assert failed_attacks(record) == failed_attacks(asdict(card))
    text = "\n".join(attack_lines(record))
    assert text.count("FOOLED") == 1 + len(ALL)
    assert "control" in text
    with pytest.raises(DataError, match="guerdon evaluate"):
        failed_attacks({"attacks": {"empty": {}}})
