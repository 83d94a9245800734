"""Sizes that would take all memory before a run begins are refused where they are read."""

import pytest

from guerdon.config.loading import load
from guerdon.settings.study import Study
from tables import refuses

ROBOT = ["env={type: gymnasium, task: CartPole-v1, native_reward: dense}"]
TEXT = ["policy={type: text, tiny: {}}", "data={task: {family: chain}}"]
EVALUATED = ["evaluate={type: control}"]


@pytest.mark.parametrize(
    ("study", "key"),
    [
        (ROBOT, "env.num_envs"),
        (ROBOT, "algorithm.rollout_steps"),
        (ROBOT, "runner.threads"),
        (ROBOT, "runner.max_staleness"),
        ([*ROBOT, "policy={type: mlp, hidden: [8, 8]}"], "policy.hidden.1"),
        ([*ROBOT, "policy={type: cnn, hidden: [8]}"], "policy.hidden.0"),
        ([*ROBOT, "policy={type: vla, family: token, tiny: {}}"], "policy.tiny.hidden_size"),
        ([*ROBOT, "policy={type: vla, family: token, tiny: {}}"], "policy.tiny.layers"),
        ([*ROBOT, "policy={type: vla, family: token, tiny: {}}"], "policy.tiny.image_size"),
        ([*ROBOT, "policy={type: vla, family: token, tiny: {}}"], "policy.tiny.words"),
        ([*ROBOT, *EVALUATED], "evaluate.reps"),
        (TEXT, "policy.tiny.hidden_size"),
        (TEXT, "policy.tiny.layers"),
        (TEXT, "policy.tiny.intermediate"),
        (TEXT, "data.train_batch_size"),
        (TEXT, "data.n_samples"),
        (TEXT, "data.train_size"),
        (TEXT, "data.val_size"),
    ],
)
def test_one_line_says_what_is_allowed(study, key):
    with refuses(key, r"allowed: less than or equal to \d+") as error:
        load(Study, None, [*study, f"{key}=1000000000"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("study", [ROBOT, TEXT])
def test_long_runs_are_no_mistake(study):
    load(Study, None, [*study, "runner.total_steps=1000000000", "runner.eval_every=1000000000"])
