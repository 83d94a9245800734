"""Reward models in a run with an agent: each turn is scored with what was said before it, or the last one alone."""

from dataclasses import replace

import numpy as np
import pytest

from guerdon.auditing.logs import read_log
from guerdon.rl import build_text
from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from guerdon.types import Failure, RewardInfo, Score
from tables import refuses
from text_rl import letter_study, lines, prime, start

WHOLE = RewardInfo("whole", (0.0, 1.0), granularity="total", modality="text", frames_needed=0)
STEPS = replace(WHOLE, granularity="step")


class Says:
    """A reward model that returns a function of the episode, and remembers what it was asked."""

    def __init__(self, say, info=WHOLE):
        self.say, self.info, self.asked = say, info, []

    def score(self, episodes):
        self.asked += episodes
        return [self._score(self.say(one)) for one in episodes]

    def _score(self, said):
        if isinstance(said, Failure):
            return Score(failure=said)
        if self.info.granularity == "step":
            return Score.from_values(np.asarray(said, dtype=np.float32))
        return Score(total=float(said))


def turns(episode):
    """How many turns of the assistant came before this one."""
    return sum(message["role"] == "assistant" for message in episode.context)


def study_of(folder, monkeypatch, scorer, *, mode="per_turn", algorithm=None, weight=0.5, agent=None, **source):
    monkeypatch.setattr(build_text, "load_source_model", lambda settings: scorer)
    own = {"model": {"model_type": "text", "checkpoint_path": "prm"}, "reward_mode": mode, "shaping": "raw", **source}
    return letter_study(
        folder,
        agent={"type": "agent_parts:Counting", "max_turns": 3, **(agent or {})},
        algorithm={"adv_estimator": "turn_rloo", **(algorithm or {})},
        reward={
            "use_reward_model": True, "combine_mode": "add", "sources": {"judge": {"reward_weight": weight, **own}},
        },
    )  # fmt: skip


def test_each_turn_is_scored_with_what_was_said_before_it(tmp_path, monkeypatch):
    model = Says(lambda e: 0.25 + 0.5 * turns(e))
    study = study_of(tmp_path, monkeypatch, model)
    start(study).run()
    rows = [row for row in lines(study, "conversations") if row["failure"] is None]
    assert {len(row["calls"]) for row in rows} == {1, 2}
    for row in rows:
        paid = [call["rewards"]["judge"] for call in row["calls"]]
        assert paid == [0.25, 0.75][: len(paid)]
        assert row["returns"]["judge"] == pytest.approx(sum(paid))
        assert row["returns"]["combined"] == pytest.approx(row["reward"] + 0.5 * sum(paid))
    second = next(one for one in model.asked if turns(one) == 1)
    assert [m["role"] for m in second.context] == ["user", "assistant", "user"]
    assert second.context[1]["content"].startswith("1")
    assert (second.task, second.context[-1]["content"]) == ("b", "b")
    first = next(one for one in model.asked if turns(one) == 0)
    assert first.context == ()
    train = [row for row in lines(study) if row["kind"] == "train"]
    assert all(np.isfinite(row["policy_loss"]) and row["return/judge"] >= 0.25 for row in train)
    log = read_log(run_folder(study))
    np.testing.assert_allclose(log.reward_N, [row["returns"]["combined"] for row in rows])
    np.testing.assert_allclose(log.rewards["judge"], [row["returns"]["judge"] for row in rows])


def test_the_last_turn_alone_is_scored_with_the_conversation(tmp_path, monkeypatch):
    model = Says(lambda e: 0.25 + 0.5 * turns(e))
    study = study_of(
        tmp_path, monkeypatch, model, mode="terminal", algorithm={"adv_estimator": "rloo"},
        agent={"params": {"paid": False}},
    )  # fmt: skip
    start(study).run()
    rows = lines(study, "conversations")
    assert {len(row["calls"]) for row in rows} == {1, 2}
    for row in rows:
        assert [call["rewards"]["judge"] for call in row["calls"]] == [0.0] * (len(row["calls"]) - 1) + [
            0.25 + 0.5 * (len(row["calls"]) - 1)
        ]


