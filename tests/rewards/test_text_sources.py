"""Reward models of text as sources: places of rewards, failures, several at once, cut-off runs, hacking."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guerdon.errors import TooManyFailuresError
from guerdon.models.scores import aggregate
from guerdon.policies.batches.step_splitters import split
from guerdon.rewards.source import SourceTerms
from guerdon.rewards.text_sources import TextReward
from guerdon.rewards.text_steps import cut_steps, token_places
from guerdon.rl import build_text
from guerdon.rl.reward_warnings import attack_warnings
from guerdon.rl.run import run, run_folder
from guerdon.settings.reward_source import TextSource
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import step_truth
from guerdon.types import Failure, RewardInfo, Score
from tables import refuses, sample
from text_rl import Scripted, advise, interrupted, lines, prime, result, start, sum_study, terms_of

torch.set_num_threads(1)
PRM = SourceTerms("prm")
STEPS = RewardInfo("scripted", (0.0, 1.0), modality="text", frames_needed=0, success_threshold=0.5)
WHOLE = replace(STEPS, name="whole", range=(-np.inf, np.inf), granularity="total", success_threshold=None)


class Says:
    """A reward model that returns a function of the episode: values of steps, a total, or a failure."""

    def __init__(self, say, info=STEPS):
        self.say, self.info, self.asked = say, info, []

    def score(self, episodes):
        self.asked += episodes
        return [self._score(self.say(e)) for e in episodes]

    def _score(self, said):
        if isinstance(said, Failure):
            return Score(failure=said)
        if self.info.granularity == "total":
            return Score(total=float(said))
        return Score.from_values(np.asarray(said, dtype=np.float32))


def truth(episode):
    """1 for each right line."""
    prompt = Prompt("x", ({"role": "user", "content": episode.task},), "", "x", extra_info=dict(episode.meta))
    return [float(c) for c in step_truth(prompt, "".join(episode.texts)).correct]


def by_text(episode):
    """Any number that depends on each step's text alone."""
    return [(sum(map(ord, text)) % 97) / 97 for text in episode.texts]


def source(reward_mode="per_step", shaping="raw", **more):
    return {"model": {"model_type": "text", "checkpoint_path": "prm"}, "reward_mode": reward_mode,
            "shaping": shaping, **more}  # fmt: skip


def reward(*, combine_mode="replace", **sources):
    return {"use_reward_model": True, "combine_mode": combine_mode, "sources": sources}


@pytest.fixture
def models(monkeypatch):
    """Reward models by their checkpoint path."""
    known = {"prm": Says(by_text)}
    monkeypatch.setattr(build_text, "load_source_model", lambda settings: known[settings.checkpoint_path])
    return known


def written(folder, texts, **given):
    """These responses to the first validation prompts of a study of sums."""
    loop = start(sum_study(folder, data={"max_response_length": 24}, **given))
    prompts = loop.collector.prompts.validation[: len(texts)]
    loop.collector.sampler.engine = Scripted(loop.learner.policy.tokenizer, lambda p, s, d: texts[p])
    answered = loop.collector.sampler.answer(prompts, 1, greedy=True)
    loop.close()
    return answered


def paid(answered, say, info=STEPS, *, min_form=None, **given):
    section = TextSource.model_validate(source(**given))
    return TextReward(PRM, Says(say, info), section, min_form=min_form).score(answered)


# Where rewards stand. A token is a character; the last one is the end token.

TEXT = "1+2=3;3+4=7;"
VALUES = {"1+2=3;": 0.9, "3+4=7;": 0.2, "3+4=7": 0.4}


def of_table(episode):
    return [VALUES[text] for text in episode.texts]


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, (0.9, 0.2)),
        ({"shaping": "signed"}, (0.8, -0.6)),
        ({"shaping": "relative"}, (0.9, -0.7)),
        ({"shaping": "threshold"}, (1.0, 0.0)),
        ({"shaping": "threshold", "reward_threshold": 0.1, "success_reward": 2.0}, (2.0, 2.0)),
        ({"shaping": "threshold", "use_negative_reward": True}, (1.0, -1.0)),
        ({"reward_coef": -3.0}, (-2.7, -0.6)),
    ],
    ids=str,
)
def test_a_step_is_paid_at_its_last_token_and_the_last_step_at_the_end_token(given, steps, tmp_path):
    answered = written(tmp_path, [TEXT])
    stream = paid(answered, of_table, **given)
    expected = np.zeros((1, 13))
    expected[0, [5, 12]] = steps
    np.testing.assert_allclose(stream.values, expected, atol=1e-6)
    assert stream.paid is None  # the baseline is per token, so that the number of steps does not change it
    per_token = paid(answered, of_table, **{**given, "reward_mode": "per_token"}).values[0]
    np.testing.assert_allclose(per_token, [steps[0]] * 6 + [steps[1]] * 7, atol=1e-6)


