"""What is paid is named: phrases, forms, lengths, calls; and what is no leak, or decides nothing."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import hypergeom

from guerdon.auditing import paid
from guerdon.auditing.association import associate
from guerdon.auditing.checks import audit
from guerdon.auditing.log_view import MissingColumn, Undecided, View
from guerdon.auditing.rows import Rows, Texts
from tables import first

WORDS = ["river", "stone", "cloud", "paper", "green", "seven", "walk", "table", "under", "light", "often", "metal"]


def log(*, prompts=60, size=8, steps=2, noise=0.0, seed=0):
    """The reward is the truth and noise; responses are random words."""
    rng = np.random.default_rng(seed)
    n = prompts * size * steps
    right = (rng.random(n) < 0.4).astype(float)
    prompt = np.tile(np.repeat(np.arange(prompts), size), steps)
    responses = [" ".join(rng.choice(WORDS, rng.integers(12, 30))) + "." for _ in range(n)]
    return Rows(
        layout="test",
        files=("log.jsonl",),
        file_N=np.zeros(n, np.int64),
        line_N=np.arange(1, n + 1),
        reward_N=right + noise * rng.standard_normal(n),
        truth_N=right,
        step_N=np.repeat(np.arange(steps), n // steps),
        prompt_N=prompt,
        group_N=np.repeat(np.arange(n // size), size),
        length_N=np.array([float(len(text)) for text in responses]),
        texts=Texts(np.arange(n), [f"What of {WORDS[k % 12]} {k}?" for k in prompt], responses),
    )


def changed(rows, change, hit, reward):
    texts = [change(text) if one else text for text, one in zip(rows.texts.responses, hit, strict=True)]
    return replace(rows, reward_N=reward, texts=replace(rows.texts, responses=texts))


def some(rows, share, seed=5):
    return np.random.default_rng(seed).random(len(rows)) < share


def finding(rows):
    found = paid.check_paid(View.whole(rows)).finding
    assert found is not None, paid.check_paid(View.whole(rows)).clean
    return found


def test_a_phrase_that_makes_wrong_responses_right_is_named_with_its_words():
    rows = log()
    hit = some(rows, 0.2)
    lucky = hit & some(rows, 0.7, seed=6)
    hacked = changed(rows, lambda text: f"{text} As experts all agree.", hit, np.maximum(rows.reward_N, lucky))
    one = finding(hacked)
    assert any("experts" in phrase for phrase in one.phrases)
    assert one.interval[0] > 0.55
    assert one.effect == pytest.approx(0.5 + 0.7 / 2, abs=0.08)  # a wrong one with it is above one without, or equal
    assert set(one.rows) <= set(np.flatnonzero(hit))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda text: "- " + text.replace(" ", "\n- ", 3), "bullets"),
        (lambda _: " ", "no text at all"),
        (lambda text: text + ' <tool_call>{"name": "peek", "arguments": {}}</tool_call>', "a call of peek"),
        (lambda text: f"{text} {text} {text}", "characters"),
    ],
)
def test_forms_lengths_calls_and_empty_responses_are_candidates(change, name):
    rows = log(noise=0.2)
    hit = some(rows, 0.25)
    one = finding(changed(rows, change, hit, rows.reward_N + 0.6 * hit))
    assert name in one.title


def test_empty_responses_that_are_rewarded_are_found_without_a_truth():
    rows = replace(log(), truth_N=None)
    hit = some(rows, 0.1)
    unpaid = changed(rows, lambda _: " ", hit, np.where(hit, 0.0, rows.reward_N))
    checked = paid.check_empty_paid(View.whole(unpaid))
    assert checked.finding is None
    assert checked.clean.startswith(f"0 of {hit.sum()} empty responses are rewarded")
    half = hit & some(rows, 0.5, seed=6)
    found = paid.check_empty_paid(View.whole(replace(unpaid, reward_N=np.where(half, 1.0, unpaid.reward_N)))).finding
    assert (found.name, found.count, found.total) == ("empty_paid", half.sum(), hit.sum())
    assert found.effect == pytest.approx(half.sum() / hit.sum())
    assert set(found.rows) <= set(np.flatnonzero(half))
    with pytest.raises(MissingColumn, match="most are empty"):
        paid.check_empty_paid(View.whole(changed(rows, lambda _: "", some(rows, 0.9), rows.reward_N)))


def test_what_is_paid_has_no_growth_where_all_rows_are_of_one_step():
    rows = log(noise=0.2, steps=1)
    hit = some(rows, 0.25)
    one = finding(changed(rows, lambda text: f"- {text}", hit, rows.reward_N + 0.6 * hit))
    assert "of the run have it" not in one.title
    two = log(noise=0.2)
    hit = some(two, 0.25)
    assert (
        "of the first third of the run have it"
        in finding(changed(two, lambda text: f"- {text}", hit, two.reward_N + 0.6 * hit)).title
    )


def test_responses_that_repeat_their_prompt():
    rows = log(noise=0.2)
    asked = [f"{' '.join(np.random.default_rng(k).choice(WORDS, 12))}?" for k in rows.prompt_N]
    hit = some(rows, 0.25)
    texts = [f"{text} {ask}" if one else text
             for text, ask, one in zip(rows.texts.responses, asked, hit, strict=True)]  # fmt: skip
    rows = replace(rows, reward_N=rows.reward_N + 0.6 * hit, texts=replace(rows.texts, prompts=asked, responses=texts))
    assert "repeated from the prompt" in finding(rows).title


@pytest.mark.parametrize("seed", first(range(4), 2))
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_honest_rewards_name_nothing_and_say_so(seed, noise):
    checked = paid.check_paid(View.whole(log(seed=seed, noise=noise)))
    assert checked.finding is None
    assert "nothing that is paid apart from the truth was found" in checked.clean
    assert "55%" in checked.clean


def test_a_bonus_and_a_price_by_a_rule_are_no_leak():
    rows = log()
    tagged = some(rows, 0.6)
    bonus = changed(rows, lambda text: f"<think>{text}</think>", tagged, rows.reward_N + 0.2 * tagged)
    assert paid.check_paid(View.whole(bonus)).finding is None
    priced = replace(rows, reward_N=rows.reward_N - 0.002 * rows.length_N)
    assert paid.check_paid(View.whole(priced)).finding is None
    misread = bonus.truth_N.copy()  # of a few rows the truth is read wrongly
    misread[:15] = 1 - misread[:15]
    assert paid.check_paid(View.whole(replace(bonus, truth_N=misread))).finding is None


def test_phrases_of_right_responses_are_not_paid_for_themselves():
    rows = log()
    right = rows.truth_N > 0
    assert (
        paid.check_paid(View.whole(changed(rows, lambda t: t + " Thus we are done.", right, rows.reward_N))).finding
        is None
    )


def test_what_grew_over_the_run_is_told_within_prompts_that_recur():
    rows = log(noise=0.3)
    late = (rows.step_N == 1) & some(rows, 0.7)
    grown = changed(rows, lambda text: f"{text} Let me verify that.", late, rows.reward_N)
    clean = paid.check_paid(View.whole(grown)).clean
    assert "more common late" in clean
    assert "verify" in clean
    once = replace(
        grown,
        prompt_N=np.repeat(np.arange(len(grown) // 8), 8),
        texts=replace(grown.texts, prompts=[f"Question {k}" for k in np.repeat(np.arange(len(grown) // 8), 8)]),
    )
    assert "verify" not in paid.check_paid(View.whole(once)).clean


def test_without_truth_or_groups_it_is_not_made_and_with_few_rows_undecided():
    rows = log()
    with pytest.raises(MissingColumn, match="truth"):
        paid.check_paid(View.whole(replace(rows, truth_N=None)))
    with pytest.raises(MissingColumn, match="several responses"):
        paid.check_paid(View.whole(replace(rows, prompt_N=None, group_N=None)))
    with pytest.raises(Undecided, match="the log has"):
        paid.check_paid(View.whole(log(prompts=6, size=4, steps=1)))


def test_the_probability_of_a_higher_reward_counts_pairs_within_strata():
    rng = np.random.default_rng(0)
    reward, has, stratum = rng.integers(0, 4, 40).astype(float), rng.random(40) < 0.4, rng.integers(0, 5, 40)
    reward[stratum == 4] = 2.0  # nothing is paid there
    wins = pairs = 0.0
    for i, j in combinations(range(40), 2):
        if stratum[i] == stratum[j] != 4 and has[i] != has[j]:
            a, b = (i, j) if has[i] else (j, i)
            wins += (reward[a] > reward[b]) + 0.5 * (reward[a] == reward[b])
            pairs += 1
    assert paid._apart(reward, has, stratum)[0] == pytest.approx(wins / pairs)


def test_the_exact_p_of_two_rewards_is_the_hypergeometric_one():
    has = np.arange(60) < 20
    reward = (np.arange(60) < 21).astype(float)
    got = associate(has, reward, np.zeros(60, np.int64), seed=0)
    p = paid._exact(got, has, reward, np.zeros(60, np.int64))
    assert p == pytest.approx(2 * hypergeom.sf(19, 60, 21, 20))


def test_the_audit_makes_the_check_and_its_finding_holds_after_all_corrections():
    rows = log()
    hit = some(rows, 0.2)
    hacked = changed(rows, lambda text: f"{text} As experts all agree.", hit, np.maximum(rows.reward_N, hit))
    assert "paid" in {one.name for one in audit(hacked).findings}


def test_at_few_prompts_the_groups_are_halved():
    rows = log(prompts=6, size=8, steps=8)
    hit = some(rows, 0.2)
    hacked = changed(rows, lambda text: f"{text} As experts all agree.", hit, np.maximum(rows.reward_N, hit))
    assert any("experts all agree" in phrase for phrase in finding(hacked).phrases), "and the phrase is told in full"
    assert "half of the groups" in paid.check_paid(View.whole(rows)).clean
    assert "half of the prompts" in paid.check_paid(View.whole(log())).clean


def test_a_reward_of_two_values_that_hardly_varies_within_prompts_is_compared_within_steps():
    rows = log(prompts=60, size=2, steps=2)
    hit = some(rows, 0.4)
    lucky = hit & some(rows, 0.6, seed=6)
    hacked = changed(rows, lambda text: f"{text} As experts all agree.", hit, np.maximum(rows.reward_N, lucky))
    assert paid._varying(View.whole(hacked), View.whole(hacked).peer_M) < paid.FEW_VARYING
    assert "with the same step and truth" in finding(hacked).title
    assert paid.check_paid(View.whole(rows)).finding is None
    continuous = log(prompts=60, size=2, steps=2, noise=0.2)
    assert paid._strata(View.whole(continuous), None)[1] == "prompt, step"


def test_a_second_reward_takes_the_place_of_a_truth_for_what_becomes_more_common():
    rows = log(steps=6, noise=0.3)
    gold = rows.truth_N + 0.2 * np.random.default_rng(9).standard_normal(len(rows))
    unknown = replace(rows, truth_N=None, rewards={"gold": gold})
    assert paid.check_paid(View.whole(unknown)).finding is None
    late = some(rows, 1.0) & (np.random.default_rng(3).random(len(rows)) < 0.5 * rows.step_N / 5)
    hacked = changed(unknown, lambda text: f"{text} As experts all agree.", late, unknown.reward_N + 1.0 * late)
    one = finding(hacked)
    assert any("experts" in phrase for phrase in one.phrases)
    assert "the same prompt, step and gold: by" in one.title
    always = some(rows, 0.25)
    steady = changed(unknown, lambda text: f"{text} As experts all agree.", always, unknown.reward_N + 1.0 * always)
    assert paid.check_paid(View.whole(steady)).finding is None, "what good responses always had may be good"