def test_a_turn_that_cannot_be_scored_is_a_hole_of_this_source_alone(tmp_path, monkeypatch):
    late = Failure("late", "30 s")
    study = study_of(tmp_path, monkeypatch, Says(lambda e: late if turns(e) else 0.5))
    study = study.model_copy(update={"reward": study.reward.model_copy(update={"max_failure_rate": 1.0})})
    start(study).run()
    rows = lines(study, "conversations")
    two = [row for row in rows if len(row["calls"]) == 2]
    assert two
    for row in two:
        assert [call["rewards"]["judge"] for call in row["calls"]] == [0.5, None]
        assert (row["failure"], row["returns"]["judge"], row["returns"]["combined"]) == (None, None, None)
        assert row["returns"]["env"] == pytest.approx(row["reward"])
    assert all(row["returns"]["judge"] == 0.5 for row in rows if len(row["calls"]) == 1)
    failures = lines(study, "failures")
    assert len(failures) == len(two)
    assert {(row["source"], row["reason"]) for row in failures} == {("judge", "late")}
    train = [row for row in lines(study) if row["kind"] == "train"]
    assert all(np.isfinite(row["policy_loss"]) for row in train)


def test_steps_of_a_turn_become_one_value(tmp_path, monkeypatch):
    model = Says(lambda e: [0.25 + 0.5 * turns(e)] * len(e.texts), STEPS)
    with refuses("reward.sources.judge.aggregation"):
        start(study_of(tmp_path, monkeypatch, model))
    study = study_of(tmp_path, monkeypatch, model, aggregation="min")
    start(study).run()
    paid = [call["rewards"]["judge"] for row in lines(study, "conversations") for call in row["calls"]]
    assert set(paid) == {0.25, 0.75}


def test_turn_rewards_train(tmp_path, monkeypatch):
    model = Says(lambda e: float("".join(e.texts).startswith("1")))
    study = study_of(tmp_path, monkeypatch, model, agent={"params": {"paid": False}}, weight=1.0)
    runner = study.runner.model_copy(update={"total_steps": 320, "eval_every": 320, "checkpoint_every": 320})
    study = study.model_copy(
        update={
            "runner": runner,
            "data": study.data.model_copy(update={"train_batch_size": 8}),
            "algorithm": study.algorithm.model_copy(update={"learning_rate": 0.02}),
        }
    )
    start(study).run()
    paid = [row["return/judge"] for row in lines(study) if row["kind"] == "train"]
    assert paid[-1] > paid[0] + 0.5


def test_prime_learns_from_conversations(tmp_path):
    for name, agent, algorithm, given in (
        ("turns", {}, "turn_rloo", {}),
        ("whole", {"params": {"paid": False}}, "rloo", {"prime_granularity": "whole"}),
        ("greedy", {"params": {"paid": False}}, "remax", {"prime_granularity": "whole"}),
        ("policy", {}, "gae", {"prime_model": {"ref_type": "policy", "warm_up": {"rollouts": 16}}}),
    ):
        study = letter_study(
            tmp_path, name=name, agent={"type": "agent_parts:Counting", "max_turns": 3, **agent},
            algorithm={"adv_estimator": algorithm}, reward_model=prime(mini=8, micro=4, **given),
            runner={"total_steps": 48, "checkpoint_every": 48, "eval_every": 48},
        )  # fmt: skip
        start(study).run()
        train = [row for row in lines(study) if row["kind"] == "train"]
        assert train, name
        assert all(
            np.isfinite(row["policy_loss"]) and row["reward_model/prime/prm_loss"] is not None for row in train
        ), name
        rows = [row for row in lines(study, "conversations") if "prime" in row["returns"]]
        for row in rows[-4:]:
            paid = [call["rewards"]["prime"] for call in row["calls"]]
            assert row["returns"]["prime"] == pytest.approx(sum(paid), abs=1e-4), name
            if name == "whole":
                assert not any(paid[:-1])


