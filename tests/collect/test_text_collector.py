"""Drawing prompts, judging answers, filtering: with an engine of given responses."""

from dataclasses import fields, replace

import numpy as np
import pytest

from guerdon.collect import text
from guerdon.collect.rollout_progress import reported_to
from guerdon.collect.text import RunPrompts, Sampler, join, take
from guerdon.errors import DataError
from guerdon.policies.batches.tokens import prompt_ids
from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.settings.data import FilesDataSettings
from guerdon.settings.text_policy import TinyModelSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import verifier_from
from guerdon.types import Failure, Rollout
from scripted import LETTERS, SHAPE, Scripted

TOKENIZER = build_tokenizer(TinyModelSettings(**SHAPE, alphabet=LETTERS))
QUESTIONS = ("a", "b", "aa", "ab", "ba", "bb", "aaa", "aab")
PROMPTS = [Prompt(q, ({"role": "user", "content": q},), "1", "letters") for q in QUESTIONS]


def settings(**given):
    base = {
        "train_files": "unread.jsonl", "verifier": "exact", "max_response_length": 4,
        "train_batch_size": 2, "n_samples": 4,
    }  # fmt: skip
    return FilesDataSettings(**{**base, **given})


def sampler(data, write, prompts=PROMPTS, seed=0):
    return Sampler(data, Scripted(TOKENIZER, write), verifier_from(data), prompts, TOKENIZER, seed=seed)


def rights(*counts):
    """Prompt k gets counts[k] right answers (the last count for all later ones)."""
    return lambda prompt, sample, draw: "1" if sample < counts[min(prompt, len(counts) - 1)] else "0"


def test_bounds_are_inclusive_and_rows_of_a_prompt_stay_together():
    data = settings(train_batch_size=3, accuracy_lower_bound=0.25, accuracy_upper_bound=0.75, oversample_factor=2.0)
    drawn = sampler(data, rights(0, 1, 2, 3, 4, 0)).draw()
    outcomes = drawn.outcomes_B.reshape(3, 4)
    assert outcomes.sum(axis=1).tolist() == [1, 2, 3]
    assert (drawn.groups_B.reshape(3, 4) == drawn.groups_B.reshape(3, 4)[:, :1]).all()
    assert len(set(drawn.groups_B.tolist())) == 3
    assert drawn.steps == 24
    facts = drawn.metrics
    assert facts["prompts_drawn"] == 6
    assert facts["prompts_survived"] == 3
    assert facts["surplus_prompts"] == 0
    assert facts["accuracy_before_filter"] == pytest.approx(10 / 24)
    assert facts["accuracy_after_filter"] == pytest.approx(6 / 12)
    assert facts["tokens_generated"] == 48


def test_a_fifth_survives_a_bound_of_a_fifth():
    data = settings(train_batch_size=1, accuracy_lower_bound=0.2).model_copy(update={"n_samples": 5})
    assert len(sampler(data, rights(1)).draw().inputs) == 5


def test_one_truncated_response_takes_its_prompt_with_it():
    data = settings(filter_accuracy=False)

    def write(prompt, sample, draw):
        return None if (prompt, sample) == (0, 3) else "1"

    drawn = sampler(data, write).draw()
    assert drawn.metrics["prompts_drawn"] == 4
    assert drawn.metrics["prompts_survived"] == 3
    assert drawn.metrics["surplus_prompts"] == 1
    assert drawn.metrics["truncated"] == pytest.approx(1 / 16)
    assert drawn.inputs.batch.finished_B.all()


def test_what_could_not_be_checked_is_counted_and_left_out_of_the_share():
    data = settings(train_batch_size=1, accuracy_lower_bound=0.5, accuracy_upper_bound=0.5)
    drawn = sampler(data, lambda p, s, d: ["1", "0", "", ""][s]).draw()  # 1 of the 2 that are known
    assert drawn.known_B.tolist() == [True, True, False, False]
    assert drawn.outcomes_B.tolist() == [1, 0, 0, 0]
    assert [failure.reason for _, _, failure in drawn.failures] == ["answer_unparsable"] * 2
    assert drawn.metrics["accuracy_before_filter"] == 0.5