@pytest.mark.parametrize("how", ["min", "prod", "last", "mean", "pure_min"])
def test_a_whole_response_is_paid_at_its_end(how, tmp_path):
    answered = written(tmp_path, [TEXT, "3+4=7"])
    stream = paid(answered, of_table, reward_mode="terminal", aggregation=how)
    expected = np.zeros((2, 13))
    expected[0, 12], expected[1, 5] = aggregate([0.9, 0.2], how), 0.4
    np.testing.assert_allclose(stream.values, expected, atol=1e-6)
    assert stream.paid.sum(axis=1).tolist() == [1, 1]
    total = paid(answered, lambda e: 7.5 * len(e.texts), WHOLE, reward_mode="terminal")
    assert total.values.sum(axis=1).tolist() == [15.0, 7.5]
    assert total.scores is None


def test_min_form_pays_about_the_smallest(tmp_path):
    answered = written(tmp_path, [TEXT])
    stream = paid(answered, of_table, shaping="signed", min_form=0.1)
    weights = np.exp(-np.array([0.8, -0.6]) / 0.1)
    np.testing.assert_allclose(stream.values[0, [5, 12]], [0.8, -0.6] * weights / weights.sum(), atol=1e-6)
    whole = paid(answered, of_table, reward_mode="terminal", aggregation="min", min_form=0.1)
    assert whole.values.sum() == pytest.approx(0.2)  # one value is its own minimum


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6))
def test_changes_add_up_to_the_last_value(values):
    section = TextSource.model_validate(source(shaping="relative"))
    found = TextReward(PRM, Says(None), section)._paid(Score.from_values(np.array(values, np.float32)))
    assert found.sum() == pytest.approx(values[-1], abs=1e-6)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_every_step_ends_in_the_token_that_completes_it(tokens, steps):
    ends_T, closes_S = np.cumsum(tokens), np.cumsum(steps)
    closes_S = closes_S[closes_S <= ends_T[-1]]
    if not len(closes_S) or closes_S[-1] != ends_T[-1]:
        closes_S = np.append(closes_S, ends_T[-1])
    places = token_places(ends_T, closes_S)
    assert (np.diff(places) >= 0).all()
    assert places[-1] == len(tokens) - 1
    assert all(ends_T[p] >= c and (p == 0 or ends_T[p - 1] < c) for p, c in zip(places, closes_S, strict=True))


def test_steps_are_cut_as_labels_are(tmp_path):
    texts = [TEXT, "12;3", ";;", "123", ""]
    answered = written(tmp_path, texts)
    for text, cut in zip(answered.inputs.texts, cut_steps(answered.inputs), strict=True):
        assert "".join(cut.texts) == text
        assert cut.texts == (split(text, "separator", separator=";") or (text,))
        assert len(cut.ends) == len(cut.texts)
        assert cut.ends[-1] == len(text)  # the end token
    newlines = cut_steps(answered.inputs, "newline")
    assert [cut.texts for cut in newlines] == [(text,) for text in answered.inputs.texts]


# What is measured.


