"""Logs of trainers and evaluations as rows: the files in `data/` were written by the packages (see `data/make.py`)."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.auditing import text_rows
from guerdon.auditing.conversations import asked_and_said, written
from guerdon.auditing.logs import read_log
from guerdon.errors import ConfigError, DataError
from tables import cases, refuses

DATA = Path(__file__).parent / "data"


def jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def groups(rows):
    """Sizes of groups in the order of their rows."""
    return [] if rows.group_N is None else np.bincount(np.unique(rows.group_N, return_inverse=True)[1]).tolist()


# Layouts of packages.


@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_completions_that_trl_logged(kind):
    rows = read_log(DATA / "trl" / kind)
    assert rows.layout == "completions logged by TRL"
    first = pq.read_table(DATA / "trl" / kind / "completions" / "completions_00001.parquet").to_pylist()
    assert len(first) == 8
    assert rows.reward_N[:8].tolist() == [sum(r[n] or 0.0 for n in ("short", "says_two")) for r in first]
    np.testing.assert_array_equal(rows.rewards["says_two"][:3], [np.nan, 1.0, 0.0])
    assert rows.advantage_N[:8].tolist() == [r["advantage"] for r in first]
    assert rows.step_N.tolist() == [1] * 8 + [3] * 8  # step 2 logged the batch of step 1 again
    assert len(rows) == 16
    assert any("1 of 3 files are left out" in note for note in rows.notes)
    assert any("the sum of says_two, short" in note for note in rows.notes)
    assert groups(rows) == [4] * 4
    assert rows.grouped_by == "adjacent rows of one prompt"
    assert rows.texts.prompts[4] == "what is two plus two ?" or rows.texts.prompts[4].startswith("what is ")
    assert (rows.texts.messages is not None) == (kind == "chat")
    assert not any("advantages" in note for note in rows.notes)
    true = read_log(DATA / "trl" / kind, columns={"truth": "short"})
    np.testing.assert_array_equal(true.reward_N, rows.reward_N)  # still a part of the sum
    assert true.truth_N[:8].tolist() == [r["short"] for r in first]
    one = read_log(DATA / "trl" / kind, columns={"reward": "short"})
    assert one.reward_N[:8].tolist() == [r["short"] for r in first]
    assert "says_two" in one.rewards


def test_the_sum_of_trl_is_compared_with_its_advantages(tmp_path):
    def logged(weight, **more):
        rng = np.random.default_rng(0)
        r = rng.random((2, 6, 4))
        total = r[0] + weight * r[1]
        advantage = (total - total.mean(1, keepdims=True)) / total.std(1, keepdims=True)
        rows = [{"step": 1, "prompt": f"p{g}", "completion": "c", "a": r[0, g, k], "b": r[1, g, k],
                 "advantage": advantage[g, k], **more} for g in range(6) for k in range(4)]  # fmt: skip
        return read_log(jsonl(tmp_path / "log.jsonl", rows)), total.ravel()

    rows, total = logged(1.0, is_correct=1.0)  # a column of `log_extra`
    np.testing.assert_allclose(rows.reward_N, total)
    assert rows.truth_N.tolist() == [1.0] * 24
    assert not any("advantages" in note for note in rows.notes)
    assert any("advantages are not those of this sum" in note for note in logged(3.0)[0].notes)


def test_dumps_of_verl(tmp_path):
    rows = read_log(DATA / "verl" / "rollout")
    texts = [(DATA / "verl" / "rollout" / f"{step}.jsonl").read_text() for step in (2, 10)]
    written = [json.loads(line) for text in texts for line in text.splitlines()]
    assert rows.layout == "a dump of verl"
    assert rows.files == ("2.jsonl", "10.jsonl")
    assert rows.reward_N.tolist() == [r["score"] for r in written]
    assert rows.truth_N.tolist() == [float(r["acc"]) for r in written]
    assert rows.step_N.tolist() == [2] * 8 + [10] * 8
    assert list(rows.rewards) == ["format"]  # neither texts such as `pred` nor counts such as `num_turns`
    assert groups(rows) == [4] * 4
    assert rows.texts.truths == [r["gts"] for r in written]
    assert rows.line_N.tolist() == [*range(1, 9)] * 2
    checked = read_log(DATA / "verl" / "validation")
    assert (len(checked), checked.group_N, checked.rewards) == (4, None, {})  # `reward` is the score again
    both = read_log(DATA / "verl")
    assert (len(both), any("2 folders are read as one log" in note for note in both.notes)) == (20, True)


def test_traces_of_prime_rl_and_verifiers(tmp_path):
    rows = read_log(DATA / "prime")
    assert rows.layout == "traces of verifiers or prime-rl"
    assert {Path(name).parts[2:4] for name in rows.files} == {("train", "effective")}
    np.testing.assert_array_equal(rows.reward_N, [0.1, 1.1, 1.1, 0.1, 1.1, np.nan] * 2)
    np.testing.assert_array_equal(rows.truth_N, [0, 1, 1, 0, 1, np.nan] * 2)  # the reward called `correct`
    assert list(rows.rewards) == ["form"]
    assert rows.failed_N.tolist() == ([False] * 5 + [True]) * 2
    assert rows.truncated_N.tolist() == [k == 2 for k in range(6)] * 2
    assert rows.length_N.tolist() == [4.0 + k for k in range(6)] * 2
    assert rows.advantage_N.tolist() == [0.5, -0.5] * 6
    assert rows.step_N.tolist() == [9] * 6 + [10] * 6
    assert groups(rows) == [2] * 6
    assert rows.texts.prompts[0] == "system: Answer.\n\nuser: what is 0+1?"
    assert rows.texts.responses[0] == "it is 2"
    assert rows.texts.responses[1] == ('assistant: let me see\n[add({"a": 1})]\n\ntool: 1\n\nassistant: it is 1')
    file = DATA / "prime" / "rollouts" / "step_9" / "eval" / "all" / "traces.jsonl"
    assert len(read_log(file)) == 2
    traces = [json.loads(line)["traces"][0] for line in file.read_text().splitlines()]
    alone = jsonl(tmp_path / "train_rollouts.jsonl", [
        {**t, "info": {"prime_rl": {"step": 4, "group_id": "g"}}} for t in traces
    ])  # fmt: skip
    older = read_log(alone)
    assert (older.step_N.tolist(), groups(older), older.reward_N.tolist()) == ([4, 4], [2], [0.1, 1.1])


def test_a_trace_of_a_judge_is_no_response(tmp_path):
    line = (DATA / "prime/rollouts/step_9/train/all/traces.jsonl").read_text().splitlines()[0]
    episode = json.loads(line)
    judge = {**episode["traces"][0], "agent": {**episode["traces"][0]["agent"], "trainable": False}}
    rows = read_log(jsonl(tmp_path / "traces.jsonl", [{**episode, "traces": [judge, episode["traces"][0]]}]))
    assert len(rows) == 1


def test_a_branch_of_a_trace_is_the_way_to_its_last_message(tmp_path):
    def node(parent, role, text, sampled):
        return {"parent": parent, "message": {"role": role, "content": text}, "sampled": sampled}

    nodes = [node(None, "user", "q", False), node(0, "assistant", "dropped", True), node(0, "assistant", "kept", True)]
    trace = {"nodes": nodes, "calls": [], "rewards": {"r": {"score": 1.0, "weight": 2.0}}, "ok": True}
    rows = read_log(jsonl(tmp_path / "traces.jsonl", [{"traces": [trace]}]))
    assert (rows.texts.responses, rows.reward_N.tolist()) == (["kept"], [2.0])
    nodes[0]["parent"] = 2  # a ring
    assert len(read_log(jsonl(tmp_path / "ring.jsonl", [{"traces": [trace]}]))) == 1


@pytest.mark.hostile("files")
def test_records_that_are_not_like_the_others_are_counted(tmp_path):
    good = json.loads((DATA / "prime/rollouts/step_9/train/all/traces.jsonl").read_text().splitlines()[0])
    torn = [{"traces": "none"}, {"traces": [{"nodes": [{}, {"parent": 7}], "rewards": {}}]}, {"traces": [None]}]
    rows = read_log(jsonl(tmp_path / "traces.jsonl", [*torn, good]))
    assert (len(rows), rows.bad) == (1, {"a row that is not like traces of verifiers or prime-rl": 3})
    with pytest.raises(DataError, match=r"no row could be read: 3 a row that is not like traces"):
        read_log(jsonl(tmp_path / "torn.jsonl", torn))


def test_results_of_older_verifiers(tmp_path):
    rows = read_log(jsonl(tmp_path / "results.jsonl", [
        {"example_id": k // 2, "prompt": [{"role": "user", "content": f"q{k // 2}"}], "answer": "7", "task": "t",
         "completion": [{"role": "assistant", "content": f"a{k}"}], "reward": k / 4,
         "metrics": {"exact": 1.0, "num_turns": 1}, "exact": 1.0, "num_turns": 1,
         "is_truncated": k == 3, "error": {"error": "x"} if k == 2 else None,
         "token_usage": {"input_tokens": 5.0, "output_tokens": 9.0 + k}}
        for k in range(4)
    ]))  # fmt: skip
    assert rows.layout == "results of verifiers"
    assert rows.reward_N.tolist() == [0, 0.25, 0.5, 0.75]
    assert (groups(rows), rows.grouped_by) == ([2, 2], "the column example_id")
    assert rows.texts.truths == ["7"] * 4
    assert rows.texts.responses == ["a0", "a1", "a2", "a3"]
    assert rows.truncated_N.tolist() == [False, False, False, True]
    assert rows.failed_N.tolist() == [False, False, True, False]
    assert rows.length_N.tolist() == [9, 10, 11, 12]
    assert list(rows.rewards) == ["exact"]


@pytest.mark.parametrize("form", ["eval", "json"])
def test_logs_of_inspect_ai(form):
    rows = read_log(DATA / "inspect" / form)
    assert rows.layout == "a log of inspect_ai"
    np.testing.assert_array_equal(rows.reward_N, [2.3] * 5 + [np.nan])
    np.testing.assert_array_equal(rows.truth_N, [1, 1, 1, 0, 0, np.nan])  # `match` grades C and I
    assert groups(rows) == [2, 2, 2]
    assert rows.truncated_N.tolist() == [False, True, False, False, True, False]
    assert rows.failed_N.tolist() == [False] * 5 + [True]
    assert rows.texts.prompts[:3] == ["what is 0+0?", "what is 1+0?", "what is 2+0?"]
    assert rows.texts.responses[3] == "I think the answer is 9"
    assert rows.texts.truths == ["0", "1", "2"] * 2
    graded = read_log(DATA / "inspect" / form, columns={"reward": "match", "truth": "length"})
    np.testing.assert_array_equal(graded.reward_N, [1, 1, 1, 0, 0, np.nan])


def test_an_inspect_ai_log_with_attachments_and_scores_by_part(tmp_path):
    sample = {
        "id": "a", "epoch": 1, "input": "q", "target": ["7", "8"], "attachments": {"h1": "a long text"},
        "messages": [{"role": "user", "content": "attachment://h1"}, {
            "role": "assistant", "content": [{"type": "text", "text": "seven"}],
            "tool_calls": [{"id": "1", "function": "bash", "arguments": {"cmd": "ls"}}],
        }],
        "scores": {"judge": {"value": {"style": 0.5, "right": "P"}}}, "output": {"choices": []},
    }  # fmt: skip
    log = tmp_path / "log.json"
    log.write_text(json.dumps({"version": 2, "status": "success", "eval": {"task": "t"}, "samples": [sample]}))
    rows = read_log(log)
    assert rows.texts.prompts == ["a long text"]
    assert rows.texts.responses == ["seven\n[bash({'cmd': 'ls'})]"]
    assert (rows.reward_N.tolist(), rows.truth_N.tolist()) == ([0.5], [0.5])
    assert rows.texts.truths == ['["7", "8"]']


def test_rollouts_of_nemo_gym(tmp_path):
    def rollout(k):
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"it is {k}"}]}
        call = {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "c"}
        back = {"type": "function_call_output", "call_id": "c", "output": "5"}
        return {
            "responses_create_params": {"input": [{"role": "user", "content": f"q{k // 2}"}]}, "reward": float(k),
            "response": {"output": [call, back, said] if k == 1 else [said], "usage": {"output_tokens": 3 + k},
                         "incomplete_details": {"reason": "max_output_tokens"} if k == 2 else None},
            "_ng_task_index": k // 2, "_ng_rollout_index": k % 2, "expected_answer": "5", "is_correct": float(k == 3),
            "reward_components": {"form": 0.5, "content": k / 8}, "answer": "not a response", "clicked_x": 3,
        }  # fmt: skip

    rows = read_log(jsonl(tmp_path / "rollouts.jsonl", [rollout(k) for k in range(4)]))
    jsonl(tmp_path / "rollouts_materialized_inputs.jsonl", [{"responses_create_params": {"input": "q"}}])
    assert rows.layout == "rollouts of NeMo-Gym"
    assert rows.reward_N.tolist() == [0, 1, 2, 3]
    assert rows.truth_N.tolist() == [0, 0, 0, 1]
    assert sorted(rows.rewards) == ["content", "form"]
    assert groups(rows) == [2, 2]
    assert rows.truncated_N.tolist() == [False, False, True, False]
    assert rows.length_N.tolist() == [3, 4, 5, 6]
    assert rows.texts.prompts == ["q0", "q0", "q1", "q1"]
    assert rows.texts.responses[1] == "assistant: [add({})]\n\ntool: 5\n\nassistant: it is 1"
    assert rows.texts.truths == ["5"] * 4
    broken = {**rollout(0), "reward": 0.0, "_ng_failure_class": "judge_failed"}
    assert read_log(jsonl(tmp_path / "r_failures.jsonl", [broken])).failed_N.tolist() == [True]
    assert len(read_log(tmp_path)) == 5


def test_openrlhf(tmp_path):
    rows = read_log(DATA / "openrlhf")
    assert rows.reward_N.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert rows.step_N.tolist() == [1, 2, 3, 4, 5]
    assert rows.texts.responses[1] == "user\nq2\nassistant\nanswer 2"
    steps, values = rows.curves["train/reward"]
    assert steps.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(values, rows.reward_N, rtol=1e-6)
    function = read_log(
        jsonl(tmp_path / "log.jsonl", [{"query": "p then r", "prompt": "p ", "label": "7", "reward": 1}])
    )
    assert (function.texts.prompts, function.texts.responses) == (["p "], ["then r"])
    table = tmp_path / "generated_samples.table.json"
    table.write_text(json.dumps({"columns": ["global_step", "text", "reward"], "data": [[3, "t", 0.5], [4, "u", 1.5]]}))
    shown = read_log(table)
    assert (shown.step_N.tolist(), shown.reward_N.tolist(), shown.texts.responses) == ([3, 4], [0.5, 1.5], ["t", "u"])


# Robots.


def test_monitor_files_of_stable_baselines3(tmp_path):
    rows = read_log(DATA / "sb3")
    written = []
    for number in range(2):
        lines = (DATA / "sb3" / f"{number}.monitor.csv").read_text().splitlines()
        start = json.loads(lines[0][1:])["t_start"]
        written += [(start + float(r["t"]), number, float(r["r"]), int(r["l"])) for r in csv.DictReader(lines[1:])]
    assert rows.reward_N.tolist() == [r[2] for r in sorted(written, key=lambda w: w[1])]
    passed = {w[:2]: step for w, step in zip(sorted(written), np.cumsum([w[3] for w in sorted(written)]), strict=True)}
    assert rows.step_N.tolist() == [passed[w[:2]] for w in sorted(written, key=lambda w: w[1])]
    assert rows.line_N[:2].tolist() == [3, 4]
    assert "rollout/ep_rew_mean" in rows.curves
    assert (rows.texts, rows.group_N, rows.prompt_N) == (None, None, None)
    cut = tmp_path / "monitor.csv"
    cut.write_text('#{"t_start": 0.0, "env_id": "x"}\nr,l,t,is_success\n1.0,5,0.1,True\n0.0,9,0.2,False\n2.5,')
    rows = read_log(cut)
    assert (rows.reward_N.tolist(), rows.truth_N.tolist(), sum(rows.bad.values())) == ([1, 0], [1, 0], 1)


def test_a_lerobot_data_set(tmp_path):
    rows = read_log(DATA / "lerobot")
    lengths = [4, 5, 6]
    assert rows.layout == "a LeRobot data set"
    assert rows.steps.episode_N.tolist() == [0] * 4 + [1] * 5 + [2] * 6
    assert rows.steps.frame_N.tolist() == [t for n in lengths for t in range(n)]
    assert rows.reward_N.tolist() == [float(e > 0 and t == n - 1) for e, n in enumerate(lengths) for t in range(n)]
    assert rows.truth_N.tolist() == rows.reward_N.tolist()
    assert rows.steps.done_N.sum() == 3
    assert rows.steps.state_N_D.tolist() == [[e, t] for e, n in enumerate(lengths) for t in range(n)]
    assert rows.steps.contact_N.tolist() == [float(t > 1) for n in lengths for t in range(n)]
    assert [len(set(rows.steps.picture_N[rows.steps.episode_N == e])) for e in range(3)] == [1, 5, 6]
    assert list(rows.rewards) == ["sarm_reward"]
    assert groups(rows) == []
    assert rows.prompt_N.tolist() == [0] * 9 + [1] * 6
    assert read_log(DATA / "lerobot", columns={"reward": "sarm_reward"}).reward_N[1] == pytest.approx(0.2)
    with refuses("missing"):
        read_log(DATA / "lerobot", columns={"reward": "missing"})
    shutil.copytree(DATA / "lerobot", tmp_path / "cut")
    data = tmp_path / "cut" / "data" / "chunk-000" / "file-000.parquet"
    (data.parent / "file-001.parquet").write_bytes(data.read_bytes()[:900])
    rows = read_log(tmp_path / "cut")
    assert (len(rows), rows.bad) == (15, {"file-001.parquet cannot be read": 1})
    table = pq.read_table(data)
    pq.write_table(table.drop_columns(["next.reward", "sarm_reward"]), data)
    with pytest.raises(DataError, match=r"without a column next\.reward.*--columns reward=NAME") as refused:
        read_log(tmp_path / "cut")
    assert refused.value.field == "next.reward"


def test_runs_of_guerdon(tmp_path):
    run = tmp_path / "runs" / "task" / "A" / "seed0"
    episode = {"env": 0, "success_at_end": False, "length": 170, "return/env": 0.0}
    jsonl(run / "episodes.jsonl", [
        {"step": 1000 * k, "success": k == 2, **episode, "return/progress": k / 2, "return/combined": k / 2}
        for k in range(3)
    ])  # fmt: skip
    jsonl(run / "metrics.jsonl", [
        {"kind": "train", "step": 1000, "success": 0.5, "policy_loss": None},
        {"kind": "eval", "step": 1000, "success": 0.25},
    ])  # fmt: skip
    rows = read_log(tmp_path / "runs")
    assert rows.layout == "a run of guerdon"
    assert (rows.reward_N.tolist(), rows.truth_N.tolist()) == ([0, 0.5, 1], [0, 0, 1])
    assert list(rows.rewards) == ["env"]
    assert rows.curves["eval/success"][1].tolist() == [0.25]
    assert "train/policy_loss" not in rows.curves
    jsonl(run.with_name("seed1") / "metrics.jsonl", [])
    shutil.copy(run / "episodes.jsonl", run.with_name("seed1") / "episodes.jsonl")
    with pytest.raises(DataError, match=r"2 runs of guerdon; pass one of them, such as .*seed0"):
        read_log(tmp_path / "runs")
    text = {"step": 8, "success": None, "success_at_end": None, "length": 5, "return/rm": 0.5, "return/gold": 2.0}
    jsonl(run / "episodes.jsonl", [{**text, "return/combined": 0.5}])
    assert read_log(run).truth_N.tolist() == [2.0]


def test_conversations_of_a_run_of_guerdon(tmp_path):
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    call = {"function": {"name": "count", "arguments": {"of": "pages"}}}
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "4"}]
    calls = [{"tokens": 7, "finished": True, "reward": None}, {"tokens": 3, "finished": True, "reward": None}]
    known = {"step": 8, "id": "a", "group": 3, "messages": [*asked, *turns, {"role": "assistant", "content": "4."}],
             "calls": calls, "reward": 1.0, "success": True, "failure": None, "truncated": False}  # fmt: skip
    cut = {**known, "messages": known["messages"][:3], "calls": calls[:1], "reward": 0.0, "success": None}
    lost = {**known, "messages": asked, "calls": [], "reward": None, "success": None, "failure": "tool_died (killed)"}
    run = tmp_path / "run"
    jsonl(run / "conversations.jsonl", [known, {**cut, "truncated": True}, lost])
    jsonl(run / "episodes.jsonl", [{"step": 8, "success": True, "length": 10, "return/env": 1, "return/combined": 1}])
    jsonl(run / "metrics.jsonl", [{"kind": "train", "step": 8, "success": 0.5}])
    for path in (run, run / "conversations.jsonl"):
        rows = read_log(path)
        assert rows.layout == "conversations of a run of guerdon"
        np.testing.assert_array_equal(rows.reward_N, [1, 0, np.nan])
        np.testing.assert_array_equal(rows.truth_N, [1, np.nan, np.nan])
        assert (rows.truncated_N.tolist(), rows.failed_N.tolist()) == ([False, True, False], [False, False, True])
        assert (rows.length_N.tolist(), rows.step_N.tolist(), groups(rows)) == ([10, 7, 0], [8] * 3, [3])
        assert len(set(rows.prompt_N)) == 1
        said = "assistant: [count({'of': 'pages'})]\n\ntool: 4\n\nassistant: 4."
        assert rows.texts.responses[0] == said
        assert [m["role"] for m in rows.texts.messages[0]] == ["system", "user", "assistant", "tool", "assistant"]
        assert not rows.bad
    assert "train/success" in read_log(run).curves
    bare = {**known, "messages": ["x", {"role": "assistant"}], "calls": [{}]}
    jsonl(run / "conversations.jsonl", [known, bare])
    assert read_log(run).bad == {"a row that is not like conversations of a run of guerdon": 1}
    jsonl(run / "conversations.jsonl", [])
    assert read_log(run).layout == "a run of guerdon that answers prompts"


def test_responses_that_a_run_of_guerdon_shows(tmp_path):
    shown = {"step": 64, "responses": [{
        "prompt": "1+1=?", "answer": "2", "tokens": ["1", "+1", "=2"], "outcome": True, "judged": {},
        "rewards": {"rm": [0.5, 0.25, -1.0], "prm": [1.0, 1.0, 1.0]}, "step_ends": None, "steps_true": None,
    }]}  # fmt: skip
    (tmp_path / "step_64.json").write_text(json.dumps(shown))
    rows = read_log(tmp_path / "step_64.json")
    assert rows.reward_N.tolist() == [2.75]
    assert {name: values.tolist() for name, values in rows.rewards.items()} == {"rm": [-0.25], "prm": [3.0]}
    assert rows.texts.tokens == [["1", "+1", "=2"]]
    assert rows.texts.token_rewards == [[1.5, 1.25, 0.0]]
    assert (rows.texts.responses, rows.step_N.tolist(), rows.truth_N.tolist()) == (["1+1=2"], [64], [1.0])


# Plain columns.


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet", "csv", "tsv"])
def test_plain_columns_in_every_format(tmp_path, form):
    rows = [{"prompt": f"p{k // 2}", "response": "x" * k + ",\n", "reward": k / 4, "acc": bool(k % 2), "step": k // 4}
            for k in range(8)]  # fmt: skip
    file = tmp_path / f"log.{form}"
    if form == "jsonl":
        jsonl(file, rows)
    elif form == "json":
        file.write_text(json.dumps(rows))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]), delimiter="," if form == "csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    found = read_log(file)
    assert found.reward_N.tolist() == [k / 4 for k in range(8)]
    assert found.truth_N.tolist() == [0, 1] * 4
    assert found.step_N.tolist() == [0] * 4 + [1] * 4
    assert found.group_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.texts.responses[3] == "xxx,\n"
    assert found.length_N.tolist() == [k + 2 for k in range(8)]
    assert (found.bad, found.advantage_N, found.truncated_N, found.failed_N) == ({}, None, None, None)


def test_columns_that_are_passed(tmp_path):
    log = jsonl(tmp_path / "log.jsonl", [
        {"q": "a", "said": "b", "quality": 0.5, "reward": 9.0, "oracle": "yes", "it": 3, "batch": 7} for _ in range(2)
    ])  # fmt: skip
    names = {"prompt": "q", "response": "said", "reward": "quality", "truth": "oracle", "step": "it", "group": "batch"}
    rows = read_log(log, columns=names)
    assert (rows.reward_N.tolist(), rows.truth_N.tolist(), rows.step_N.tolist()) == ([0.5] * 2, [1.0] * 2, [3, 3])
    assert (groups(rows), rows.grouped_by) == ([2], "the column batch")
    assert (rows.texts.prompts, rows.texts.responses) == (["a"] * 2, ["b"] * 2)
    assert rows.rewards["reward"].tolist() == [9.0, 9.0]
    with pytest.raises(
        DataError, match=r"--columns reward=qualty: there is no such column.*did you mean quality"
    ) as refused:
        read_log(log, columns={"reward": "qualty"})
    assert refused.value.field == "qualty"
    with pytest.raises(ConfigError, match=r"rewrd=quality: no column is for 'rewrd'; did you mean reward") as refused:
        read_log(log, columns={"rewrd": "quality"})
    assert refused.value.key == "columns"


def test_a_conversation_ends_with_the_response(tmp_path):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    rows = read_log(
        jsonl(tmp_path / "log.jsonl", [{"messages": turns, "score": 1}, {"messages": turns[:1], "score": 0}])
    )
    assert (rows.texts.prompts, rows.texts.responses) == (["q", "q"], ["a", ""])
    assert rows.texts.messages == [turns, turns[:1]]


USER, SYSTEM = {"role": "user", "content": "Why?"}, {"role": "system", "content": "Be brief."}
EARLIER = {"role": "user", "content": "Hi."}


@cases(
    ("roles", "has_response", "found"),
    [
        ({"prompt": [USER], "system": "Be brief."}, True, ([SYSTEM, USER], None)),
        ({"prompt": [SYSTEM, USER], "system": "Be kind."}, True, ([SYSTEM, USER], None)),
        ({"prompt": None, "system": "Be brief."}, True, (None, None)),
        ({"prompt": [USER], "messages": [USER, {"role": "assistant", "content": "So."}], "response": "So."}, True,
         ([USER], "So.")),
        ({"prompt": [USER], "messages": [EARLIER]}, True, ([EARLIER, USER], None)),
    ],
)  # fmt: skip
def test_messages_beside_a_prompt_are_the_conversation_with_it_or_what_was_before(roles, has_response, found):
    assert asked_and_said(roles, has_response=has_response) == found


def test_rows_as_records_have_the_references_that_are_there(tmp_path):
    log = [{"prompt": "p", "response": "r", "ground_truth": truth, "reward": 1} for truth in ("4", "", "5")]
    records = list(read_log(jsonl(tmp_path / "log.jsonl", log)).records([2, 1]))
    assert [(one["row"], one.get("reference")) for one in records] == [(2, "5"), (1, None)]


def test_content_that_is_no_text_is_written_as_json():
    assert written([{"role": "user", "content": {"a": [1, None]}}]) == '{"a": [1, null]}'


def test_a_prompt_in_two_columns(tmp_path):
    log = [{"instruction": "add", "input": f"{k}+1", "output": "r", "reward": k} for k in (1, 1, 2, 2)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert (rows.texts.prompts, groups(rows)) == (["add\n1+1"] * 2 + ["add\n2+1"] * 2, [2, 2])


def test_several_responses_of_one_record_are_a_group(tmp_path):
    log = [{"prompt": f"p{k}", "responses": ["a", "bb", "ccc"], "rewards": [k, 0.5, None]} for k in range(2)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    np.testing.assert_array_equal(rows.reward_N, [0, 0.5, np.nan, 1, 0.5, np.nan])
    assert (rows.texts.responses, groups(rows)) == (["a", "bb", "ccc"] * 2, [3, 3])
    assert rows.line_N.tolist() == [1, 1, 1, 2, 2, 2]


def test_numbers_that_verl_wrote_as_text(tmp_path):
    row = {
        "input": "q",
        "output": "a",
        "gts": "7",
        "score": 0.5,
        "step": 1,
        "acc": "True",
        "form_reward": "0.25",
        "pred": "7",
    }
    rows = read_log(jsonl(tmp_path / "1.jsonl", [row]))  # `default=str`, of numpy's bool and float32
    assert (rows.truth_N.tolist(), list(rows.rewards)) == ([1.0], ["form_reward"])


def test_rewards_of_tokens_are_added_where_there_is_no_other(tmp_path):
    row = {"prompt": "p", "response": "a b", "tokens": ["a", " b"], "token_rewards": [0.5, 0.25]}
    rows = read_log(jsonl(tmp_path / "log.jsonl", [row]))
    assert (rows.reward_N.tolist(), rows.texts.token_rewards) == ([0.75], [[0.5, 0.25]])
    assert read_log(jsonl(tmp_path / "two.jsonl", [{**row, "reward": 3}])).reward_N.tolist() == [3]


def test_groups_are_of_adjacent_rows_of_one_prompt_and_step(tmp_path):
    def grouped(*pairs):
        log = [{"prompt": p, "response": "r", "reward": 0, "step": s} for p, s in pairs]
        return read_log(jsonl(tmp_path / "log.jsonl", log))

    assert groups(grouped(("a", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 1))) == [2, 1, 2]
    four = [(p, 0) for p in "aaaabbbbbbbbccccdddd"]
    assert groups(grouped(*four)) == [4] * 5  # two groups of b, one after the other
    assert groups(grouped(*four[:-1])) == [4, 8, 4, 3]
    assert groups(grouped(*[(p, 0) for p in "abcdeeee"])) == [1, 1, 1, 1, 4]
    apart = grouped(("a", 0), ("b", 0), ("a", 0), ("b", 0))
    assert (apart.group_N, apart.grouped_by) == (None, "")
    assert any("not adjacent" in note for note in apart.notes)
    assert groups(grouped(("a", 0), ("b", 0), ("c", 0))) == []
    assert not any("not adjacent" in n for n in grouped(("a", 0), ("a", 0), ("b", 0), ("b", 1)).notes)
    same = jsonl(
        tmp_path / "ids.jsonl",
        [{"prompt": "p", "reward": 0, "uid": u, "step": s} for u, s in zip("abab", [0, 0, 0, 1], strict=True)],
    )
    assert sorted(groups(read_log(same))) == [1, 1, 2]


def test_steps_are_read_from_names_of_files(tmp_path):
    for step in (5, 20, 100):
        jsonl(tmp_path / f"step_{step}" / "rollouts.jsonl", [{"prompt": "p", "response": "r", "reward": step}])
    rows = read_log(tmp_path)
    assert (rows.step_N.tolist(), rows.reward_N.tolist()) == ([5, 20, 100], [5, 20, 100])
    assert any("names of the files" in note for note in rows.notes)
    jsonl(tmp_path / "other.jsonl", [{"prompt": "p", "response": "r", "reward": 1}])
    assert read_log(tmp_path).step_N is None


# What is wrong with a log.


@pytest.mark.hostile("files")
def test_bad_rows_are_counted_and_the_others_are_read(tmp_path):
    good = {"prompt": "p", "response": "r", "reward": 1.0}
    changed = [
        {}, {"reward": "high"}, {"reward": None}, {"reward": [1, 2]}, {"response": float("nan")}, {"prompt": 7},
        {"reward": float("inf")}, {"reward": True}, {"response": None}, {"acc": {"by": "part"}},
        {"acc": 1, "step": "two"},
    ]  # fmt: skip
    lines = [json.dumps({**good, **more}) for more in changed]
    lines += ["{", "", "[1]", '{"prompt": "p", "response": "\\ud800", "reward": 2}', '{"prompt": "p", "respo']
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    rows = read_log(tmp_path / "log.jsonl")
    np.testing.assert_array_equal(rows.reward_N, [1, np.nan, 1, np.nan, 1, 1, 1, 2])
    assert rows.line_N.tolist() == [1, 3, 6, 7, 8, 10, 11, 15]
    assert rows.bad == {
        "not JSON": 1, "not a map of columns": 1, "reward is not a number": 2, "response is NaN, not text": 1,
        "response is null": 1, "half-written last line": 1,
    }  # fmt: skip
    assert rows.texts.responses == ["r", "r", "r", "r", "r", "r", "r", "\ud800"]
    assert rows.texts.prompts[2] == "7"
    np.testing.assert_array_equal(rows.truth_N, [np.nan] * 6 + [1, np.nan])
    for note in ("1 infinite", "1 values of truth are not numbers", "1 values of step are not numbers"):
        assert any(note in one for one in rows.notes)


@pytest.mark.hostile("files")
def test_columns_that_hold_something_else_do_not_stop_the_reading(tmp_path):
    log = [{"prompt": "p", "response": "r", "reward": k, "correct": "B", "tokens": 5, "token_rewards": "x",
            "error": 0.3, "uid": f"u{k}", "step": None, "advantage": [0.5, 0.5]} for k in range(4)]  # fmt: skip
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert rows.reward_N.tolist() == [0, 1, 2, 3]
    assert (rows.truth_N, rows.step_N, rows.advantage_N, rows.bad) == (None, None, None, {})
    assert rows.failed_N.tolist() == [False] * 4
    assert (groups(rows), rows.grouped_by) == ([4], "adjacent rows of one prompt")  # `uid` is of one row each
    assert (rows.texts.tokens, rows.texts.token_rewards) == (None, None)


@pytest.mark.hostile("files")
def test_whole_numbers_beyond_a_float_are_no_numbers(tmp_path):
    row = {"prompt": "p", "response": "a b", "tokens": ["a", " b"], "token_rewards": [0.5, 10**400], "reward": 1}
    rows = read_log(jsonl(tmp_path / "log.jsonl", [row, {**row, "reward": 10**400}]))
    assert (rows.reward_N.tolist(), rows.bad) == ([1], {"reward is not a number": 1})
    assert rows.texts.token_rewards is None
    curves = [{"step": 1, "loss": 0.5, "grad": 10**400}, {"step": 10**30, "loss": 1}, {"step": 2, "loss": 0.25}]
    found = read_log(jsonl(tmp_path / "metrics.jsonl", curves)).curves
    assert {name: [column.tolist() for column in curve] for name, curve in found.items()} == {
        "loss": [[1, 2], [0.5, 0.25]]
    }


def test_a_reward_may_be_missing_in_the_first_rows(tmp_path):
    log = [{"prompt": "p", "response": "r"}, {"prompt": "p", "response": "r", "reward": 1}]
    np.testing.assert_array_equal(read_log(jsonl(tmp_path / "log.jsonl", log)).reward_N, [np.nan, 1])


def test_a_log_that_only_looks_like_trl_is_not_summed(tmp_path):
    row = {"step": 1, "prompt": "p", "completion": "c", "advantage": 0.5, "reward": 2.0, "kl": 7.0}
    rows = read_log(jsonl(tmp_path / "log.jsonl", [row]))
    assert (rows.layout, rows.reward_N.tolist()) == ("plain columns", [2.0])


def test_a_log_without_rewards_says_what_to_pass(tmp_path):
    file = jsonl(tmp_path / "log.jsonl", [{"prompt": "p", "response": "r", "quality": 1}])
    for path in (file, tmp_path):
        with pytest.raises(
            DataError, match=r"no column of rewards among prompt, response, quality.*--columns reward=NAME"
        ):
            read_log(path)
    assert read_log(file, columns={"reward": "quality"}).reward_N.tolist() == [1]
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"no log is recognised; looked for completions of TRL.*column of rewards"):
        read_log(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="there is no such file"):
        read_log(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no log is recognised"):
        read_log(tmp_path / "empty")


@pytest.mark.hostile("files")
def test_unreadable_files(tmp_path):
    (tmp_path / "a.jsonl").write_text("{\n{\n[1]\n")
    with pytest.raises(DataError, match="no row could be read: 2 not JSON, 1 not a map of columns"):
        read_log(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("")
    with pytest.raises(DataError, match="no row could be read: there is none"):
        read_log(tmp_path / "b.jsonl")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 half")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_log(tmp_path / "a.parquet")
    (tmp_path / "a.eval").write_bytes(b"PK half")
    with pytest.raises(DataError, match="cannot be read as a log of inspect_ai"):
        read_log(tmp_path / "a.eval")
    jsonl(tmp_path / "good.jsonl", [{"prompt": "p", "response": "r", "reward": 1}])
    assert len(read_log(tmp_path)) == 1


@pytest.mark.hostile("files")
def test_a_large_file_of_json_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("guerdon.files.bounds.WHOLE", 10)
    (tmp_path / "log.json").write_text(json.dumps([{"prompt": "p", "response": "r", "reward": 1}]))
    with pytest.raises(DataError, match=r"would be read whole; write one row per line \(\.jsonl\)"):
        read_log(tmp_path / "log.json")


@pytest.mark.hostile("files")
def test_files_of_several_kinds_are_refused_in_one_line(tmp_path):
    shutil.copytree(DATA / "verl" / "rollout", tmp_path / "verl")
    shutil.copytree(DATA / "inspect" / "eval", tmp_path / "inspect")
    with pytest.raises(
        DataError, match=r"several kinds: 1 with a log of inspect_ai \(.*\); 2 with a dump of verl"
    ) as error:
        read_log(tmp_path)
    assert "\n" not in str(error.value)


def test_other_files_of_a_trainer_are_left_out(tmp_path):
    shutil.copytree(DATA / "trl" / "plain", tmp_path / "run")
    (tmp_path / "run" / "tokenizer.json").write_text('{"version": "1.0", "model": {}}')
    (tmp_path / "run" / "config.json").write_text("{}")
    jsonl(tmp_path / "run" / "wandb" / "rows.jsonl", [{"prompt": "p", "reward": 1}])
    jsonl(tmp_path / "run" / ".cache" / "rows.jsonl", [{"prompt": "p", "reward": 1}])
    jsonl(tmp_path / "run" / "train.jsonl", [{"prompt": "p", "answer": "7"}])
    shutil.copy(DATA / "sb3" / "events.out.tfevents.1.host", tmp_path / "run")
    rows = read_log(tmp_path / "run")
    assert len(rows) == 16
    assert "rollout/ep_rew_mean" in rows.curves
    assert any("train.jsonl" in note for note in rows.notes)


@pytest.mark.hostile("files")
def test_texts_that_are_too_long_are_cut_and_lines_that_are_too_long_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(text_rows, "LONGEST", 50)
    monkeypatch.setattr("guerdon.files.bounds.RECORD", 400)
    log = [{"prompt": "p", "response": "r" * n, "reward": n} for n in (10, 60, 2000, 20)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert rows.reward_N.tolist() == [10, 60, 20]
    assert rows.bad == {"longer than 400 bytes": 1}
    assert [len(r) for r in rows.texts.responses] == [10, 50, 20]
    assert rows.length_N.tolist() == [10, 60, 20]
    assert any("longer than 50 characters" in note for note in rows.notes)


@pytest.mark.hostile("files")
def test_columns_without_end_do_not_fill_the_memory(tmp_path):
    log = [{"prompt": "p", "response": "r", "reward": k, f"reward_{k}": 1, f"other_{k}": 2} for k in range(2000)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert rows.reward_N.tolist() == [*range(2000)]
    assert 90 < len(rows.rewards) < 110


# The sample of texts.


def test_the_sample_keeps_groups_whole_and_does_not_depend_on_the_files(tmp_path):
    log = [{"prompt": f"p{k // 8}", "response": f"r{k}", "reward": k, "step": k // 64} for k in range(4000)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log), sample=400)
    assert 392 <= len(rows.texts.row_M) <= 400
    assert np.all(np.diff(rows.texts.row_M) > 0)
    kept = np.bincount(rows.group_N[rows.texts.row_M], minlength=500)
    assert set(kept.tolist()) == {0, 8}
    assert rows.texts.responses == [f"r{k}" for k in rows.texts.row_M]
    assert rows.reward_N.tolist() == [*range(4000)]
    thirds = np.histogram(rows.texts.row_M, bins=4, range=(0, 4000))[0]
    assert thirds.min() > 40  # from the whole log
    again = read_log(tmp_path / "log.jsonl", sample=400)
    assert again.texts.row_M.tolist() == rows.texts.row_M.tolist()
    assert read_log(tmp_path / "log.jsonl", sample=400, seed=1).texts.row_M.tolist() != rows.texts.row_M.tolist()
    assert any(f"{len(rows.texts.row_M)} of 4000 rows" in note for note in rows.notes)


def test_one_prompt_alone_is_sampled_too(tmp_path):
    log = [{"prompt": "p", "response": f"r{k}", "reward": k} for k in range(900)]
    assert len(read_log(jsonl(tmp_path / "log.jsonl", log), sample=100).texts.row_M) == 100
    log = [{"response": f"r{k}", "reward": k} for k in range(900)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log), sample=100)
    assert (len(rows.texts.row_M), rows.prompt_N, rows.group_N) == (100, None, None)
    assert rows.texts.row_M[-1] > 700


def test_the_sample_is_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(text_rows, "_BYTES", 40_000)
    log = [{"prompt": f"p{k // 2}", "response": "r" * 1000, "reward": k} for k in range(200)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert 20 <= len(rows.texts.row_M) <= 40


@given(st.lists(st.dictionaries(st.sampled_from(["prompt", "response", "reward", "acc", "step", "x"]),
                                st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5), st.integers(),
                                          st.lists(st.integers(), max_size=2))), min_size=1, max_size=8))  # fmt: skip
def test_no_row_is_lost_unseen(tmp_path_factory, log):
    file = jsonl(tmp_path_factory.mktemp("any") / "log.jsonl", [{"reward": 1}, *log])
    rows = read_log(file)
    assert len(rows) + sum(rows.bad.values()) == len(log) + 1
    for column in (rows.truth_N, rows.step_N, rows.prompt_N, rows.group_N, rows.length_N, *rows.rewards.values()):
        assert column is None or len(column) == len(rows)
    assert not np.isinf(rows.reward_N).any()
