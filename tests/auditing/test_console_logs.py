"""Scalars of console logs and tables, in the forms that trainers write; the numbers are made up."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import TrainerState

from guerdon.auditing.logs import LogReader, read_log
from guerdon.auditing.runs import runs_in
from guerdon.auditing.scalar_checks import TAGS, role_of
from guerdon.errors import DataError

DOCS = Path(__file__).parents[2] / "docs"
RAY = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "


def curves(path, text):
    """The points of each scalar, and its role."""
    path.write_bytes(text.encode())
    found = read_log(path).curves
    return {
        name: (dict(zip(steps.tolist(), values.tolist(), strict=True)), role_of(name) and role_of(name).role)
        for name, (steps, values) in found.items()
    }


def test_lines_of_verl_wherever_they_stand(tmp_path):
    log = (
        f"{RAY}{{'actor': {{'clip_ratio': 0.2}}}}\n"
        f"{RAY}step:0 - val-core/openai/gsm8k/acc/mean@1:0.25 - val-aux/openai/gsm8k/reward/mean@1:0.5\n"
        f"{RAY}step:1 - critic/score/mean:0.125 - actor/entropy:np.float64(0.75) - actor/kl_loss:1e-03"
        " - response_length/mean:np.float64(64.0) - response_length/clip_ratio:0.0 - timing_s/reward:0.5"
        " - critic/returns/mean:-0.001 - actor/use_cache:True - actor/pg_loss:nan\n"
        f"Training Progress:  50%|#####     | 1/2 [00:05<00:05]\rTraining Progress: done(TaskRunner pid=4711) "
        "step:2 - critic/score/mean:0.25(WorkerDict pid=9) saved\n"
        "val/global_step:12 - a/b:1\n"
        "step:3 - critic/score/mean:0.5"
    )
    found = curves(tmp_path / "train.log", log)
    assert found["critic/score/mean"] == ({1: 0.125, 2: 0.25, 3: 0.5}, "reward")
    assert found["val-core/openai/gsm8k/acc/mean@1"] == ({0: 0.25}, "truth")
    assert found["val-aux/openai/gsm8k/reward/mean@1"] == ({0: 0.5}, "reward")
    assert found["actor/entropy"] == ({1: 0.75}, "entropy")
    assert found["actor/kl_loss"] == ({1: 0.001}, "divergence")
    assert found["response_length/mean"] == ({1: 64.0}, "length")
    assert found["response_length/clip_ratio"] == ({1: 0.0}, "truncated")
    assert (found["timing_s/reward"][1], found["critic/returns/mean"][1]) == ("none", "none")
    assert np.isnan(found["actor/pg_loss"][0][1])
    assert not {"actor/use_cache", "a/b"} & found.keys()


def test_lines_of_verl_in_the_outputs_of_a_notebook(tmp_path):
    said = [f"{RAY}step:{k} - critic/kl:{k / 8:.3f} - val/test_score/x:{k / 4:.3f}\n" for k in range(3)]
    notebook = json.dumps({"cells": [{"outputs": [{"text": said}]}]}, indent=1)
    found = curves(tmp_path / "run.ipynb", notebook)
    assert found["critic/kl"] == ({0: 0.0, 1: 0.125, 2: 0.25}, "divergence")
    assert found["val/test_score/x"] == ({0: 0.0, 1: 0.25, 2: 0.5}, "truth")


def test_lines_of_openrlhf(tmp_path):
    log = (
        "(PPOTrainer pid=7) INFO 01-02 03:04:05 ppo_trainer.py:551] ✨ Global step 5: {'policy_loss': -0.01, "
        "'reward': 0.5, 'return': 0.001, 'kl': 0.02, 'response_length': 40.0, 'rollout/truncated_rate': 0.25}\n"
        "(PPOTrainer pid=7) ✨ Evaluation completed in 0:00:10, global_step 5, "
        "eval_metrics: {'eval_math_pass1': 0.75}\n"
        "Eval at step 6: {'eval_math_pass1': 0.5}\n"
    )
    found = curves(tmp_path / "ray.out", log)
    assert found["train/reward"] == ({5: 0.5}, "reward")
    assert found["train/kl"] == ({5: 0.02}, "divergence")
    assert found["train/response_length"] == ({5: 40.0}, "length")
    assert found["train/rollout/truncated_rate"] == ({5: 0.25}, "truncated")
    assert found["eval/eval_math_pass1"] == ({5: 0.75, 6: 0.5}, "truth")


def test_lines_of_trl_with_numbers_and_with_texts(tmp_path):
    log = (
        "  0%|          | 0/9 [00:00<?]\r{'loss': 0.1, 'rewards/accuracy_reward/mean': 0.25, 'reward': 0.75, "
        "'epoch': 0.1}\n"
        "{'loss': '0', 'completions/mean_length': '80.5', 'reward': '1e-1', 'global_step/max_steps': '2/9', "
        "'epoch': '0.2'}\n"
        "{'eval_reward': 0.5, 'epoch': 0.2}\n"
        "{'user': 'no dictionary of a trainer', 'reward': 7}\n"
    )
    found = curves(tmp_path / "log.txt", log)
    assert found["train/reward"] == ({1: 0.75, 2: 0.1}, "reward")
    assert found["train/rewards/accuracy_reward/mean"] == ({1: 0.25}, "truth")
    assert found["train/completions/mean_length"] == ({2: 80.5}, "length")
    assert found["eval/reward"] == ({3: 0.5}, "reward")
    assert "train/global_step/max_steps" not in found


def test_tables_of_stable_baselines3(tmp_path):
    def table(step, reward):
        return [
            "-" * 34, "| rollout/           |           |", f"|    ep_rew_mean     | {reward:<9} |",
            "| time/              |           |", f"|    total_timesteps | {step:<9} |",
            "| train/             |           |", "|    entropy_loss    | -1.5      |", "-" * 34,
        ]  # fmt: skip

    lines = ["Using cpu device", *table(2048, -1e-05), "| kept | 5 |", *table(4096, 2.5), "| half/ |  |", "|   x | 1 |"]
    found = curves(tmp_path / "log.txt", "\n".join(lines))
    assert found == {
        "rollout/ep_rew_mean": ({2048: -1e-05, 4096: 2.5}, "reward"),
        "train/entropy_loss": ({2048: -1.5, 4096: -1.5}, "negative entropy"),
    }
    notebook = json.dumps({"cells": [{"outputs": [{"text": [f"{line}\n" for line in lines]}]}]}, indent=1)
    assert curves(tmp_path / "run.ipynb", notebook) == found


def test_a_file_without_such_lines_is_refused(tmp_path):
    text = tmp_path / "notes.log"
    text.write_text("step: 3 was slow\nstep:4 took 5 s\nin step:5 - as planned: nothing\n")
    data = tmp_path / "weights.bin"
    data.write_bytes(b"\0\1step:1 - a/b:1\n")
    for path in (text, data):
        with pytest.raises(DataError, match=r"no log is recognised; looked for .*console logs of verl, OpenRLHF, TRL"):
            read_log(path)


def test_one_log_of_a_folder_is_read_and_several_are_not_mixed(tmp_path):
    line = "step:{} - critic/score/mean:{}\n"
    (tmp_path / "a.log").write_text(line.format(1, 0.5))
    (tmp_path / "notes.log").write_text("nothing\n")
    assert read_log(tmp_path).curves["critic/score/mean"][1].tolist() == [0.5]
    (tmp_path / "b.log").write_text(line.format(2, 0.75))
    with pytest.raises(DataError, match=r"2 console logs, such as a\.log; pass one of them"):
        read_log(tmp_path)
    rows = [{"prompt": "p", "response": "r", "reward": k} for k in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_log(tmp_path)
    assert (len(read), read.curves) == (4, {})
    assert "not read: 2 console logs, such as a.log; pass one of them" in read.notes


def test_a_log_that_grew_is_read_again(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("step:1 - critic/score/mean:0.5\nstep:2 - critic/score/mean:0.7")
    live = LogReader(path)
    assert live.read().curves["critic/score/mean"][1].tolist() == [0.5, 0.7]
    with path.open("a") as file:
        file.write("5\nstep:3 - critic/score/mean:1\n")
    assert live.read().curves["critic/score/mean"][1].tolist() == [0.5, 0.75, 1.0]


SB3 = "time/total_timesteps,rollout/ep_rew_mean,eval/mean_reward,time/fps\n"


def test_a_table_of_stable_baselines3_and_one_of_rllib(tmp_path):
    path = tmp_path / "progress.csv"
    found = curves(path, f"{SB3}2048,1.5,,99\n4096,2.5,7,99\n")
    assert found["rollout/ep_rew_mean"] == ({2048: 1.5, 4096: 2.5}, "reward")
    assert found["eval/mean_reward"] == ({4096: 7.0}, "reward")
    names = "training_iteration,episode_reward_mean,info/learner/p/learner_stats/entropy,config"
    found = curves(path, f'{names}\n1,3.5,2,"a,b"\n')
    assert found["episode_reward_mean"] == ({1: 3.5}, "reward")
    assert found["info/learner/p/learner_stats/entropy"] == ({1: 2.0}, "entropy")
    assert read_log(path, columns="reward=episode_reward_mean").reward_N.tolist() == [3.5]
    path.write_text("name,reward\na,0.5\n")
    assert read_log(path).reward_N.tolist() == [0.5]


def test_the_lines_of_rllib_with_numbers_in_maps(tmp_path):
    path = tmp_path / "result.json"
    lines = [
        {"training_iteration": 1, "episode_reward_mean": None, "config": {"lr": 0.1}, "done": False, "date": "today"},
        {
            "training_iteration": 2,
            "env_runners": {"episode_return_mean": 3.5},
            "hist_stats": {"episode_reward": [3, 4]},
        },
        {"training_iteration": 3, "env_runners": {"episode_return_mean": float("nan")}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"training_iteration": 4, "episode_rew'
    found = curves(path, text)
    points, role = found["env_runners/episode_return_mean"]
    assert (list(points), points[2], role) == ([2, 3], 3.5, "reward")
    assert np.isnan(points[3])
    assert not {"config/lr", "episode_reward_mean", "date"} & found.keys()
    path.write_text(json.dumps([{"prompt": "p", "response": "r", "reward": 0.5}]))
    assert read_log(path).reward_N.tolist() == [0.5]


def trainer_state(folder, rewards):
    """What the `Trainer` of transformers writes into a checkpoint."""
    logged = [{"step": step, "epoch": step / 10, "rewards/accuracy_reward/mean": reward, "reward": 2 * reward,
               "reward_std": 0.1} for step, reward in enumerate(rewards, 1)]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    history = [*logged, {"step": len(rewards), "eval_reward": 0.75, "eval_loss": float("nan")}]
    TrainerState(global_step=len(rewards), log_history=history).save_to_json(str(folder / "trainer_state.json"))


def test_the_state_of_a_trainer_of_transformers(tmp_path):
    trainer_state(tmp_path, [0.25, 0.5])
    found = {
        name: (dict(zip(steps.tolist(), values.tolist(), strict=True)), role_of(name) and role_of(name).role)
        for name, (steps, values) in read_log(tmp_path / "trainer_state.json").curves.items()
    }
    assert found["train/reward"] == ({1: 0.5, 2: 1.0}, "reward")
    assert found["train/rewards/accuracy_reward/mean"] == ({1: 0.25, 2: 0.5}, "truth")
    assert found["eval/reward"] == ({2: 0.75}, "reward")
    assert "train/step" not in found
    by_hand = read_log(tmp_path / "trainer_state.json", columns="reward=reward")
    assert by_hand.reward_N[:2].tolist() == [0.5, 1.0]


def test_the_last_state_of_a_run_counts_and_runs_are_told_apart(tmp_path):
    trainer_state(tmp_path / "a" / "checkpoint-2", [0.25, 0.5])
    trainer_state(tmp_path / "a" / "checkpoint-10", [0.25, 0.5, 0.75])
    (tmp_path / "a" / "checkpoint-10" / "config.json").write_text('{"model_type": "qwen2"}')
    found = read_log(tmp_path / "a")
    assert found.curves["train/reward"][1].tolist() == [0.5, 1.0, 1.5]
    assert runs_in(tmp_path / "a") == {}
    trainer_state(tmp_path / "b" / "checkpoint-2", [0.25, 0.5])
    assert list(runs_in(tmp_path)) == ["a", "b"]


def test_states_that_say_nothing_are_refused(tmp_path):
    path = tmp_path / "trainer_state.json"
    for history in ("[]", '{"step": 1}', "[1, null]"):
        path.write_text(f'{{"log_history": {history}}}')
        with pytest.raises(DataError, match="no log is recognised"):
            read_log(path)
    for text in ('["log_history"]', '{"log_history": ['):
        path.write_text(text)
        with pytest.raises(DataError, match=r"trainer_state\.json"):
            read_log(path)


def test_tables_in_folders_of_their_own_are_runs(tmp_path):
    for name in ("a2c", "ppo"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.csv").write_text(f"{SB3}2048,1.5,,99\n")
    assert list(runs_in(tmp_path)) == ["a2c", "ppo"]


def test_the_page_of_public_scalars_names_every_tag():
    page = (DOCS / "audit_scalars.md").read_text(encoding="utf-8")
    missing = [tag for tag in TAGS if f"| {tag.tool} | `{tag.name}` | {tag.role} |" not in page]
    assert not missing, "run benchmarks/audit_scalars.py"
