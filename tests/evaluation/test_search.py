"""Searches over a scripted tree and with a tiny policy; samples of a study's policy, repetitions among them."""

import numpy as np
import pytest
import torch
from text_models import Scripted

from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.searching.search import (
    Piece,
    PolicyWriter,
    SearchPlan,
    _cut,
    beam_search,
    dvts,
    sampled_solutions,
)
from guerdon.evaluation.suites.text_suite import check_evaluation
from guerdon.policies.language.generate import LocalEngine
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.study import Study
from guerdon.settings.text_policy import LocalGenerationSettings, TextPolicySettings, TinyModelSettings
from guerdon.types import Failure
from tables import refuses


class Digits:
    """Goes on with digits 0, 1, 2, ... in turn, `depth` places in all; to the end: the first digit again and again."""

    def __init__(self, depth=3, finishes=True):
        self.depth, self.finishes, self.asked = depth, finishes, []

    def continue_(self, contexts, n, stop):
        self.asked.append((len(contexts), n, stop))
        return [[self._piece(written.count(";"), k, stop) for k in range(n)] for _, written in contexts]

    def _piece(self, place, k, stop):
        length = 1 if stop else self.depth - place
        return Piece(f"{k % 10};" * length, self.finishes and place + length == self.depth)


def mean_digit(episode):
    return [int(text[0]) / 10 for text in episode.texts]


COMMON = {"aggregation": "mean", "separator": ";"}


def best_of_n_search(writer, model, questions, *, n, **common):
    """As `guerdon search` does it."""
    return beam_search(writer, model, questions, SearchPlan(n, beam_width=1, rounds=1, **common))


def look(search, writer, model, questions=("q",), **given):
    """Any of the three searches, each with the form of its numbers."""
    if search is best_of_n_search:
        return search(writer, model, questions, **given, **COMMON)
    return search(writer, model, questions, SearchPlan(**given, **COMMON))


def test_best_of_n_takes_the_largest():
    writer = Digits()
    found = best_of_n_search(writer, Scripted(mean_digit), ["q", "r"], n=4, **COMMON)
    assert [f.best.text for f in found] == ["3;3;3;", "3;3;3;"]
    assert found[0].best.steps == ("3;", "3;", "3;")
    assert (found[0].written, len(found[0].complete)) == (4, 4)
    assert writer.asked == [(2, 4, None)]


def test_beam_search_keeps_the_best_and_lets_each_go_on():
    writer = Digits()
    found = look(beam_search, writer, Scripted(mean_digit), n=4, beam_width=2)[0]
    # 4 first steps; 3 and 2 survive, each goes on two ways; of 30 31 20 21 survive 31 and 30 (before 21)
    assert writer.asked == [(1, 4, ";"), (2, 2, ";"), (2, 2, ";")]
    assert found.best.text == "3;1;1;"
    assert {beam.text for beam in found.complete} == {"3;1;1;", "3;1;0;", "3;0;1;", "3;0;0;"}
    assert found.written == 12


def test_dvts_keeps_its_trees_apart():
    class Trees(Digits):
        def continue_(self, contexts, n, stop):
            pieces = super().continue_(contexts, n, stop)
            if not contexts[0][1]:  # the two trees start with 0, 1 and with 4, 5
                pieces[1] = [Piece(f"{4 + k};", False) for k in range(n)]
            return pieces

    writer = Trees()
    found = look(dvts, writer, Scripted(mean_digit), n=4, beam_width=2)[0]
    assert writer.asked == [(2, 2, ";"), (2, 2, ";"), (2, 2, ";")]
    assert [beam.text for beam in found.complete] == ["1;1;1;", "5;1;1;"]
    assert found.best.text == "5;1;1;"


def test_the_last_round_is_written_to_the_end():
    for search in (beam_search, dvts):
        writer = Digits(depth=5)
        found = look(search, writer, Scripted(mean_digit), n=2, beam_width=2, rounds=2)[0]
        assert writer.asked[-1][2] is None
        assert found.best.text == "1;1;1;1;1;"


@pytest.mark.parametrize("search", [best_of_n_search, beam_search, dvts])
def test_no_complete_beam_is_a_failure(search):
    width = {} if search is best_of_n_search else {"beam_width": 2, "rounds": 3}
    found = look(search, Digits(finishes=False), Scripted(mean_digit), n=2, **width)[0]
    assert (found.best, found.complete, found.failure.reason) == (None, (), "none_finished")


