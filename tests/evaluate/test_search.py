"""Searches over a scripted tree: a writer offers the same digits at every place, the model likes large ones."""

import numpy as np
import pytest
from text_models import Scripted

from guerdon.errors import ConfigError
from guerdon.evaluate.search import Piece, SearchPlan, beam_search, best_of_n_search, dvts
from guerdon.types import Failure


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
    "given", [{"n": 5, "beam_width": 2}, {"n": 4, "beam_width": 0}, {"n": 4, "rounds": 0}, {"n": 4, "batch_size": 0}]
)
def test_bad_numbers_are_refused(given):
    with pytest.raises(ConfigError, match="multiple of beam_width"):
        SearchPlan(**given, **COMMON)
    with pytest.raises(ConfigError, match="needs a separator"):
        SearchPlan(n=4, aggregation="min", separator="")
    with pytest.raises(ConfigError, match="at least 1"):
        best_of_n_search(Digits(), Scripted(mean_digit), ["q"], n=0, **COMMON)


def test_no_question_is_no_work():
    writer = Digits()
    assert look(beam_search, writer, Scripted(mean_digit), [], n=2, beam_width=2) == []
    assert writer.asked == []