def test_what_is_logged_of_a_perfect_model_and_of_one_that_knows_nothing(tmp_path):
    loop = start(sum_study(tmp_path, data={"max_response_length": 24}))
    prompts = loop.collector.prompts.validation[:2]
    texts = [(p.solution, p.solution[:6] + "1;") for p in prompts]
    loop.collector.sampler.engine = Scripted(loop.learner.policy.tokenizer, lambda p, s, d: texts[p][s])
    answered = loop.collector.sampler.answer(prompts, 2)
    loop.close()
    section = TextSource.model_validate(source())
    facts = TextReward(PRM, Says(truth), section).score(answered).metrics
    assert facts["step_auroc"] == facts["dpo_acc"] == facts["dpo_acc_coverage"] == 1.0
    assert facts["step_value"] == facts["steps_called_right"] == 0.75
    facts = TextReward(PRM, Says(lambda e: [0.5] * len(e.texts)), section).score(answered).metrics
    assert facts["step_auroc"] == facts["dpo_acc"] == 0.5
    assert facts["steps_called_right"] == 1.0  # a step is called wrong below the threshold, and 0.5 is not
    below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    facts = TextReward(PRM, Says(lambda e: [below] * len(e.texts)), section).score(answered).metrics
    assert facts["steps_called_right"] == 0.0
    failing = Says(lambda e: Failure("late"))
    stream = TextReward(PRM, failing, section).score(answered)
    facts = stream.metrics
    assert {failure.reason for _, _, failure in stream.failures} == {"late"}
    assert facts["step_auroc"] is facts["dpo_acc"] is facts["step_value"] is None


def test_equal_responses_to_a_question_are_judged_once(tmp_path):
    loop = start(sum_study(tmp_path))
    loop.collector.sampler.engine = Scripted(loop.learner.policy.tokenizer, lambda p, s, d: "1;2;" if s < 3 else "1;")
    answered = loop.collector.sampler.answer(loop.collector.prompts.validation[:2], 4)
    loop.close()
    model = Says(by_text)
    rewards = TextReward(PRM, model, TextSource.model_validate(source())).score(answered).values
    assert len(model.asked) == 4
    assert (rewards[0] == rewards[1]).all()
    assert model.asked[0].texts == ("1;", "2;")
    assert model.asked[0].task == loop.collector.prompts.validation[0].question
    assert model.asked[0].outcome is None  # a judge is not told


@pytest.mark.parametrize(
    ("info", "given", "key", "message"),
    [
        (WHOLE, {}, "reward_mode", "reward_mode must be terminal"),
        (STEPS, {"reward_mode": "terminal"}, "aggregation", "say by aggregation"),
        (WHOLE, {"reward_mode": "terminal", "aggregation": "min"}, "aggregation", "aggregation would do nothing"),
        (WHOLE, {"reward_mode": "terminal", "shaping": "signed"}, "shaping", "signed needs probabilities"),
        (WHOLE, {"reward_mode": "terminal", "shaping": "threshold"}, "shaping", "needs reward_threshold"),
        (replace(STEPS, modality="image"), {}, "model", "looks at images"),
    ],
)
def test_what_a_model_does_not_measure_is_refused(info, given, key, message):
    with refuses(f"reward.sources.prm.{key}", message):
        TextReward(PRM, Says(None, info), TextSource.model_validate(source(**given)))


# Through the loop.


@pytest.mark.parametrize("estimator", sample(["rloo", "grpo", "reinforce_pp", "remax", "gae"], "rloo", "gae"))
def test_several_sources_beside_prime_and_the_outcome(estimator, tmp_path, models):
    models["other"] = Says(lambda e: float(len(e.texts)), WHOLE)
    other = source("terminal", gamma=0.5, reward_weight=0.5)
    other["model"] = {**other["model"], "checkpoint_path": "other"}
    given = {"use_reward_model": True, "sources": {"prm": source(gamma=0.9), "orm": other}}
    study = sum_study(
        tmp_path, reward_model=prime(), reward=given, algorithm={"adv_estimator": estimator, "kl_coef": 0.1,
                                                                 "kl_in": "reward"},
        runner={"total_steps": 64},
    )  # fmt: skip
    loop = start(study)
    assert loop.learner.heads == ("verifier", "prime", "prm", "orm", "kl")
    loop.run()
    rows = [row for row in lines(study) if row["kind"] == "train"]
    assert {"return/prime", "return/prm", "return/orm", "return/verifier", "return/combined"} <= rows[0].keys()
    assert rows[0]["reward_weight/orm"] == 0.5
    assert all(np.isfinite(row["policy_loss"]) for row in rows)
    assert {f"reward_model/{n}/dpo_acc" for n in ("prime", "prm", "orm")} <= rows[0].keys()
    assert {"response_length", "steps", "separator_rate", "hacking_alarm"} <= rows[0].keys()