def test_a_prompt_of_which_nothing_is_known_never_survives():
    data = settings(train_batch_size=1, filter_accuracy=False, filter_truncated=False)
    drawn = sampler(data, lambda p, s, d: "" if p == 0 else "1").draw()
    assert drawn.metrics["prompts_drawn"] == 2
    assert len(drawn.failures) == 4
    assert drawn.known_B.all()
    wrong = sampler(data.model_copy(update={"unparsable": "wrong"}), lambda p, s, d: "").draw()
    assert wrong.known_B.all()
    assert not wrong.failures


def test_shortfall_resample_draws_until_enough_survive():
    engine_draws = sampler(settings(), rights(0, 4, 0, 2, 4, 0, 1))
    said = []
    with reported_to(lambda progress, over: said.append(str(progress))):
        drawn = engine_draws.draw()
    assert said == [
        f"this rollout: steps {count}, episodes {count}, mean return {mean:.4g}"
        for count, mean in [(8, 4 / 8), (16, 6 / 16), (24, 10 / 24), (32, drawn.metrics["accuracy_before_filter"])]
    ]
    assert [r[0] for r in engine_draws.engine.requests] == [2, 2, 2, 2]
    assert drawn.outcomes_B.reshape(2, 4).sum(axis=1).tolist() == [2, 1]
    assert drawn.steps == 32
    with pytest.raises(DataError, match=r"only 0 of 100 prompts survived .*accuracy from 0\.2 to 0\.8"):
        sampler(settings(), rights(0)).draw()


def test_shortfall_fill_puts_survivors_first():
    drawn = sampler(settings(shortfall="fill"), rights(0, 2)).draw()
    assert drawn.outcomes_B.reshape(2, 4).sum(axis=1).tolist() == [2, 0]
    assert drawn.metrics["prompts_survived"] == 1


def test_shortfall_shrink_takes_what_there_is_and_error_stops():
    drawn = sampler(settings(shortfall="shrink"), rights(0, 2)).draw()
    assert len(drawn.inputs) == 4
    with pytest.raises(DataError, match="only 0 of 2"):
        sampler(settings(shortfall="shrink"), rights(0)).draw()
    with pytest.raises(DataError, match="only 1 of 2"):
        sampler(settings(shortfall="error"), rights(0, 2)).draw()


def test_joined_and_taken_responses_stay_themselves():
    data = settings(filter_accuracy=False, filter_truncated=False)
    one = sampler(data, lambda p, s, d: ["1", "", "ab", "00"][s]).draw()
    other = sampler(data, lambda p, s, d: ["", "0"][s % 2]).answer(PROMPTS[:1], 2)
    both = join([one, other])
    assert len(both.inputs) == 10
    assert [row for row, _, _ in both.failures] == [1, 5, 8]
    assert both.inputs.texts == one.inputs.texts + other.inputs.texts
    picked = take(both, np.array([8, 2, 1]))
    assert picked.inputs.texts == ("", "ab", "")
    assert [row for row, _, _ in picked.failures] == [2, -1, 0]
    assert picked.known_B.tolist() == [False, True, False]
    assert [len(e) for e in picked.inputs.char_ends] == [1, 3, 1]
    assert picked.log_probs.shape == picked.mask.shape == picked.inputs.batch.mask_B_T.shape
    assert (picked.log_probs[picked.mask] == -1).all()
    nothing = take(both, np.array([], dtype=np.int64))
    assert len(nothing.inputs) == 0
    assert [row for row, _, _ in nothing.failures] == [-1] * 3
    assert join([nothing, other]).inputs.texts == other.inputs.texts


