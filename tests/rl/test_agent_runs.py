"""Whole runs of an agent: a world of messages under a tiny policy, killed and resumed, in shards, with a KL."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from agent_parts import Counting, Says
from called import called
from forked import forked
from guerdon.collect import text
from guerdon.collect.conversations import ConversationLoop
from guerdon.collect.evaluated import evaluation
from guerdon.comparison.report import write_single_report
from guerdon.config.loading import load, to_yaml
from guerdon.errors import TooManyFailuresError
from guerdon.rl import episode_stats
from guerdon.rl.run import run, run_folder
from guerdon.settings.algorithm import _INFO
from guerdon.settings.study import Study
from tables import cases, refuses
from text_rl import bare_rollout, interrupted, letter_study, lines, result, start

WORLD = {"type": "agent_parts:Counting", "max_turns": 3}


def world_study(folder, *, agent=None, algorithm=None, **given):
    return letter_study(
        folder, agent={**WORLD, **(agent or {})}, algorithm={"adv_estimator": "turn_rloo", **(algorithm or {})}, **given
    )


def test_a_run_repeats_is_resumed_and_says_what_happened(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    study = world_study(tmp_path / "one", agent={"log_tokens": True})
    summary = start(study).run()
    assert summary["unit"] == "conversations"
    other = world_study(tmp_path / "two", agent={"log_tokens": True})
    interrupted(other, "update", 3)
    start(other, resume=True).run()
    assert result(study) == result(other)
    rows = lines(study, "conversations")
    assert rows == lines(other, "conversations")
    assert len(rows) == 64
    assert {row["step"] for row in rows} == {16, 32, 48, 64}
    two = next(row for row in rows if len(row["calls"]) == 2)
    begins = two["calls"][0]["prompt_ids"] + two["calls"][0]["ids"]
    assert two["calls"][1]["prompt_ids"][: len(begins)] == begins
    train = [row for row in lines(study) if row["kind"] == "train"]
    assert all(row["agent/turns"] > 1 and row["agent/contexts"] == 1 for row in train)
    assert {"return/env", "success"} <= train[0].keys()
    assert lines(study)[-1]["kind"] == "eval"
    assert abs(train[0]["rollout_gap_max"]) < 1e-4  # what was sampled with kept keys is what training computes


def test_rewards_of_turns_are_no_success(tmp_path):
    loop = start(world_study(tmp_path, agent={"params": {"early": 1.0}}))
    collector, policy = loop.collector, loop.learner.policy
    collector.sampler.agent._engine = Says(policy.tokenizer, lambda prompt, u: "0" if "1" in prompt else "1")
    found = collector.show(policy, prompts=2, samples=1, greedy=True)
    assert found.outcomes_B.tolist() == [1.0, 1.0]  # of the first turn; the game was lost
    assert evaluation(found)["success"] == 0
    drawn = collector.sampler.draw()
    assert drawn.metrics["accuracy_before_filter"] == 0


def die_in_the_second_round():
    """Kill this process at the second call of the model in the conversations of the third rollout."""
    answered, rollouts = ConversationLoop._answered, []

    def answer(self, live, root):
        if not any(one.calls for one in live.values()):
            rollouts.append(None)
        elif len(rollouts) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return answered(self, live, root)

    ConversationLoop._answered = answer


def calls_twice(prompt, u):
    """A call of `add` at first, for some a second one, then an answer that is right for some."""
    calls = prompt.count("<tool_response>") - 1  # the system turn names it once
    if calls == 0 or (calls == 1 and u < 0.5):
        call = {"name": "add", "arguments": {"a": 1, "b": int(10 * u)}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return "1" if u < 0.5 else "0"


def tools_study(folder, **given):
    policy = {"type": "text", "tiny": {"hidden_size": 16, "layers": 1, "heads": 2, "tokenizer": "bytes"}}
    data = {"max_response_length": 80, "max_prompt_length": 2048}
    return letter_study(
        folder, agent={"type": "tools", "tools": ["agent_functions:add"]}, policy=policy, data=data,
        algorithm={"adv_estimator": "rloo"}, **given,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["world", "shards", pytest.param("tools", marks=pytest.mark.slow)])
def test_a_run_that_is_killed_in_a_second_round_goes_on_to_the_same_bytes(kind, tmp_path, monkeypatch):
    make = tools_study if kind == "tools" else world_study
    if kind == "tools":
        monkeypatch.setattr(text, "build_engine", lambda policy, *_, **__: Says(policy.tokenizer, calls_twice))
    given = {"runner": {"rollout_shards": 2}} if kind == "shards" else {}
    undisturbed, killed = (make(tmp_path, name=name, **given) for name in ("undisturbed", "killed"))
    start(undisturbed).run()
    file = tmp_path / "killed.yaml"
    file.write_text(to_yaml(killed))
    assert forked("run", file, folder=tmp_path, before=die_in_the_second_round).status == -signal.SIGKILL
    assert list((run_folder(killed) / "checkpoints").glob("step_*"))
    assert not (run_folder(killed) / "COMPLETE").exists()
    start(killed, resume=True).run()
    assert result(undisturbed) == result(killed)
    rows = lines(undisturbed, "conversations")
    assert rows == lines(killed, "conversations")
    assert {len(row["calls"]) for row in rows} == ({2, 3} if kind == "tools" else {1, 2})


def test_settings_that_reach_into_the_update(tmp_path):
    for name, algorithm, runner in (
        ("kl", {"kl_coef": 0.1, "num_epochs": 2, "minibatch_size": 8, "micro_batch_size": 4}, {}),
        ("state", {"by_state": True, "loss_agg": "sequence", "kl_coef": 0.1, "kl_in": "loss"}, {}),
        ("shards", {"adv_estimator": "rloo", "normalize_advantages": True}, {"rollout_shards": 2}),
        ("stale", {}, {"max_staleness": 1}),
    ):
        agent = {"params": {"paid": False}} if name == "shards" else {}
        study = world_study(
            tmp_path, name=name, algorithm=algorithm, agent=agent,
            runner={"total_steps": 32, "checkpoint_every": 32, **runner},
        )  # fmt: skip
        start(study).run()
        train = [row for row in lines(study) if row["kind"] == "train"]
        assert len(train) == 2, name
        assert all(np.isfinite(row["policy_loss"]) and not row["skipped_updates"] for row in train), name


OF_TURNS, OF_OUTCOMES = ("gae", "reinforce", "reinforce_pp"), ("rloo", "grpo", "dr_grpo", "gdpo", "remax")
"""Estimators beside turn_rloo: those that take rewards of turns, and those that take outcomes."""


def test_every_estimator_takes_conversations_or_refuses_rewards_of_turns(tmp_path):
    assert {*OF_TURNS, *OF_OUTCOMES, "turn_rloo"} == {*_INFO}
    runner = {"total_steps": 16, "eval_every": 16, "checkpoint_every": 16}
    for name in (*OF_TURNS, *OF_OUTCOMES):
        agent = {"params": {"paid": name in OF_TURNS}}
        study = world_study(tmp_path, name=name, algorithm={"adv_estimator": name}, agent=agent, runner=runner)
        start(study).run()
        (train,) = (row for row in lines(study) if row["kind"] == "train")
        assert np.isfinite(train["policy_loss"]), name
        assert train["grad_norm"] > 0, name
    for name in OF_OUTCOMES:
        study = world_study(tmp_path, name=f"{name}_turns", algorithm={"adv_estimator": name}, runner=runner)
        with refuses("algorithm.adv_estimator", f"paid at turns before the last one, for which {name} is biased"):
            start(study).run()


def test_a_critic_values_the_beginnings_of_turns(tmp_path):
    algorithm = {"adv_estimator": "gae", "gamma": 0.5}
    study = world_study(tmp_path, algorithm=algorithm, runner={"total_steps": 16, "checkpoint_every": 16})
    start(study).run()
    returns = []
    for row in lines(study, "conversations"):
        to_go = 0.0
        for call in reversed(row["calls"]):
            to_go = call["reward"] + 0.5 * to_go
            returns.append(to_go)
    (train,) = (row for row in lines(study) if row["kind"] == "train")
    assert len(returns) > 16
    assert train["value_loss"] == pytest.approx(0.5 * np.mean(np.square(returns)))  # the critic begins at 0


def test_a_critic_has_nothing_to_value_where_every_conversation_failed(tmp_path):
    study = world_study(
        tmp_path, algorithm={"adv_estimator": "gae"}, agent={"params": {"broken": "reset"}},
        reward={"max_failure_rate": 0.2},
    )  # fmt: skip
    with pytest.raises(TooManyFailuresError, match="agent_error"):
        start(study).run()


def test_greedy_conversations_are_about_the_same_prompts_and_no_baseline_where_they_fail(tmp_path, monkeypatch):
    study = world_study(
        tmp_path, algorithm={"adv_estimator": "remax"}, agent={"params": {"paid": False}},
        runner={"total_steps": 16, "checkpoint_every": 16, "eval_every": 16},
    )  # fmt: skip
    loop = start(study)
    collect = loop.collector.collect

    def fail_greedy(*given, **how):
        rollout = collect(*given, **how)
        sampled, greedy = rollout.inputs.conversations, rollout.greedy
        assert [one.prompt.id for one in sampled[::4]] == [one.prompt.id for one in greedy.inputs.conversations]
        assert greedy.mask.any(axis=1).all()
        return replace(rollout, greedy=bare_rollout(greedy.mask[:, :0], greedy.group_ids))

    monkeypatch.setattr(loop.collector, "collect", fail_greedy)
    loop.run()
    (train,) = (row for row in lines(study) if row["kind"] == "train")
    assert train["grad_norm"] == 0


def test_failures_are_left_out_counted_and_stop_the_run(tmp_path):
    study = world_study(tmp_path, agent={"params": {"broken": "outcome"}}, reward={"max_failure_rate": 0.2})
    with pytest.raises(TooManyFailuresError, match=r"'env'.*game_lost"):
        start(study).run()
    rows = lines(study, "conversations")
    lost = [row for row in rows if row["failure"] is not None]
    assert lost
    assert all(row["reward"] is None and row["success"] is None for row in lost)
    returns = [row["return/env"] for row in lines(study, "episodes")]
    assert returns.count(None) == len(lost)
    reasons = [row["reason"] for row in lines(study, "failures")]
    assert reasons == ["game_lost"] * len(lost)


def test_failures_that_become_more_frequent_raise_an_alarm(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(episode_stats, "FEWEST_LED", 32)
    monkeypatch.setattr(Counting, "steps", 0)
    study = world_study(tmp_path, agent={"params": {"broken": "later"}}, reward={"max_failure_rate": 1})
    start(study).run()
    train = [row for row in lines(study) if row["kind"] == "train"]
    assert train[0]["agent/failure_alarm"] is None
    last = train[-1]
    assert last["agent/failure_alarm"] == 1
    assert 0 < last["agent/failure_rise_low"] < last["agent/failure_rise"] <= last["agent/failure_rise_high"]
    assert "FAILURE ALARM: the share of failed conversations rose by" in capsys.readouterr().err
    page = write_single_report(run_folder(study)).read_text()
    assert "more conversations failed than at its start after 1 of" in page


def test_it_learns_to_win(tmp_path):
    study = world_study(
        tmp_path, algorithm={"learning_rate": 0.02}, data={"train_batch_size": 8},
        runner={"total_steps": 320, "eval_every": 320, "checkpoint_every": 320},
    )  # fmt: skip
    start(study).run()
    train = [row["success"] for row in lines(study) if row["kind"] == "train"]
    assert train[0] < 0.3
    assert np.mean(train[-2:]) > 0.7


REFUSED = [
    (
        {"reward_model": {"rm_type": "prime", "prime_granularity": "step"}},
        "reward_model",
        "step does nothing with an agent",
    ),
    (
        {"reward_model": {"rm_type": "prime", "prime_model": {"replay_size": 8}}},
        "reward_model.prime_model.replay_size",
        "replay_size is of single responses",
    ),
    (
        {"reward_model": {"rm_type": "prime"}, "algorithm": {"adv_estimator": "rloo"}},
        "reward_model",
        "every turn is paid, for which rloo is biased",
    ),
    ({"generation": {"engine": "vllm"}}, "generation.engine", "must be local with an agent"),
    ({"algorithm": {"adv_estimator": "rloo", "kl_coef": 0.1}}, "algorithm.kl_in", "reward pays every turn"),
    (
        {"algorithm": {"adv_estimator": "remax", "kl_coef": 0.1}},
        "algorithm.kl_in",
        "reward pays every turn, for which remax is biased",
    ),
    (
        {"algorithm": {"adv_estimator": "gdpo", "kl_coef": 0.1, "kl_in": "reward"}},
        "algorithm.kl_in",
        "for which gdpo is biased",
    ),
    ({"algorithm": {"adv_estimator": "rloo", "by_state": True}}, "algorithm.by_state", "by_state would do nothing"),
    ({"data": {"n_samples": 1, "filter_accuracy": False}}, "data.n_samples", "must be at least 2"),
    ({"agent": {"type": "tool"}}, "agent.type", "unknown agent 'tool'.*did you mean 'tools'"),
    ({"agent": {"params": {"lives": 3}}}, "agent.params.lives", "unknown key"),
]


@cases("given, key, words", REFUSED)
def test_what_does_not_go_with_an_agent(given, key, words):

    with TemporaryDirectory() as folder:
        base = {
            "policy": {"type": "text", "tiny": {"hidden_size": 16, "layers": 1, "heads": 2}},
            "data": {"type": "files", "train_files": "rows.jsonl", "n_samples": 4},
            "agent": WORLD, "algorithm": {"adv_estimator": "turn_rloo"},
        }  # fmt: skip
        for section, value in given.items():
            base[section] = value if value.get("type") else {**base.get(section, {}), **value}
        path = Path(folder) / "study.yaml"
        path.write_text(json.dumps(base))
        with refuses(key, words):
            load(Study, path, [])


def test_turn_rloo_and_agent_belong_together(tmp_path):
    with refuses("algorithm.adv_estimator", "there is no agent"):
        letter_study(tmp_path, algorithm={"adv_estimator": "turn_rloo"})
    with refuses("agent"):
        Study.model_validate({"policy": {"type": "mlp"}, "agent": WORLD})
    with refuses("adv_estimator", "take rloo"):
        Study.model_validate({"algorithm": {"adv_estimator": "turn_rloo"}})
    study = letter_study(
        tmp_path, agent={"type": "command", "command": ["no-such-program"]}, algorithm={"adv_estimator": "rloo"}
    )
    with refuses("agent.command", "there is no program 'no-such-program'"):
        run(study)
    assert not run_folder(study).exists()


TOOL = {"type": "tools"}
BAD = [  # what is given in place of keys of a study, and what the line says
    ({"agent": {**TOOL, "tools": ["agent_functions:untyped"]}}, "has no types"),
    ({"agent": {**TOOL, "tools": ["agent_functions:silent"]}}, "has no docstring"),
    ({"agent": {**TOOL, "tools": ["agent_functions:nothing"]}}, "there is no nothing in agent_functions"),
    ({"agent": {**TOOL, "tools": ["agent_functions:number"]}}, "cannot be called"),
    ({"agent": {**TOOL, "tools": ["agent_parts:Counting"]}}, "not a function"),
    ({"agent": {**TOOL, "tools": ["calculator", "calculator"]}}, "named twice"),
    ({"agent": {**TOOL, "tools": []}}, "there is no tool"),
    ({"agent": {**TOOL, "tools": ["calculator"], "max_turns": 0}}, "agent.max_turns is 0"),
    ({"agent": {"type": "command", "command": ["no-such-program"]}}, "there is no program 'no-such-program'"),
    ({"agent": {"type": "textwrold"}}, "did you mean 'textworld'"),
    ({"agent": {"type": "agent_functions:add", "params": {"a": 1, "b": 2}}}, "it has no method reset"),
    ({"agent": {**TOOL, "tools": ["calculator"], "max_turn": 3}}, "did you mean agent.max_turns"),
    ({"data": {"n_samples": 1, "filter_accuracy": False}}, "must be at least 2"),
    ({"agent": None}, "there is no agent"),
    ({"policy": {"type": "mlp"}, "data": None, "algorithm": None}, "agent would do nothing with policy.type mlp"),
]


def test_bad_input_is_one_line_and_nothing_is_written(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"question": "{k}", "answer": "1"}}\n' for k in range(8)))
    base = {
        "policy": {"type": "text", "tiny": {"hidden_size": 16, "layers": 1, "heads": 2}},
        "data": {"type": "files", "train_files": str(rows), "n_samples": 4},
        "agent": WORLD, "algorithm": {"adv_estimator": "turn_rloo"},
    }  # fmt: skip
    before = {*tmp_path.iterdir(), tmp_path / "study.yaml"}
    found = []
    for given, words in BAD:
        study = dict(base)
        for key, value in given.items():
            study[key] = {**base["data"], **value} if key == "data" and value else value
        (tmp_path / "study.yaml").write_text(json.dumps({key: value for key, value in study.items() if value}))
        done = called("run", "study.yaml", folder=tmp_path)
        said = done.stderr.strip()
        if done.returncode != 2 or words not in said or "\n" in said or set(tmp_path.iterdir()) != before:
            found.append((given, done.returncode, said, words))
    assert not found
