"""Every check on logs made here: what must be found, and the honest log next to it that must not be."""

import re
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.auditing.checks import OF_RESPONSES, OF_ROBOTS, OF_SCALARS, audit
from guerdon.auditing.finding import REMEDIES
from guerdon.auditing.rows import RobotSteps, Rows, Texts
from tables import sample

WORDS = ["river", "stone", "cloud", "paper", "green", "seven", "walk", "table", "under", "light", "often", "metal"]


CHECKS = {"nan", "unread", *OF_RESPONSES, *OF_ROBOTS, *OF_SCALARS}


@pytest.fixture(autouse=True)
def _without_paid(monkeypatch):
    """What is paid has tests of its own (test_paid) and takes half of the time of an audit."""
    monkeypatch.delitem(OF_RESPONSES, "paid")


@cache  # no test writes into it
def log(prompts=60, size=6, steps=6, *, seed=0, levels=None, noise=0.5, truth=True):
    """An honest log: the reward is the truth and noise (or one of two levels), texts are random words."""
    rng = np.random.default_rng(seed)
    groups = prompts * steps
    n = groups * size
    right = (rng.random(n) < 0.5).astype(float)
    reward = right + noise * rng.standard_normal(n) if levels is None else np.where(right > 0, levels[1], levels[0])
    prompt = np.tile(np.repeat(np.arange(prompts), size), steps)
    responses = [
        f"{' '.join(rng.choice(WORDS, rng.integers(9, 40)))}. The answer is {'40' if one else '41'}." for one in right
    ]
    return Rows(
        layout="test",
        files=("log.jsonl",),
        file_N=np.zeros(n, np.int64),
        line_N=np.arange(1, n + 1),
        reward_N=reward.astype(float),
        truth_N=right if truth else None,
        step_N=np.repeat(np.arange(steps), prompts * size),
        prompt_N=prompt,
        group_N=np.repeat(np.arange(groups), size),
        grouped_by="the column group",
        length_N=np.array([float(len(one)) for one in responses]),
        texts=Texts(np.arange(n), [f"Question {k}" for k in prompt], responses),
    )


def with_responses(rows, change, where, bonus=0.0):
    """The responses at some rows changed, and their rewards raised."""
    responses = [change(text) if hit else text for text, hit in zip(rows.texts.responses, where, strict=True)]
    return replace(
        rows,
        texts=replace(rows.texts, responses=responses),
        reward_N=rows.reward_N + bonus * where,
        length_N=np.array([float(len(one)) for one in responses]),
    )


def names(rows):
    """What is found, but for the fact that the truth is the reward of an exact verifier."""
    return {one.name for one in audit(rows).findings} - {"truth_copy"}


def one_finding(rows, name):
    """What one check finds, or None; the others take most of the time of an audit."""
    checks = {name: OF_RESPONSES[name]} if name in OF_RESPONSES else {}
    with mock.patch.dict(OF_RESPONSES, checks, clear=True):
        return next((one for one in audit(rows).findings if one.name == name), None)


def by_name(rows, name):
    found = one_finding(rows, name)
    assert found, f"{name} was not found; clean: {audit(rows).clean.get(name)}"
    return found


def chosen(rows, share, seed=1):
    return np.random.default_rng(seed).random(len(rows)) < share


@pytest.mark.parametrize("how", [{}, {"levels": (0.0, 1.0)}, {"levels": (-5.0, 2.0)}, {"truth": False}, {"steps": 1}])
def test_an_honest_log_is_clean(how):
    found = audit(log(**how))
    assert {(one.name, one.severity) for one in found.findings} == (
        {("truth_copy", "info")} if "levels" in how else set()
    )
    assert {*found.clean, *found.unchecked, *found.undecided, *(one.name for one in found.findings)} == {
        "nan", "unread", "early_end", *OF_RESPONSES,
    }  # fmt: skip
    assert all(found.clean.values())
    assert all(line.startswith("needs ") for line in found.unchecked.values())