REFUSED = [
    (
        {"mode": "per_step"},
        "reward.sources.judge.reward_mode",
        "per_step scores steps of one response: set it to per_turn or terminal",
    ),
    ({"algorithm": {"adv_estimator": "rloo"}}, "reward.sources.judge", "every turn is paid, for which rloo is biased"),
    ({"shaping": "relative"}, "shaping", "relative needs reward_mode: per_step"),
    (
        {"model": {"model_type": "judge", "mode": "listwise", "judge": {"model": "m"}}},
        "reward.sources.judge",
        "it compares responses to one prompt",
    ),
]


def test_what_does_not_score_conversations_is_refused(tmp_path, monkeypatch):
    for given, key, words in REFUSED:
        with refuses(key, words):
            study_of(tmp_path, monkeypatch, Says(lambda e: 0.0), **given)
    source = {"model": {"model_type": "text", "checkpoint_path": "prm"}, "reward_mode": "per_turn"}
    with refuses("reward.sources.judge.reward_mode", "there is no agent: set it to terminal"):
        letter_study(tmp_path, reward={"use_reward_model": True, "sources": {"judge": source}})


def exact_study(folder, **given):
    return letter_study(
        folder, agent={"type": "agent_parts:Counting", "max_turns": 3},
        reward={"use_reward_model": True, "sources": {"exact": {"model": {"model_type": "exact"}}}},
        **{"algorithm": {"adv_estimator": "turn_rloo"}, **given},
    )  # fmt: skip


def test_the_verifier_says_what_each_turn_would_be_as_an_answer(tmp_path):
    study = exact_study(tmp_path)
    start(study).run()
    rows = [row for row in lines(study, "conversations") if row["failure"] is None]
    earned = set()
    for row in rows:
        said = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        paid = [call["rewards"]["exact"] for call in row["calls"]]
        assert paid == [float(text == "1") for text in said]
        earned |= set(paid)
    assert earned == {0.0, 1.0}
    with refuses("reward.sources.exact"):
        exact_study(tmp_path, algorithm={"adv_estimator": "rloo"})


def test_tools_without_answers_are_trained_by_a_reward_model_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(build_text, "load_source_model", lambda settings: Says(lambda e: len("".join(e.texts)) / 9))
    prompts = tmp_path / "asked.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "ab"}\n{"prompt": "ba"}\n')
    own = {"model": {"model_type": "text", "checkpoint_path": "prm"}, "reward_mode": "per_turn", "shaping": "raw"}
    given = {
        "agent": {"type": "tools", "tools": ["agent_functions:add"], "max_turns": 2},
        "policy": {"tiny": {"hidden_size": 16, "layers": 1, "heads": 2, "tokenizer": "bytes"}},
        "data": {"type": "prompts", "path": str(prompts), "max_response_length": 3, "train_batch_size": 2,
                 "n_samples": 2, "val_size": 0, "max_prompt_length": 2000, "filter_truncated": False},
        "algorithm": {"adv_estimator": "turn_rloo", "learning_rate": 0.01},
        "runner": {"total_steps": 8, "eval_every": 8, "checkpoint_every": 8,
                   "logger": {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": False}},
    }  # fmt: skip
    with refuses("data.type", "tools measure nothing, so nothing would train the policy"):
        Study.model_validate(given | {"policy": {"type": "text", **given["policy"]}})
    sources = {"use_reward_model": True, "sources": {"judge": own}}
    study = Study.model_validate(given | {"policy": {"type": "text", **given["policy"]}, "reward": sources})
    start(study).run()
    rows = lines(study, "conversations")
    assert len(rows) == 8
    for row in rows:
        assert (row["failure"], row["success"], row["truncated"]) == (None, None, True)
        assert row["returns"]["judge"] == pytest.approx(sum(call["rewards"]["judge"] for call in row["calls"]))
    assert not lines(study, "failures")
