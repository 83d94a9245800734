"""Training that diverges: the run stops with exit status 3, and what it leaves is finite."""

import pytest
import torch
from safetensors.torch import load_file

from called import called
from guerdon.compute.finite import MAX_SKIPPED, SkippedSteps, first_non_finite, load_weights, save_weights
from guerdon.config.loading import to_yaml
from guerdon.errors import CheckpointError, NonFiniteError
from guerdon.policies.robots import control
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.run import run_folder
from rl_clock import clock_study
from rl_clock import start as start_clock
from rl_killed import kill_at
from text_rl import LORA, letter_study, lines, prime, start

torch.set_num_threads(1)
WILD = 1e30


def stored(study):
    """Every tensor that a run left, by file and name."""
    files = sorted(run_folder(study).rglob("*.safetensors"))
    return [(f"{file}: {name}", tensor) for file in files for name, tensor in load_file(file).items()]


def assert_left_finite(study):
    """There is a checkpoint to resume, no policy, no COMPLETE, and nothing that is not finite."""
    folder = run_folder(study)
    assert ckpt.latest_checkpoint(folder / "checkpoints") is not None
    assert not (folder / "COMPLETE").exists()
    assert not list(folder.glob("policy/*.safetensors"))
    assert stored(study)
    assert first_non_finite(stored(study)) is None


def test_statistics_of_large_numbers_are_finite():
    """The variance of counts of 1e12 is 1e24, and the norm of several overflows float32."""
    assert first_non_finite([("normalizer.var", torch.full((3,), 1e24, dtype=torch.float64))]) is None
    for name, value in (("weights", 1e24), ("normalizer.var", torch.inf), ("normalizer.var", -1.0)):
        assert first_non_finite([(name, torch.full((3,), value, dtype=torch.float64))]) == name


def robot(folder, **algorithm):
    return clock_study(folder, algorithm={"learning_rate": WILD, "minibatch_size": 4, **algorithm})


def test_a_robot_policy_that_diverges_stops_with_finite_weights(tmp_path):
    study = robot(tmp_path)
    with pytest.raises(NonFiniteError, match=r"not finite.*runner\.resume_dir=") as caught:
        start_clock(study).run()
    assert caught.value.exit_code == 3
    assert_left_finite(study)
    again = start_clock(study, resume=True)
    assert again.step == 0
    with pytest.raises(NonFiniteError):
        again.run()
    tamed = clock_study(tmp_path, name="tamed", runner={"resume_dir": str(run_folder(study))})
    start_clock(tamed).run()
    assert (run_folder(tamed) / "COMPLETE").is_file()


@pytest.mark.parametrize("policy", [{}, {"lora": LORA}], ids=["whole", "lora"])
def test_a_language_model_that_diverges_stops_with_finite_weights(policy, tmp_path):
    study = letter_study(tmp_path, policy=policy, algorithm={"learning_rate": WILD, "minibatch_size": 2})
    with pytest.raises(NonFiniteError, match="not finite"):
        start(study).run()
    assert_left_finite(study)


def test_weights_that_are_lost_are_not_evaluated(tmp_path):
    study = letter_study(tmp_path, algorithm={"learning_rate": WILD}, runner={"eval_every": 16})
    with pytest.raises(NonFiniteError, match="cannot be evaluated"):
        start(study).run()
    assert [row["step"] for row in lines(study) if row["kind"] == "eval"] in ([], [0])
    assert_left_finite(study)


def test_an_implicit_reward_model_that_diverges_stops_the_run(tmp_path):
    model = prime(mini=4, micro=4, prime_model={"optim": {"lr": WILD}}, on_failure="neutral")
    study = letter_study(tmp_path, reward_model=model, reward={"max_failure_rate": 1.0})
    with pytest.raises(NonFiniteError, match="not finite"):
        start(study).run()
    assert_left_finite(study)