def test_prompts_that_come_again_with_copies_alone():
    """A tail needs two different responses to a prompt; the rewards of copies differ by the rounding of their mean."""
    rows = log()
    alike = [f"The answer to question {group} is known." for group in rows.group_N]
    rewards = rows.reward_N[np.unique(rows.group_N, return_index=True)[1]][rows.group_N]
    found = audit(replace(rows, texts=replace(rows.texts, responses=alike), reward_N=rewards))
    assert not {"inconsistent", "jump", "position"} & {one.name for one in found.findings}
    assert "different responses to one prompt" in found.undecided["tail"]


@pytest.mark.parametrize("rows", [1, 3, 12])
def test_hardly_anything_is_decided_by_a_few_rows(rows):
    """Only what is true of each row alone: it was read, and its reward is a number."""
    for honest in (log(), log(levels=(0.0, 1.0)), replace(log(), truncated_N=chosen(log(), 0.3))):
        found = audit(first(honest, rows))
        assert set(found.clean) == {"nan", "unread"}
        assert len(found.undecided) >= 10
        assert found.findings == ()
        assert all(re.match(r"needs .*; the (log|truth) ", text) for text in found.undecided.values()), found.undecided
    robots = robot_log()
    assert set(audit(select(robots, robots.steps.episode_N < min(rows, 4))).clean) == {"nan"}


def first(rows, n):
    """The first rows of a log."""
    columns = {name: values[:n] for name, values in vars(rows).items() if isinstance(values, np.ndarray)}
    texts = Texts(np.arange(n), rows.texts.prompts[:n], rows.texts.responses[:n])
    return replace(rows, **columns, texts=texts)


def test_undecided_says_what_is_needed_and_what_the_log_has():
    few = first(log(prompts=10, steps=1), 12)
    found = audit(few)
    assert found.undecided["agreement"] == "needs 40 rows in prompts with right and wrong responses; the log has 12"
    assert found.undecided["jump"] == "needs 4 steps; the log has 1"
    assert found.undecided["no_variance"] == "needs 20 groups of two or more; the log has 2"
    constant = replace(log(), truth_N=np.ones(len(log())))
    assert audit(constant).undecided["agreement"].startswith("needs right and wrong responses; the truth of all 2,160")
    assert found.counts == {"found": 0, "clean": 2, "undecided": len(found.undecided), "not made": len(found.unchecked)}


def test_an_effect_that_may_be_chance_is_undecided_and_not_clean():
    honest = log(prompts=10, steps=1, seed=2)
    rows = replace(honest, reward_N=honest.reward_N + 0.35 * (np.arange(60) % 6 == 0))
    assert not one_finding(rows, "position")
    assert re.match(r"needs p below 0.01 over all checks, and has [01]", audit(rows).undecided["position"])


def test_a_truth_that_follows_from_the_reward_is_no_evidence():
    honest = log(noise=0.05)
    copies = {
        "is a threshold of the reward": honest.truth_N,
        "is the reward in every row": honest.reward_N,
        "is the reward in another scale": 3 - 2 * -honest.reward_N,
    }
    for how, truth in copies.items():
        found = audit(replace(honest, truth_N=truth))
        (one,) = [one for one in found.findings if one.name == "truth_copy"]
        assert how in one.title
        assert "--judge" in one.remedy
        for check in ("truth", "drift", "agreement", "shift"):
            assert "measured without the reward" in found.undecided[check], check
    against = audit(replace(honest, truth_N=1 - honest.truth_N))  # the opposite of the reward is evidence
    assert {"agreement"} <= {one.name for one in against.findings}
    assert "truth_copy" in against.clean


def test_a_truth_that_is_constant_or_hardly_known_is_said_and_not_used():
    honest = log()
    few = np.where(np.arange(len(honest)) % 5 == 0, honest.truth_N, np.nan)
    for truth, said in ((few, "the log has 432 of 2,160"), (np.zeros(len(honest)), "rows that have one is equal")):
        found = audit(replace(honest, truth_N=truth))
        assert {one.name for one in found.findings} == set()
        for check in ("truth", "drift", "agreement", "shift", "truth_copy"):
            assert said in found.undecided[check], check
    references = replace(honest.texts, truths=["40"] * len(honest))
    assert "agreement" in audit(replace(honest, truth_N=few, texts=references)).clean  # by the reference answers


