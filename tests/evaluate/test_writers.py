"""A tiny policy as a writer: pieces end where they should, and searches run on it."""

import numpy as np
import pytest
import torch
from text_models import Scripted

from guerdon.evaluate.search import Piece, SearchPlan, beam_search
from guerdon.evaluate.writers import PolicyWriter, _cut
from guerdon.policies.generate import LocalEngine
from guerdon.policies.text_files import load_policy
from guerdon.settings.text_policy import GenerationSettings, TextPolicySettings, TinyModelSettings


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    tiny = TinyModelSettings(
        hidden_size=16, layers=1, heads=2, intermediate=32, max_positions=128, alphabet="0123456789+-*=?;"
    )
    return load_policy(TextPolicySettings(tiny=tiny, bf16=False), seed=0, device="cpu")


def writer(policy, **given):
    engine = LocalEngine(policy, GenerationSettings())
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
