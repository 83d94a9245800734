"""The words of refusals, one for each kind; other tests ask for the key alone (`tables.refuses`)."""

import pytest

from guerdon.config.loading import validate
from guerdon.errors import ConfigError
from guerdon.settings.study import Study
from tables import cases

TEXT = {"policy": {"type": "text", "tiny": {}}, "data": {}}
IMAGE = {"type": "resnet", "save_dir": "rm", "data_path": "data"}


@cases(
    ("given", "key", "words"),
    [
        (
            {"algorithm": {"gae_lamda": 0.9}},
            "algorithm.gae_lamda",
            "algorithm.gae_lamda = 0.9: unknown key; did you mean algorithm.gae_lambda?",
        ),
        (
            {**TEXT, "reward_model": {"rm_type": "exact", "prime_clip": 1}},
            "reward_model.prime_clip",
            "reward_model.prime_clip = 1: unknown key; it belongs to rm_type: prime",
        ),
        (
            {**TEXT, "reward_model": {"rm_type": "value"}},
            "reward_model.path",
            "reward_model.path is missing and has no default: the classifier's folder or hub id",
        ),
        (
            {"algorithm": {"gae_lambda": 2}},
            "algorithm.gae_lambda",
            "algorithm.gae_lambda is 2; allowed: less than or equal to 1",
        ),
        (
            {"reward": {"reward_mode": "perstep", "use_reward_model": True, "model": {"checkpoint_path": "x"}}},
            "reward.reward_mode",
            "reward.reward_mode is 'perstep'; allowed: 'per_step', 'terminal' or 'episode'; did you mean 'per_step'?",
        ),
        (
            {"algorithm": {"adv_estimator": "rloo", "gae_lambda": 0.9}},
            "algorithm.gae_lambda",
            "algorithm does not fit together: gae_lambda would do nothing with adv_estimator rloo; remove it",
        ),
        (
            {"runner": {"seed": True}},
            "runner.seed",
            "runner does not fit together: seed is true, which is not a number",
        ),
        (
            {"algorithm": {"minibatch_size": 6, "micro_batch_size": 4}},
            "algorithm.minibatch_size",
            "algorithm does not fit together: minibatch_size (6) must be a multiple of micro_batch_size (4)",
        ),
        (
            {"algorithm": {"type": "sac", "num_critics": 2, "num_subsample_critics": 3}},
            "algorithm.num_subsample_critics",
            "algorithm does not fit together: num_subsample_critics 3 is more than num_critics 2",
        ),
        (
            {"policy": {"type": "text", "path": "x", "tiny": {}}, "data": {}},
            "policy.path",
            "policy does not fit together: path (a model to read) and tiny (a model to make) are both given; remove "
            "one of them",
        ),
        (
            {**TEXT, "algorithm": {"kl_coef": 0.1, "kl_type": "k1"}},
            "algorithm.kl_type",
            "algorithm does not fit together: kl_type k1 in the loss has a gradient of zero on average (it is the "
            "policy's score): take k2 or k3, or kl_in reward",
        ),
        (
            {**TEXT, "train": {"rm": IMAGE}},
            "train.rm",
            "does not fit together: train.rm: type resnet does not go with policy.type text",
        ),
        (
            {**TEXT, "algorithm": {"credit": "min_form"}},
            "algorithm.credit",
            "does not fit together: algorithm.credit min_form needs a prime reward model with granularity token or "
            "step, or a source of reward.sources with reward_mode per_step",
        ),
        (
            {"policy": {"type": "mlp", "device": "gpu"}},
            "policy.device",
            "policy.device is 'gpu': 'gpu' is not a device: write auto, cpu, cuda or cuda:1",
        ),
    ],
    ids=str,
)
def test_a_refusal_says_what_and_where(given, key, words):
    with pytest.raises(ConfigError) as refused:
        validate(Study, given, origin="study.yaml")
    assert (refused.value.key, str(refused.value)) == (key, f"study.yaml: {words}")


def test_of_several_problems_the_key_is_that_of_the_first():
    with pytest.raises(ConfigError) as refused:
        validate(Study, {"runner": {"seed": -1}, "env": {"num_envs": 0}}, origin="study.yaml")
    head, *lines = str(refused.value).splitlines()
    assert head == "study.yaml: 2 problems"
    assert lines[0].startswith(f"  study.yaml: {refused.value.key} is ")