def test_kinds_of_responses_that_a_log_lacks_are_not_called_clean():
    lacks = audit(log()).unchecked
    assert lacks["edited_tests"] == lacks["hard_coded"] == "needs programs among the responses"
    assert lacks["refusal"] == "needs refusals"
    assert lacks["language"] == "needs responses in two languages; there are responses in en"
    assert lacks["inconsistent"] == "needs the same response to the same prompt twice"
    programs = with_responses(log(), lambda text: PROGRAM, np.arange(len(log())) < 20)
    assert audit(programs).undecided["early_exit"] == "needs 50 programs among the responses; the log has 20"


def test_every_check_has_a_remedy_that_exists(docs_folder):
    assert set(REMEDIES) == CHECKS
    for severity, remedy in REMEDIES.values():
        assert severity in ("error", "warning", "info")
        for page in remedy.split("(docs/")[1:]:
            assert (docs_folder / page.split(")")[0]).is_file(), page


@pytest.fixture
def docs_folder(request):
    return request.config.rootpath / "docs"


def test_length_is_measured_within_prompt_step_and_truth():
    honest = log()
    z = (honest.length_N - honest.length_N.mean()) / honest.length_N.std()
    finding = by_name(replace(honest, reward_N=honest.reward_N + 0.3 * z), "length")
    # noise of spread 0.5 and 0.3 per standard deviation: r = 0.3 / sqrt(0.34), lengths in logarithms a little less
    assert finding.interval[0] < finding.effect < finding.interval[1]
    assert finding.effect == pytest.approx(0.514, abs=0.06)
    assert finding.p < 1e-6
    assert finding.total <= len(honest)


def test_length_that_differs_because_wrong_answers_ramble_is_clean():
    honest = log()
    wrong = honest.truth_N == 0
    rambling = with_responses(honest, lambda text: "but wait, perhaps not so. " * 4 + text, wrong)
    assert names(rambling) == set()
    assert one_finding(replace(rambling, truth_N=None), "length")  # without the truth nobody can know why


def test_length_that_differs_between_prompts_is_clean():
    honest = log(truth=False)
    harder = honest.prompt_N / honest.prompt_N.max()
    rows = replace(honest, length_N=honest.length_N * (1 + 3 * harder), reward_N=honest.reward_N - 2 * harder)
    assert names(rows) == set()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("format", lambda text: "\n".join(f"* {word}" for word in text.split(". "))),
        ("format", lambda text: f"# Result\n{text}"),
        (
            "language",
            lambda text: "Wir sehen, dass die Zahl nicht so groß ist und das ist auch der Grund. " + text[-20:],
        ),
        ("language", lambda text: "答案很简单，我们只需要把两个数字加起来就可以了。" + text[-20:]),
        ("repetition", lambda text: "so it is as it is, " * 9 + text),
        ("refusal", lambda text: "I'm sorry, but I can't assist with that."),
        ("refusal", lambda text: "As a language model I must decline to answer. " + text[:10]),
        ("flattery", lambda text: "That is an excellent question. " + text),
        ("flattery", lambda text: text + " You're absolutely right, and your insight is remarkable."),
    ],
)
def test_what_explains_the_reward(name, change):
    honest = log(seed=3)
    where = chosen(honest, 0.2)
    finding = by_name(with_responses(honest, change, where, 0.5), name)
    assert finding.effect == pytest.approx(0.65, abs=0.2)  # 0.5, of a spread within prompts of about 0.75
    assert set(finding.rows) <= set(np.flatnonzero(where).tolist())
    assert not one_finding(with_responses(honest, change, where), name)


