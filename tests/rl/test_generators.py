"""Acting and learning draw from generators of their own, so that a rollout does not depend on who learns from it."""

import json

import numpy as np
import pytest

from guerdon.compute.generators import ACTING, LEARNING, REPLAY, generator
from guerdon.errors import CheckpointError
from guerdon.files.atomic import seal_folder, write_json
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.run import run_folder
from rl_clock import clock_study
from rl_clock import start as start_control
from rl_killed import kill_at
from text_rl import letter_study, prime
from text_rl import start as start_text


def test_parts_of_one_seed_and_seeds_of_one_part_differ():
    firsts = {generator(seed, part).random() for seed in range(3) for part in (LEARNING, ACTING, REPLAY)}
    assert len(firsts) == 9
    assert generator(2, ACTING).random() == generator(2, ACTING).random()


def one_iteration(loop, acting):
    """What happened, and the states of both generators after acting and after learning."""
    collector, learner = loop.collector, loop.learner
    happened = collector.collect(learner.policy)
    acted = [acting(collector).bit_generator.state, learner.rng.bit_generator.state]
    rewards = {name: source.measure(happened) for name, source in loop.sources.items()}
    learner.update(happened, rewards, loop.parts.terms, progress=0.0)
    return happened, acted, [acting(collector).bit_generator.state, learner.rng.bit_generator.state]


def test_a_control_policy_acts_and_learns_with_generators_of_its_own(tmp_path):
    states = []
    for epochs in (1, 3):
        loop = start_control(
            clock_study(
                tmp_path,
                name=str(epochs),
                algorithm={"rollout_steps": 12, "minibatch_size": 8, "num_epochs": epochs},
            )
        )
        happened, acted, learned = one_iteration(loop, lambda collector: collector.rng)
        loop.close()
        assert acted[0] != generator(0, ACTING).bit_generator.state
        assert acted[1] == generator(0, LEARNING).bit_generator.state
        assert learned[0] == acted[0]
        states.append((happened.inputs.actions, acted[0], learned[1]))
    np.testing.assert_array_equal(states[0][0], states[1][0])
    assert states[0][1] == states[1][1]
    assert states[0][2] != states[1][2]  # more epochs drew more


def test_a_language_model_acts_and_learns_with_generators_of_its_own(tmp_path):
    replay = prime(prime_model={"replay_size": 64})
    study = letter_study(tmp_path, algorithm={"minibatch_size": 8}, reward_model=replay)
    loop = start_text(study)
    _, acted, learned = one_iteration(loop, lambda collector: collector.sampler.rng)
    assert acted[0] != generator(0, ACTING).bit_generator.state
    assert acted[1] == generator(0, LEARNING).bit_generator.state
    assert learned[0] == acted[0]
    assert learned[1] != acted[1]
    before, sampler = loop.learner.rng.bit_generator.state, loop.collector.sampler
    happened = loop.collector.collect(loop.learner.policy)
    stream = sampler.stream.state_dict()
    loop.sources["prime"].measure(happened)  # learns from the replay, too
    assert sampler.stream.state_dict() == stream
    assert loop.learner.rng.bit_generator.state == before
    assert loop.sources["prime"].rng.bit_generator.state != generator(0, REPLAY).bit_generator.state
    loop.close()


@pytest.mark.parametrize("make", [clock_study, letter_study], ids=["control", "text"])
def test_a_checkpoint_of_another_version_is_refused_and_still_starts_another_run(make, tmp_path):
    start = start_control if make is clock_study else start_text
    study = make(tmp_path)
    kill_at(start(study), "update", 4)
    path = ckpt.latest_checkpoint(run_folder(study) / "checkpoints")
    values = json.loads((path / "state.json").read_text())
    assert values.pop("version") == ckpt.VERSION
    (path / "COMPLETE").unlink()
    write_json(path / "state.json", values)
    seal_folder(path, path.with_name("step_999999999999"))
    with pytest.raises(CheckpointError, match=r"has checkpoint version 1, this guerdon resumes version 5: ") as refused:
        start(study, resume=True)
    assert "\n" not in str(refused.value)
    second = start(make(tmp_path, name="second", runner={"resume_dir": str(run_folder(study))}))
    assert any(note.startswith("stage 2 starts from") for note in second.parts.notes)
    second.close()