@pytest.mark.parametrize(
    ("mode", "extra", "weights"),
    [
        ("replace", {}, {"verifier": 0.0, "prm": 1.0}),
        ("add", {}, {"verifier": 1.0, "prm": 1.0}),
        ("weighted", {"env_reward_weight": 0.25}, {"verifier": 0.25, "prm": 1.0}),
    ],
)
def test_what_the_outcome_counts_beside_it(mode, extra, weights, tmp_path):
    study = sum_study(tmp_path, reward={**reward(prm=source(), combine_mode=mode), **extra})
    assert {name: terms.weight(0.3) for name, terms in terms_of(study).items()} == weights


def test_only_the_model_pays_where_it_replaces_the_outcome(tmp_path, models):
    study = sum_study(tmp_path, reward=reward(prm=source()), algorithm={"normalize_advantages": False})
    loop = start(study)
    happened = loop.collector.collect(loop.learner.policy)
    rewards = {name: s.measure(happened) for name, s in loop.sources.items()}
    weights = {name: terms.weight(0.0) for name, terms in terms_of(study).items()}
    both = advise(study, happened.mask, happened.groups_B, rewards, weights)
    alone = advise(study, happened.mask, happened.groups_B, {"prm": rewards["prm"]}, {"prm": 1.0})
    np.testing.assert_array_equal(both.advantages, alone.advantages)
    assert both.advantages.any()
    loop.close()


SETUPS = {
    "two": ({}, {"prm": source(), "again": source("terminal", "signed", aggregation="min", reward_weight=2.0)}),
    "beside prime": ({"reward_model": prime(prime_model={"replay_size": 12})}, {"prm": source("per_token")}),
    "min form": ({"algorithm": {"credit": "min_form"}}, {"prm": source(shaping="signed")}),
}


@pytest.mark.parametrize("setup", SETUPS)
def test_a_run_that_was_cut_off_ends_the_same(setup, tmp_path, models):
    given, sources = SETUPS[setup]
    given = {**given, "reward": {"use_reward_model": True, "sources": sources}, "runner": {"total_steps": 64}}
    whole = sum_study(tmp_path, name="whole", **given)
    start(whole).run()
    study = sum_study(tmp_path, name="cut", **given)
    interrupted(study, "update", 3)
    start(study, resume=True).run()
    assert result(study) == result(whole)


@pytest.mark.parametrize("on_failure", ["drop", "neutral", "raise"])
def test_a_model_that_fails_now_and_then(on_failure, tmp_path, models):
    calls = iter(range(10**6))
    models["prm"].say = lambda e: Failure("late") if next(calls) % 2 else by_text(e)
    study = sum_study(tmp_path, reward=reward(prm=source(on_failure=on_failure)), runner={"total_steps": 32})
    loop = start(study)
    loop.failures.max_rate = 1.0
    before = loop.learner.policy.tensors()
    if on_failure == "raise":
        with pytest.raises(TooManyFailuresError, match=r"'prm' failed \(late"):
            loop.run()
        assert all(torch.equal(v, before[k]) for k, v in loop.learner.policy.tensors().items())
        return
    loop.run()
    rows = lines(study, "episodes")
    broken = [row for row in rows if row["return/prm"] is None]
    assert 0 < len(broken) < len(rows)
    assert all(isinstance(row["return/verifier"], float) for row in rows)
    failures = lines(study, "failures")
    assert {(row["source"], row["reason"]) for row in failures} == {("prm", "late")}
    assert len(failures) == len(broken)


