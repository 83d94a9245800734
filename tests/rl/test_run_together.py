"""Runs of two learner processes: the numbers of one process, checkpoints for any number, and no hang when one dies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_own_policy import token_study

from child import environment
from guerdon.config.loading import to_yaml
from guerdon.rl.loop import Loop
from guerdon.rl.run import run, run_folder
from learners import assert_alike, finished, run_together, start_together
from rl_killed import kill_at
from text_rl import LORA, letter_study, prime

torch.set_num_threads(1)
pytestmark = pytest.mark.timeout(1200)

SMALL_PARTS = {"minibatch_size": 8, "micro_batch_size": 4}
UNEVEN = {
    "minibatch_size": 6,
    "micro_batch_size": 2,
}  # 16 rows: three parts for two processes, and a last mini-batch of 4
WORLD = {"type": "agent_parts:Counting", "max_turns": 3}
TEXT = {
    "prime": {"reward_model": prime(mini=8, micro=4), "algorithm": SMALL_PARTS},
    "full": {"algorithm": {**UNEVEN, "kl_coef": 0.1}},
    "lora": {"policy": {"lora": LORA}, "algorithm": {"kl_coef": 0.1}},
    "prime_lora": {
        "policy": {"lora": LORA}, "algorithm": {**UNEVEN, "kl_coef": 0.1, "kl_in": "reward"},
        "reward_model": prime(mini=6, micro=2, prime_model={"optim": {"lr": 1e-2}, "update": "before"}),
    },
    "critic": {"algorithm": {**SMALL_PARTS, "adv_estimator": "gae"}},
    "critic_lora": {"policy": {"lora": LORA}, "algorithm": {**SMALL_PARTS, "adv_estimator": "gae"}},
    "agent": {"agent": WORLD, "algorithm": {**UNEVEN, "adv_estimator": "turn_rloo", "kl_coef": 0.1}},
    "agent_critic_prime": {
        "agent": WORLD, "algorithm": {**SMALL_PARTS, "adv_estimator": "gae"}, "reward_model": prime(mini=8, micro=2),
    },
}  # fmt: skip
RUN_KILLED = Path(__file__).parent / "run_killed.py"


def file_of(study, folder):
    path = folder / "study.yaml"
    path.write_text(to_yaml(study))
    return path


def both(study, tmp_path, **given):
    """The same run by this process and by two others."""
    alone = study(tmp_path, name="alone", **given)
    together = study(tmp_path, name="together", **given)
    run(alone)
    outputs = run_together("-m", "guerdon", "run", file_of(together, tmp_path))
    assert "wrote" in outputs[0]
    assert not any(line in outputs[1] for line in ("wrote", "step", "prompts"))  # the first process speaks for all
    assert_alike(alone, together)


def test_the_first_update_of_two_learners_is_that_of_one(tmp_path):
    few = {"total_steps": 16, "checkpoint_every": 16}
    both(letter_study, tmp_path, policy={"device": "cpu"}, **TEXT["prime"], runner=few)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in TEXT if kind != "prime"])
def test_two_learners_learn_what_one_learns(kind, tmp_path):
    both(letter_study, tmp_path, **TEXT[kind], runner={"total_steps": 32, "eval_every": 32})


@pytest.mark.slow
def test_two_learners_of_a_control_policy(tmp_path):
    both(token_study, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prime", "prime_lora", "agent"])
def test_a_run_goes_on_with_another_number_of_processes(kind, tmp_path):
    """Two processes, of which one is killed; then one, which is killed; then two, to the end."""
    alone, changing = (letter_study(tmp_path, name=name, **TEXT[kind]) for name in ("alone", "changing"))
    run(alone)
    file, folder = file_of(changing, tmp_path), run_folder(changing)
    (first, said), (second, _) = finished(start_together(RUN_KILLED, 1, 3, "run", file))
    assert second == -9
    assert first == 3
    assert "a process that trains with this one has ended" in said
    assert "--resume" in said
    assert json.loads((folder / "FAILED.json").read_text())["kind"] == "ProcessLostError"
    assert sorted(path.name for path in (folder / "checkpoints").glob("step_*"))[-1].endswith("32")
    kill_at(Loop(changing, folder, resume=True), "update", 2)
    run_together("-m", "guerdon", "run", file, "--resume")
    assert_alike(alone, changing)


@pytest.mark.slow
def test_the_first_process_ends_all_of_them(tmp_path):
    """Killed or refused, whatever ends the process that leads ends those that follow."""
    file = file_of(letter_study(tmp_path, **TEXT["full"]), tmp_path)
    (first, _), (second, said) = finished(start_together(RUN_KILLED, 0, 2, "run", file))
    assert first == -9
    assert second == 3
    assert "a process that trains with this one has ended" in said
    found = finished(start_together("-m", "guerdon", "run", file, "generation={engine: vllm, tensor_parallel_size: 3}"))
    assert [status for status, _ in found] == [2, 2]
    assert "does not divide the 2 attention heads" in found[0][1]
    assert "attention heads" not in found[1][1]


FAILING = """
from guerdon.compute import distributed
from guerdon.errors import DataError

def part():
    if {who}:
        raise DataError("there is no file /data/prompts")
    distributed.wait()

with distributed.joined():
    distributed.led(lambda: distributed.everywhere(part))
"""


@pytest.mark.slow
def test_an_error_that_one_process_meets_alone_is_said_by_the_first():
    (_, said), (_, own) = finished(start_together("-c", FAILING.format(who="not distributed.is_first()")))
    assert "FailedAloneError: a process that trains with this one has ended: process 1 alone met an error:" in said
    assert "DataError: there is no file /data/prompts" in own


@pytest.mark.slow
def test_an_error_that_all_processes_meet_is_said_by_the_first():
    (_, said), (status, own) = finished(start_together("-c", FAILING.format(who="True")))
    assert "DataError: there is no file /data/prompts" in said
    assert status == 2
    assert "DataError" not in own


@pytest.mark.slow
def test_torchrun(tmp_path):
    study = letter_study(tmp_path, **TEXT["lora"], runner={"total_steps": 16})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "guerdon"]
    done = subprocess.run(
        [*command, "run", str(file_of(study, tmp_path))], env=environment(OMP_NUM_THREADS="1"), capture_output=True,
        text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (run_folder(study) / "COMPLETE").is_file()
