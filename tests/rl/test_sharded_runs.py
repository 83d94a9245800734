"""Runs of sharded policies of robots: killed, and resumed by any number of processes; and learners that hang."""

import pytest
import torch
from test_run_together import file_of
from test_vla_runs import vla_study

from guerdon.rl.loop import Loop
from guerdon.rl.run import run, run_folder
from learners import TESTS, assert_alike, finished, run_together, start_together
from rl_killed import kill_at
from tables import refuses
from text_rl import letter_study

torch.set_num_threads(1)
pytestmark = pytest.mark.timeout(1800)
OFFLOAD = r"cpu_offload would do nothing with one learner: start several \(docs/distributed\.md\), or leave it out"
FLOW = {"family": "flow", "num_steps": 2}
LORA = {"use_lora": True, "lora_rank": 2}


@pytest.mark.parametrize("study", [vla_study, letter_study])
def test_offloading_without_shards_is_refused(study, tmp_path):
    given = study(tmp_path, policy={"cpu_offload": True})
    with refuses("cpu_offload", "would do nothing with one learner"):
        run(given)
    assert not run_folder(given).exists() or not (run_folder(given) / "metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["oft_lora", "flow"])
def test_a_run_of_a_vla_goes_on_with_another_number_of_processes(kind, tmp_path):
    """Two processes, of which one is killed; then one, which is killed; then four, to the end."""
    policy = {"oft_lora": LORA, "flow": FLOW}[kind]
    given = {"policy": {"bf16": False, **policy}, "runner": {"total_steps": 240, "eval_every": 240}}
    alone, changing = (vla_study(tmp_path, name=name, **given) for name in ("alone", "changing"))
    run(alone)
    file, folder = file_of(changing, tmp_path), run_folder(changing)
    (first, said), (second, _) = finished(start_together(TESTS / "rl" / "run_killed.py", 1, 3, "run", file))
    assert (first, second) == (3, -9)
    assert "a process that trains with this one has ended" in said
    assert list((folder / "checkpoints").glob("step_*"))
    kill_at(Loop(changing, folder, resume=True), "update", 2)
    run_together("-m", "guerdon", "run", file, "--resume", count=4)
    assert_alike(alone, changing, within=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "where"), [(1, "update"), (0, "update"), (0, "collect")])
def test_a_learner_that_hangs_ends_the_others(rank, where, tmp_path):
    """It is stopped: its connections stay open, and nothing comes."""
    study = letter_study(tmp_path, runner={"collective_timeout": 20.0})
    processes = start_together(TESTS / "rl" / "run_stopped.py", rank, where, 3, "run", file_of(study, tmp_path))
    other = processes[1 - rank]
    try:
        said, _ = other.communicate(timeout=500)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert other.returncode == 3, said
    assert "a process that trains with this one does not answer: nothing was heard from it for 20 s" in said
    assert "Traceback" not in said
    assert list((run_folder(study) / "checkpoints").glob("step_*"))
    run(study, resume=True)
    assert (run_folder(study) / "COMPLETE").is_file()