@pytest.mark.parametrize("on_failure", ["drop", "neutral"])
def test_what_a_failure_is_worth(on_failure, tmp_path, models):
    """Drop: as if the response had not been scored. Neutral: it earned 0, and the others are measured by it."""
    models["prm"].say = lambda e: Failure("late") if len("".join(e.texts)) % 2 else [0.9] * len(e.texts)
    study = sum_study(tmp_path, reward=reward(prm=source("terminal", aggregation="last", on_failure=on_failure)),
                      algorithm={"normalize_advantages": False})  # fmt: skip
    loop = start(study)
    loop.collector.sampler.engine = Scripted(
        loop.learner.policy.tokenizer, lambda p, s, d: ("1;", "12;", "123;", "1234;")[s]
    )
    answered = loop.collector.sampler.answer(loop.collector.prompts.validation[:1], 4)
    loop.close()
    stream = loop.sources["prm"].score(answered)
    assert stream.failed_B.tolist() == [False, True, False, True]
    mask, groups = answered.mask, answered.groups_B
    found = advise(study, mask, groups, {"prm": stream}, {"prm": 1.0}).advantages
    at_end = found[np.arange(4), mask.sum(axis=1) - 1]
    if on_failure == "drop":  # two equal responses are left: neither is better than the other
        np.testing.assert_allclose(found, 0.0, atol=1e-6)
    else:
        np.testing.assert_allclose(at_end, [0.6, -0.6, 0.6, -0.6], atol=1e-6)  # 0.9 - 0.9/3; 0 - 1.8/3


def test_a_policy_that_fools_its_judge_rings_the_alarm(tmp_path, models, capsys):
    """A judge that likes nines: the policy learns to write them, and no sum gets any righter."""
    models["prm"].say = lambda e: [text.count("9") / max(len(text), 1) for text in e.texts]
    study = sum_study(
        tmp_path, reward=reward(prm=source("terminal", aggregation="mean")),
        runner={"total_steps": 16 * 40, "eval_every": 320, "checkpoint_every": 10**6},
    )  # fmt: skip
    start(study).run()
    rows = [row for row in lines(study) if row["kind"] == "train"]
    assert rows[0]["hacking_alarm"] is None  # too few episodes to know
    assert rows[-1]["hacking_alarm"] == 1
    assert rows[-1]["return/prm"] > 2 * rows[0]["return/prm"]
    assert lines(study)[-1]["success"] < 0.5
    assert "HACKING ALARM" in capsys.readouterr().err
    assert rows[-1]["reward_model/prm/steps_called_right"] is not None


# What a run says of its judges.


def card(folder, fooled):
    folder.mkdir(parents=True)
    attacks = {"plain_wrong": {"fooled": True}, **{name: {"fooled": name in fooled} for name in ("empty", "padded")}}
    (folder / "evaluation.json").write_text(json.dumps({"attacks": {"attacks": attacks}}))
    return str(folder)


def test_a_run_says_which_of_its_judges_were_fooled_or_never_attacked(tmp_path, models):
    paths = {
        "weak": card(tmp_path / "weak", {"empty"}), "strong": card(tmp_path / "strong", set()),
        "new": str(tmp_path / "new"),
    }  # fmt: skip
    models |= dict.fromkeys(paths.values(), models["prm"])
    sources = {n: {**source(), "model": {"model_type": "text", "checkpoint_path": p}} for n, p in paths.items()}
    study = sum_study(tmp_path, reward=reward(**sources), runner={"total_steps": 16})
    run(study)
    said = json.loads((run_folder(study) / "run.json").read_text())["warnings"]
    assert len(said) == 2
    assert "weak: these attacks fooled its model: empty" in said[0]
    assert "new: its model" in said[1]
    assert "never attacked" in said[1]
    assert "guerdon evaluate" in said[1]


def test_third_party_judges_are_known_by_the_evaluation_that_the_study_names(tmp_path):
    evaluate = {"aggregation": "min", "models": {"hub": "someone/prm"}, "save_dir": str(tmp_path / "cards")}
    sources = {"a": {**source(), "model": {"model_type": "text", "checkpoint_path": "someone/prm"}}}
    study = sum_study(tmp_path, reward=reward(**sources), evaluate=evaluate)
    assert "never attacked" in attack_warnings(study)[0]
    card(tmp_path / "cards" / "hub", set())
    assert attack_warnings(study) == []


def test_a_video_shows_values_beside_truth(tmp_path, models):
    study = sum_study(tmp_path, reward=reward(prm=source()), runner={"total_steps": 16})
    start(study).run()
    video = json.loads(next((run_folder(study) / "films").glob("*.json")).read_text())
    for row in video["responses"]:
        judged = row["judged"]["prm"]
        assert len(judged["ends"]) == len(judged["values"])
        assert judged["ends"][-1] == len(row["tokens"]) - 1
        assert judged["threshold"] == 0.5