@pytest.mark.parametrize("search", [best_of_n_search, beam_search, dvts])
def test_a_model_that_measures_nothing_is_a_failure(search):
    width = {} if search is best_of_n_search else {"beam_width": 2}
    found = look(search, Digits(), Scripted(lambda e: Failure("late")), n=2, **width)[0]
    assert (found.best, found.failure.reason) == (None, "none_measured")
    assert found.unmeasured["late"] == found.written


def test_a_beam_that_cannot_be_measured_does_not_go_on():
    def say(episode):
        return Failure("late") if episode.texts[0] == "3;" else mean_digit(episode)

    found = look(beam_search, Digits(), Scripted(say), n=4, beam_width=2)[0]
    assert found.best.text == "2;1;1;"
    assert found.unmeasured == {"late": 1}


def test_early_ends_leave_and_the_others_go_on():
    class Ends(Digits):
        def _piece(self, place, k, stop):
            return Piece(f"{9 if place else 1};", (place == 0 and k == 1) or place == 2)

    found = look(beam_search, Ends(), Scripted(mean_digit), n=2, beam_width=2)[0]
    assert found.complete[0].text == "1;"
    assert found.best.text == "1;9;9;"


def test_a_step_that_a_length_limit_cut_goes_on_as_one_step():
    class Halves:
        def continue_(self, contexts, n, stop):
            return [[Piece("12;" if written else "5", bool(written))] * n for _, written in contexts]

    found = look(beam_search, Halves(), Scripted(lambda e: np.ones(len(e.texts))), n=1, beam_width=1)[0]
    assert found.best.steps == ("512;",)


def test_a_beam_without_room_is_given_up():
    class Full(Digits):
        def continue_(self, contexts, n, stop):
            pieces = super().continue_(contexts, n, stop)
            full = [written.startswith("3;") for _, written in contexts]
            return [[Piece("", False)] * n if f else row for f, row in zip(full, pieces, strict=True)]

    writer = Full()
    found = look(beam_search, writer, Scripted(mean_digit), n=4, beam_width=2)[0]
    assert found.best.text == "2;1;1;"
    alone = look(dvts, Full(), Scripted(mean_digit), n=4, beam_width=4)[0]
    assert (alone.failure.reason, alone.unmeasured) == ("none_finished", {})


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"n": 5, "beam_width": 2}, "n"),
        ({"n": 4, "beam_width": 0}, "beam_width"),
        ({"n": 4, "rounds": 0}, "rounds"),
        ({"n": 4, "batch_size": 0}, "batch_size"),
    ],
)
def test_bad_numbers_are_refused(given, key):
    with pytest.raises(ConfigError, match="multiple of beam_width") as refused:
        SearchPlan(**given, **COMMON)
    assert refused.value.key == key
    with pytest.raises(ConfigError, match="needs a separator") as refused:
        SearchPlan(n=4, aggregation="min", separator="")
    assert refused.value.key == "separator"
    with refuses("n"):
        best_of_n_search(Digits(), Scripted(mean_digit), ["q"], n=0, **COMMON)


def test_no_question_is_no_work():
    writer = Digits()
    assert look(beam_search, writer, Scripted(mean_digit), [], n=2, beam_width=2) == []
    assert writer.asked == []


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    tiny = TinyModelSettings(
        hidden_size=16, layers=1, heads=2, intermediate=32, max_positions=128, alphabet="0123456789+-*=?;"
    )
    return load_policy(TextPolicySettings(tiny=tiny, bf16=False), seed=0, device="cpu")


def writer(policy, **given):
    engine = LocalEngine(policy, LocalGenerationSettings())
    given = {"max_new_tokens": 40, "rng": np.random.default_rng(0), **given}
    return PolicyWriter(engine, policy.tokenizer, **given)


@pytest.mark.parametrize(
    ("text", "finished", "stop", "piece"),
    [
        ("1=2;3=4;", True, ";", Piece("1=2;", False)),
        ("1=2;", True, ";", Piece("1=2;", True)),
        ("1=2; ", True, ";", Piece("1=2;", True)),
        ("1=2;", False, ";", Piece("1=2;", False)),
        ("1=2", True, ";", Piece("1=2", True)),
        ("1=2;3", True, None, Piece("1=2;3", True)),
        ("", True, ";", Piece("", True)),
    ],
)
def test_pieces_are_cut_at_the_first_stop(text, finished, stop, piece):
    assert _cut(text, finished, stop) == piece