def test_few_skipped_updates_at_the_end_are_no_success(tmp_path):
    study = letter_study(tmp_path, runner={"total_steps": 32})
    loop = start(study)
    before = loop.learner.policy.tensors()
    evaluate = loop.learner.policy.evaluate

    def not_finite(batch, **options):
        scores = evaluate(batch, **options)
        scores.log_probs[:] = float("nan")
        return scores

    loop.learner.policy.evaluate = not_finite
    with pytest.raises(NonFiniteError, match="ended with 2 skipped updates in a row"):
        loop.run()
    assert_left_finite(study)
    assert [row["skipped_updates"] for row in lines(study) if row["kind"] == "train"] == [1, 1]
    kept, _ = ckpt.load_checkpoint(ckpt.latest_checkpoint(run_folder(study) / "checkpoints"))
    assert all(torch.equal(kept[f"policy.{name}"], tensor) for name, tensor in before.items())


def test_weights_whose_update_was_skipped_replace_no_checkpoint(tmp_path):
    study = letter_study(tmp_path, runner={"total_steps": 512, "checkpoint_every": 16, "keep_checkpoints": 1})
    kill_at(start(study), "update", 3)
    loop = start(study, resume=True)
    step = loop.step
    loop.learner.optimizer.skipped.takes(float("nan"))
    loop.step += 16
    loop._save()
    assert ckpt.latest_checkpoint(run_folder(study) / "checkpoints").name == f"step_{step:012d}"
    assert loop.learner.optimizer.skipped.takes(1.0)
    loop._save()
    assert ckpt.latest_checkpoint(run_folder(study) / "checkpoints").name == f"step_{step + 16:012d}"
    loop.close()


def test_the_command_ends_with_status_3(tmp_path):
    study = robot(tmp_path)
    (tmp_path / "study.yaml").write_text(to_yaml(study))
    done = called("run", tmp_path / "study.yaml", folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "lower" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert (run_folder(study) / "FAILED.json").is_file()
    assert_left_finite(study)


def test_only_steps_in_a_row_count():
    skipped = SkippedSteps("the policy", "algorithm.learning_rate")
    for _ in range(3):
        for _ in range(MAX_SKIPPED - 1):
            assert not skipped.takes(1.0, float("inf"))
        assert skipped.takes(1.0, 2.0)
    for _ in range(MAX_SKIPPED - 1):
        skipped.takes(float("nan"))
    with pytest.raises(NonFiniteError, match=rf"last {MAX_SKIPPED} updates of the policy.*lower algorithm\.learning"):
        skipped.takes(float("nan"))


def test_a_skipped_step_changes_nothing():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer, skipped = torch.optim.AdamW([weight], lr=0.1), SkippedSteps("it", "its rate")
    weight.grad = torch.tensor([1.0, float("nan"), 1.0])
    assert skipped.clipped_step(optimizer, 0.5, 1.0) is None
    weight.grad = torch.ones(3)
    assert skipped.clipped_step(optimizer, float("inf"), 1.0) is None
    assert torch.equal(weight, torch.ones(3))
    assert not optimizer.state
    weight.grad = torch.ones(3)
    assert skipped.clipped_step(optimizer, 0.5, 1.0) == pytest.approx(3**0.5)
    assert not torch.equal(weight, torch.ones(3))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_weights_that_are_not_finite_are_neither_written_nor_read(value, dtype, tmp_path):
    good, bad = torch.ones(2, dtype=dtype), torch.tensor([0.0, value], dtype=dtype)
    save_weights({"a": good, "count": torch.tensor(3)}, tmp_path / "w.safetensors")
    assert torch.equal(load_weights(tmp_path / "w.safetensors")["a"], good)
    before = (tmp_path / "w.safetensors").read_bytes()
    with pytest.raises(NonFiniteError, match="b is not finite"):
        save_weights({"a": good, "b": bad}, tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").read_bytes() == before
    from safetensors.torch import save_file

    save_file({"a": good, "b": bad}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="b is not finite"):
        load_weights(tmp_path / "w.safetensors")


def test_a_policy_of_an_older_version_that_is_not_finite_is_refused(tmp_path):
    study = clock_study(tmp_path)
    start_clock(study).run()
    folder = run_folder(study) / "policy"
    policy = control.load_policy(folder)
    with torch.no_grad():
        policy.log_std.fill_(float("inf"))
    with pytest.raises(NonFiniteError, match="not finite"):
        control.save_policy(policy, folder)
    control.load_policy(folder)
    from safetensors.torch import save_file

    save_file(policy.tensors(), folder / "policy.safetensors")
    with pytest.raises(CheckpointError, match="not finite"):
        control.load_policy(folder)