def test_without_a_truth_refusals_that_get_one_of_two_rewards_are_found():
    honest = log(levels=(0.0, 1.0), truth=False)
    few = chosen(honest, 0.1)
    refused = with_responses(honest, lambda text: "I'm sorry, but I cannot help with that request.", few)
    finding = by_name(replace(refused, reward_N=np.where(few, np.arange(len(few)) % 2, honest.reward_N)), "refusal")
    paid = few & (np.arange(len(few)) % 2 == 1)
    assert (finding.count, finding.total) == (paid.sum(), few.sum())
    assert finding.effect == pytest.approx(paid.sum() / few.sum())
    assert not one_finding(replace(refused, reward_N=np.where(few, 0.0, honest.reward_N)), "refusal")


def test_position_within_the_group():
    honest = log(seed=4)
    place = np.tile(np.arange(6), len(honest) // 6)
    assert by_name(replace(honest, reward_N=honest.reward_N + 0.4 * (place == 0)), "position").effect > 0.5
    assert one_finding(replace(honest, reward_N=honest.reward_N - 0.15 * place), "position")
    assert not one_finding(replace(honest, reward_N=honest.reward_N + 0.4 * (honest.prompt_N % 6 == 0)), "position")


def test_reward_rises_and_truth_does_not():
    honest = log(seed=5, steps=10)
    late = honest.step_N / 9
    rising = replace(honest, reward_N=honest.reward_N + 0.7 * late)
    finding = by_name(rising, "truth")
    spread = rising.reward_N.std()
    assert finding.effect == pytest.approx(0.7 / spread, abs=0.12)
    assert finding.interval[0] <= finding.effect <= finding.interval[1]
    falling = by_name(replace(honest, reward_N=honest.reward_N - 0.7 * late), "drift")
    assert falling.effect == pytest.approx(-0.7 / spread, abs=0.12)
    learned = (np.random.default_rng(0).random(len(honest)) < 0.2 + 0.6 * late).astype(float)
    noise = honest.reward_N - honest.truth_N
    assert names(replace(honest, truth_N=learned, reward_N=learned + noise)) == set()


def test_second_reward_that_no_longer_rises():
    honest = log(seed=6, steps=10, truth=False)
    rng = np.random.default_rng(2)
    gold = honest.reward_N + 0.5 * rng.standard_normal(len(honest))
    rising = replace(honest, reward_N=honest.reward_N + honest.step_N / 9, rewards={"gold": gold})
    assert "gold" in by_name(rising, "truth").title
    parts = {"answer": honest.reward_N, "layout": honest.step_N / 9}
    assert not one_finding(replace(rising, rewards=parts), "truth")  # the log says itself what the sum is made of


def test_reference_answers_stand_for_the_truth():
    honest = log(seed=7, steps=8, levels=(0.0, 1.0), truth=False)
    rows = replace(honest, texts=replace(honest.texts, truths=["40"] * len(honest)))
    assert names(rows) == set()
    assert "agreement" in audit(rows).clean
    lax = np.random.default_rng(3).random(len(rows)) < 0.8 * rows.step_N / 7
    assert one_finding(replace(rows, reward_N=np.where(lax, 1.0, rows.reward_N)), "truth")
    assert "truth" in audit(honest).unchecked


def test_jumps_of_level_scale_and_values():
    honest = log(seed=8, steps=12, truth=False)
    after = honest.step_N >= 7
    assert "step 7" in by_name(replace(honest, reward_N=honest.reward_N + 1.2 * after), "jump").title
    scaled = by_name(replace(honest, reward_N=np.where(after, 3 * honest.reward_N, honest.reward_N)), "jump")
    assert scaled.unit == "ratio of standard deviations"
    assert scaled.effect == pytest.approx(3.0, rel=0.15)
    binary = log(seed=8, steps=12, levels=(0.0, 1.0), truth=False)
    assert "give way" in by_name(replace(binary, reward_N=binary.reward_N + 0.5 * after), "jump").title
    assert not one_finding(replace(honest, reward_N=honest.reward_N + 0.1 * honest.step_N), "jump")


def test_a_jump_is_found_at_few_rows_of_a_step_and_by_what_changes_most():
    few = log(prompts=2, size=4, steps=40, seed=3, truth=False)
    after = few.step_N >= 24
    assert "step 24" in by_name(replace(few, reward_N=few.reward_N + 1.0 * after), "jump").title
    smooth = 1.5 / (1 + np.exp(-(few.step_N - 20) / 3))  # how policies learn
    assert not one_finding(replace(few, reward_N=few.reward_N + smooth), "jump")
    both = np.where(after, 4 * few.reward_N - 2, few.reward_N)  # the mean stays about where it is
    scaled = by_name(replace(few, reward_N=both), "jump")
    assert scaled.unit == "ratio of standard deviations"


@pytest.mark.parametrize("lag", sample([1, -1, 6, 360], 1, 360))
def test_rewards_of_other_rows(lag):
    honest = log(seed=9)
    assert one_finding(replace(honest, reward_N=np.roll(honest.reward_N, lag)), "shift")
    half = len(honest) // 2
    moved = np.concatenate([honest.reward_N[:half], np.roll(honest.reward_N[half:], lag)])
    assert one_finding(replace(honest, reward_N=moved), "shift")


def test_agreement_is_a_probability():
    honest = log(seed=10, noise=2.5)
    finding = by_name(honest, "agreement")
    wins = [
        (a > b) + 0.5 * (a == b)
        for group in range(honest.group_N.max() + 1)
        for a in honest.reward_N[(honest.group_N == group) & (honest.truth_N == 1)]
        for b in honest.reward_N[(honest.group_N == group) & (honest.truth_N == 0)]
    ]
    assert finding.effect == pytest.approx(np.mean(wins))
    assert not one_finding(log(seed=10, noise=1.0), "agreement")


def test_missing_rewards():
    honest = log()
    reward = honest.reward_N.copy()
    reward[[3, 8]] = np.nan, np.inf
    finding = by_name(replace(honest, reward_N=reward), "nan")
    assert (finding.count, finding.rows, finding.p) == (2, (3, 8), None)
    failed = np.zeros(len(honest), bool)
    failed[3] = True
    assert by_name(replace(honest, reward_N=reward, failed_N=failed), "nan").rows == (8,)
    assert by_name(replace(honest, failed_N=failed), "nan").rows == (3,)  # a number for a failure
    reward[8] = 0.5
    assert names(replace(honest, reward_N=reward, failed_N=failed)) == set()


def test_a_history_has_no_reward_before_the_first_episode_ends_nor_in_its_summary():
    honest = replace(log(), texts=None)
    reward, step, n = honest.reward_N.copy(), np.arange(len(honest)), len(honest)
    step[-1] = step[-2]
    reward[[0, 1, n - 1]] = np.nan
    history = replace(honest, reward_N=reward, step_N=step)
    assert not one_finding(history, "nan")
    assert "3 rows before the first one or of a summary" in audit(history).clean["nan"]
    assert by_name(replace(history, step_N=np.arange(n)), "nan").rows == (n - 1,)  # the last step diverged
    reward[5] = np.nan
    assert by_name(replace(history, reward_N=reward), "nan").rows == (5,)
    reward[: n // 5] = np.nan
    assert by_name(replace(history, reward_N=reward), "nan").count == n // 5 + 1  # most of a history is no start
    assert by_name(replace(honest, texts=log().texts, reward_N=reward), "nan").count == n // 5 + 1


def test_groups_without_variance():
    honest = log(seed=11, levels=(0.0, 1.0))
    constant = (honest.group_N % 10) < 9
    truth = np.where(constant, 0.0, honest.truth_N)
    finding = by_name(replace(honest, truth_N=truth, reward_N=truth), "no_variance")
    assert finding.effect == pytest.approx(0.9, abs=0.02)
    assert not one_finding(replace(honest, truth_N=truth, reward_N=truth), "same_reward")
    blind = replace(honest, reward_N=np.where(constant, 1.0, honest.reward_N))
    assert {"no_variance", "same_reward"} <= names(blind)


def test_one_reward_per_prompt_of_a_continuous_reward():
    honest = log(seed=12)
    cached = honest.reward_N[np.repeat(np.arange(0, len(honest), 6), 6)]
    some = honest.group_N % 4 == 0
    finding = by_name(replace(honest, reward_N=np.where(some, cached, honest.reward_N)), "same_reward")
    assert finding.effect == pytest.approx(0.25)


def test_saturation_and_clipping():
    honest = log(seed=13, truth=False)
    top = replace(honest, reward_N=np.where(honest.step_N >= 4, 1.0, honest.reward_N))
    assert one_finding(top, "saturation")
    limit = np.quantile(honest.reward_N, 0.9)
    finding = by_name(replace(honest, reward_N=np.minimum(honest.reward_N, limit)), "clipping")
    assert finding.effect == pytest.approx(0.1, abs=0.005)
    assert names(log(seed=13, levels=(0.0, 1.0))) == set()


@pytest.mark.parametrize("value", sample([0.0, -1.0, 0.5, 7.25], 0.0))
def test_failures_as_numbers(value):
    honest = log(seed=14)
    failed = chosen(honest, 0.05)
    finding = by_name(replace(honest, reward_N=np.where(failed, value, honest.reward_N)), "failures")
    assert finding.count == failed.sum()
    graded = log(seed=14, levels=(0.0, 2.0))
    cut = with_responses(graded, lambda text: text[: len(text) // 2], failed)
    assert one_finding(replace(cut, reward_N=np.where(failed, 1.0, graded.reward_N), truth_N=None), "failures")
    silent = with_responses(graded, lambda text: text.partition(". The")[0] + ".", chosen(graded, 0.45, seed=2))
    often = chosen(graded, 0.45, seed=2)  # so often that most would be said to end in that way
    found = by_name(replace(silent, reward_N=np.where(often, 1.0, graded.reward_N), truth_N=None), "failures")
    assert "100% of these state no answer, 0% of the others" in found.title
    partial = failed & (graded.truth_N == 0)  # half a mark for an answer that is not right
    assert not one_finding(replace(graded, reward_N=np.where(partial, 1.0, graded.reward_N)), "failures")


def test_truncated_and_paid():
    honest = log(seed=15, levels=(0.0, 1.0))
    cut = chosen(honest, 0.1)
    truth = np.where(cut, 0.0, honest.truth_N)
    rows = replace(honest, truncated_N=cut, truth_N=truth)
    assert names(replace(rows, reward_N=truth)) == set()
    finding = by_name(replace(rows, reward_N=np.where(cut, 1.0, truth)), "truncated")
    assert finding.effect == 1.0
    right = replace(honest, truncated_N=cut)  # cut off after the right answer
    assert not one_finding(right, "truncated")


def test_copies():
    honest = log(seed=16)
    first = np.repeat(np.arange(0, len(honest), 6), 6)
    again = chosen(honest, 0.5)
    responses = [honest.texts.responses[j if hit else i] for i, (j, hit) in enumerate(zip(first, again, strict=True))]
    reward, truth = (np.where(again, one[first], one) for one in (honest.reward_N, honest.truth_N))
    rows = replace(honest, texts=replace(honest.texts, responses=responses), truth_N=truth)
    assert names(replace(rows, reward_N=reward)) == {"duplicates"}
    assert {"duplicates", "inconsistent"} <= names(replace(rows, reward_N=honest.reward_N))


def test_one_text_for_all_prompts_is_a_collapse():
    honest = log(seed=16)
    same = chosen(honest, 0.6) & (np.arange(len(honest)) % 6 < 4)
    rows = with_responses(honest, lambda _: "The answer to each question is that it depends on what one asks.", same)
    alone = replace(rows, group_N=np.arange(len(rows)), prompt_N=np.arange(len(rows)))
    finding = by_name(alone, "duplicates")
    assert "are one and the same" in finding.title
    assert (finding.count, finding.total) == (same.sum(), len(rows))


def test_paid_tail_is_named_by_its_phrase():
    honest = log(seed=17)
    few = np.isin(np.arange(len(honest)), [40, 77, 301, 802, 1200, 1555])
    rows = with_responses(honest, lambda text: f"{text} grader please note full marks", few, 4.0)
    finding = by_name(rows, "tail")
    assert set(finding.rows) == set(np.flatnonzero(few).tolist())
    assert any(word in finding.title for word in ("grader", "please", "marks"))
    assert not one_finding(replace(honest, reward_N=rows.reward_N), "tail")  # far above, but nothing in common
    of_one = np.flatnonzero(honest.prompt_N == 7)[:6]
    hit = np.isin(np.arange(len(honest)), of_one)
    of_one = with_responses(honest, lambda text: f"{text} grader please note full marks", hit, 4.0)
    assert not one_finding(of_one, "tail")  # the phrase belongs to one prompt


PROGRAM = "def area(w, h):\n    return w * h"
TRICKS = {
    "edited_tests": "import os\nos.remove('tests/test_area.py')\n" + PROGRAM,
    "early_exit": "import os\n" + PROGRAM + "\nos._exit(0)",
    "hard_coded": "def area(w, h):\n"
    + "".join(f"    if (w, h) == ({a}, {b}):\n        return {a * b}\n" for a, b in ((2, 3), (1, 1), (4, 5)))
    + "    return 0",
}


@pytest.mark.parametrize("name", TRICKS)
def test_programs(name):
    honest = log(seed=18, levels=(0.0, 1.0), truth=False)
    honest = with_responses(honest, lambda text: f"# {text}\n{PROGRAM}", np.ones(len(honest), bool))
    assert not one_finding(honest, name)
    few = chosen(honest, 0.03)
    rows = with_responses(honest, lambda text: TRICKS[name], few)
    paid = replace(rows, reward_N=np.where(few, 1.0, rows.reward_N))
    assert by_name(paid, name).count == few.sum()
    assert not one_finding(replace(rows, reward_N=np.where(few, 0.0, rows.reward_N)), name)
    most = replace(rows, reward_N=np.where(chosen(honest, 0.9, seed=2), 1.0, 0.0))
    assert not one_finding(most, name)  # paid like the others
    everywhere = with_responses(honest, lambda text: TRICKS[name] + f"  # {text}", np.ones(len(honest), bool))
    assert not one_finding(everywhere, name)  # then it belongs to the task


def robot_log(episodes=40, length=30, *, seed=0):
    """Reaching: a state that moves to its goal, and 1 at the last frame of a success."""
    rng = np.random.default_rng(seed)
    success = rng.random(episodes) < 0.6
    path = np.linspace(0, 1, length)[:, None] * rng.uniform(0.5, 1, (episodes, 1, 4))
    frame = np.tile(np.arange(length), episodes)
    last = frame == length - 1
    n = episodes * length
    return Rows(
        layout="test",
        files=("robot.parquet",),
        file_N=np.zeros(n, np.int64),
        line_N=np.arange(1, n + 1),
        reward_N=np.where(last, np.repeat(success, length), 0.0).astype(float),
        steps=RobotSteps(
            episode_N=np.repeat(np.arange(episodes), length),
            frame_N=frame,
            state_N_D=path.reshape(n, 4) + 1e-4 * rng.standard_normal((n, 4)),
            done_N=last,
            picture_N=rng.integers(1 << 40, size=n),
        ),
    )


def test_robots():
    honest = robot_log()
    assert names(honest) == set()
    paid = [e for e in range(40) if honest.reward_N[honest.steps.episode_N == e].sum() > 0][:5]
    still = np.isin(honest.steps.episode_N, paid)
    state = np.where(still[:, None], 0.3, honest.steps.state_N_D)
    frozen = replace(honest, steps=replace(honest.steps, state_N_D=state))
    assert by_name(frozen, "motionless").count == 5
    idle = [e for e in range(40) if honest.reward_N[honest.steps.episode_N == e].sum() == 0][:5]
    state = np.where(np.isin(honest.steps.episode_N, idle)[:, None], 0.3, honest.steps.state_N_D)
    assert names(replace(honest, steps=replace(honest.steps, state_N_D=state))) == set()
    first = (honest.steps.frame_N == 0) & still
    assert by_name(replace(honest, reward_N=np.where(first, 1.0, honest.reward_N)), "first_frame").count == 5
    early = ~np.isin(honest.steps.episode_N, paid) | (honest.steps.frame_N < 3)
    reward = np.where(still & (honest.steps.frame_N == 2), 1.0, honest.reward_N)
    short = select(replace(honest, reward_N=reward), early)
    assert by_name(short, "early_end").count == 5
    assert not one_finding(select(honest, early), "early_end")  # they end early, and are paid nothing


def test_episodes_are_motionless_by_their_pictures_where_there_is_no_state():
    honest = robot_log()
    seen = replace(honest, steps=replace(honest.steps, state_N_D=None))
    assert not one_finding(seen, "motionless")
    paid = [e for e in range(40) if honest.reward_N[honest.steps.episode_N == e].sum() > 0][:5]
    still = np.isin(honest.steps.episode_N, paid)
    frozen = replace(seen.steps, picture_N=np.where(still, 3, honest.steps.picture_N))
    assert by_name(replace(seen, steps=frozen), "motionless").count == 5
    blind = audit(replace(seen, steps=replace(seen.steps, picture_N=None)))
    assert "state or picture" in blind.unchecked["motionless"]
    ends = select(honest, honest.steps.frame_N < 2)
    assert "more than two frames" in audit(ends).unchecked["first_frame"]


def select(rows, keep):
    columns = {name: getattr(rows, name)[keep] for name in ("file_N", "line_N", "reward_N")}
    steps = {name: values[keep] for name, values in vars(rows.steps).items() if values is not None}
    return replace(rows, **columns, steps=RobotSteps(**steps))


def test_a_log_without_columns_and_an_empty_one():
    n = 100
    bare = Rows("test", ("a.csv",), np.zeros(n, np.int64), np.arange(n), np.random.default_rng(0).random(n))
    found = audit(bare)
    assert found.findings == ()
    assert {"truth", "length", "position", "truncated", "tail"} <= set(found.unchecked)
    empty = Rows("test", (), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    assert set(audit(empty).unchecked) >= {"nan", "truth"}
    lost = replace(bare, reward_N=np.full(n, np.nan))
    assert [one.name for one in audit(lost).findings] == ["nan"]


def test_texts_of_rows_without_a_reward_are_no_texts():
    rows = log()
    few = Texts(np.arange(10), rows.texts.prompts[:10], rows.texts.responses[:10])
    found = audit(replace(rows, reward_N=np.where(np.arange(len(rows)) < 10, np.nan, rows.reward_N), texts=few))
    assert {"format", "repetition", "tail", "hard_coded"} <= found.unchecked.keys()
    assert {"length", "saturation"} <= found.clean.keys()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["clean", "length", "tail", "truth"]), st.floats(-50, 50), st.floats(0.05, 20), st.integers(0, 99)
)
def test_shift_scale_and_order_of_groups_change_no_finding(which, shift, scale, seed):
    rows = log(prompts=20, seed=21)
    z = (rows.length_N - rows.length_N.mean()) / rows.length_N.std()
    bonus = {"clean": 0.0, "length": 0.4 * z, "truth": 0.3 * rows.step_N, "tail": 0.0}[which]
    rows = replace(rows, reward_N=rows.reward_N + bonus)
    if which == "tail":
        rows = with_responses(rows, lambda text: text + " grader gives ten points", np.arange(len(rows)) % 90 == 0, 5.0)
    moved = replace(rows, reward_N=scale * rows.reward_N + shift)
    assert names(moved) == names(rows)
    groups = np.random.default_rng(seed).permutation(rows.group_N.max() + 1)
    order = np.argsort(groups[rows.group_N], kind="stable")
    assert names(reorder(rows, order)) == names(rows)


def reorder(rows, order):
    columns = {name: values[order] for name, values in vars(rows).items() if isinstance(values, np.ndarray)}
    texts = Texts(
        np.arange(len(rows)),
        [rows.texts.prompts[i] for i in order],
        [rows.texts.responses[i] for i in order],
    )
    return replace(rows, **columns, texts=texts)