def test_what_is_taken_of_a_rollout_is_taken_of_every_field():
    data = settings(filter_accuracy=False, filter_truncated=False)
    drawn = sampler(data, lambda p, s, d: ["1", "", "ab", "00"][s]).draw()
    shape, rng = drawn.mask.shape, np.random.default_rng(0)
    columns = ("log_probs", "truncated", "success", "success_known", "rewards", "failed", "sampled_log_probs")
    whole = replace(drawn, greedy=drawn, **{name: rng.random(shape) for name in columns})
    whole = replace(whole, values={"verifier": rng.random(shape)}, next_values={"verifier": rng.random(shape)})
    first, last = take(whole, np.array([1])), take(whole, np.array([6]))
    of_the_rollout = {"steps", "measured", "metrics", "averaged_over", "fresh", "version", "seconds"}
    of_robots = {"segments", "videos", "actions", "chunks", "ends", "intervened", "life_lost"}
    of_agents = {"conversations", "states"}
    for field in {field.name for field in fields(Rollout)} - of_the_rollout - of_robots - of_agents:
        one, other = getattr(first, field), getattr(last, field)
        arrays = [(one[name], other[name]) for name in one] if isinstance(one, dict) else [(one, other)]
        assert all(not np.array_equal(a, b) for a, b in arrays), field
    for field in of_the_rollout:
        assert getattr(first, field) == getattr(drawn, field)
    assert first.greedy.inputs.texts == drawn.inputs.texts[:4]


def test_a_resumed_sampler_goes_on_where_it_stood():
    data = settings(filter_accuracy=False)
    whole = sampler(data, rights(2))
    for _ in range(3):
        whole.draw()
    again = sampler(data, rights(2))
    again.draw()
    state = again.state_dict()
    resumed = sampler(data, rights(2))
    resumed.load_state_dict(state)
    for _ in range(2):
        last = resumed.draw()
    assert resumed.state_dict() == whole.state_dict()
    assert last.groups_B.tolist() == [4] * 4 + [5] * 4


def test_greedy_answers_take_no_random_numbers():
    one = sampler(settings(), rights(2))
    before = one.rng.bit_generator.state
    found = one.answer(PROMPTS[:2], 1, greedy=True)
    assert len(found.inputs) == 2
    assert one.rng.bit_generator.state == before
    assert one.engine.requests == [(2, 1, True)]


def test_a_system_prompt_is_put_before_the_question():
    plain, told = (sampler(settings(system_prompt=text), rights(2)) for text in (None, "ab"))
    plain.draw()
    told.draw()
    system = TOKENIZER.convert_tokens_to_ids("<|system|>")
    for a, b in zip(plain.engine.seen, told.engine.seen, strict=True):
        assert system not in a
        assert b.tolist() == [a[0], system, *TOKENIZER.encode("ab", add_special_tokens=False), *a[1:]]


def test_prompts_that_are_too_long_are_left_out_or_refused(monkeypatch):
    long = Prompt("long", ({"role": "user", "content": "a" * 50},), "1", "letters")
    data = settings(max_prompt_length=10)
    there = {"train": [*PROMPTS, long], "validation": [replace(long, id="v")]}
    monkeypatch.setattr(text, "load_prompts", lambda _: (tuple(there["train"]), tuple(there["validation"])))
    found = RunPrompts.read(data, TOKENIZER, None)
    assert (len(found.train), found.too_long) == (8, 1)
    longest = len(prompt_ids(TOKENIZER, long.messages))
    assert (len(found.validation), found.longest) == (1, longest)  # those are never left out
    room = longest + data.max_response_length
    assert RunPrompts.read(data, TOKENIZER, room) == found
    with pytest.raises(DataError, match=rf"prompt v \(to validate on\) of {longest} tokens .* {room - 1} positions"):
        RunPrompts.read(data, TOKENIZER, room - 1)
    there["validation"] = []
    with pytest.raises(DataError, match=r"the prompt \S+ \(to train on\) of"):
        RunPrompts.read(data, TOKENIZER, 6)
    there["train"] = [long]
    with pytest.raises(DataError, match="all 1 prompts are longer"):
        RunPrompts.read(data, TOKENIZER, None)


def test_the_failure_says_why():
    found = sampler(settings(), lambda p, s, d: "").answer(PROMPTS[:1], 1)
    assert found.failures == ((0, 0, Failure("answer_unparsable", found.failures[0][2].detail)),)