def test_a_policy_goes_on_from_a_prefix(policy):
    rows = writer(policy).continue_([("1+1=?;", ""), ("1+1=?;", "1+1=2;")], 8, ";")
    assert [len(row) for row in rows] == [8, 8]
    pieces = [piece for row in rows for piece in row]
    assert all(piece.text.count(";") <= 1 for piece in pieces)
    assert any(piece.text.endswith(";") for piece in pieces)
    whole = writer(policy).continue_([("1+1=?;", "")], 16, None)[0]
    assert any(";" in piece.text.rstrip(";") for piece in whole)
    assert writer(policy).continue_([("1+1=?;", "")], 16, None)[0] == whole


def test_a_step_has_a_limit_of_its_own(policy):
    pieces = writer(policy, step_tokens=2).continue_([("1+1=?;", "")], 8, ";")[0]
    assert all(len(piece.text) <= 2 for piece in pieces)


def test_a_solution_has_a_limit_and_then_no_room(policy):
    rows = writer(policy, max_new_tokens=8).continue_(
        [("1+1=?;", ""), ("1+1=?;", "1+1=2;"), ("1+1=?;", "1" * 8)], 6, None
    )
    assert [max(len(piece.text) for piece in row) <= limit for row, limit in zip(rows, (8, 2, 0), strict=True)] == [
        True
    ] * 3
    assert rows[2] == [Piece("", False)] * 6


def test_beam_search_with_a_policy(policy):
    model = Scripted(lambda e: np.array([1 / (1 + len(text)) for text in e.texts]))
    plan = SearchPlan(n=4, beam_width=2, aggregation="min", separator=";", rounds=4)
    found = beam_search(writer(policy), model, ["1+1=?;", "2+2=?;"], plan)
    for one in found:
        assert (one.best is None) == (one.failure is not None)
        assert one.written >= 4
        assert all(len(beam.text) <= 40 for beam in one.complete)


TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 64, "alphabet": "01+=?;"}
TASK = {"family": "chain", "steps": 2, "modulus": 2, "low": 0, "high": 1, "ops": "+"}
STUDY = Study.model_validate(
    {
        "policy": {"type": "text", "tiny": TINY, "bf16": False},
        "data": {"task": TASK, "train_size": 4, "val_size": 3, "max_response_length": 4,
                 "filter_accuracy": False, "filter_truncated": False},
    }
)  # fmt: skip


def test_every_sample_is_kept_and_checked(tmp_path):
    found = sampled_solutions(STUDY, questions=2, n=40, folder=tmp_path)
    assert len(found) == len({one.id for one in found}) == 80
    questions = {one.question for one in found}
    assert len(questions) == 2
    texts = [one.text for one in found]
    assert len(set(texts)) < len(texts)  # at most four of eight tokens: some say the same
    assert all(one.is_correct is not None for one in found)  # generated problems: text that is not a solution is wrong
    assert all(one.ground_truth in ("0", "1") for one in found)
    kept = (tmp_path / "completions.jsonl").read_bytes()
    assert [one.text for one in sampled_solutions(STUDY, questions=2, n=40, folder=tmp_path)] == texts
    assert (tmp_path / "completions.jsonl").read_bytes() == kept


def test_a_question_without_room_is_refused_before_the_first_sample(tmp_path):
    study = STUDY.model_copy(update={"data": STUDY.data.model_copy(update={"max_response_length": 60})})
    with pytest.raises(DataError, match=r"the question \S+ of \d+ tokens and a response of up to 60 .* 64 positions"):
        sampled_solutions(study, questions=2, n=1, folder=tmp_path)
    given = STUDY.model_dump(exclude_unset=True, mode="json")
    given["evaluate"] = {"aggregation": "min", "best_of_n": {"n": 2}}
    check_evaluation(Study.model_validate(given))
    given["data"]["max_response_length"] = 60
    with pytest.raises(DataError, match=r"the question \S+ of \d+ tokens"):
        check_evaluation(Study.model_validate(given))


def test_questions_are_those_held_out(tmp_path):
    found = sampled_solutions(STUDY, questions=9, n=1, folder=tmp_path)
    assert len(found) == 3  # there are no more
    assert all(one.meta["splitter"] == "separator" and one.separator == ";" for one in found)
