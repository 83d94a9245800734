"""The options of the VLA guide's training script: each works, or is refused with a reason."""

import pytest

from guerdon.config import load
from guerdon.config_schema import leaves
from guerdon.errors import ConfigError
from guerdon.settings.aliases import VLA_OPTIONS
from guerdon.settings.study import Study

LIBERO = ["env.type=libero"]


def study(*overrides):
    return load(Study, None, overrides)


def test_keys_are_keys_of_the_configuration():
    known = set(leaves((Study,)))
    missing = {one.key for one in VLA_OPTIONS.values() if one.key is not None} - known
    assert not missing
    assert all(one.key or one.why for one in VLA_OPTIONS.values())


def test_options_work_under_their_names(tmp_path):
    given = study(
        "seed=3", "lr=5e-6", "num_steps=64", "num_epochs=2", "local_mini_batch_size=32", "gamma=0.9", "lam=0.8",
        "cliprange=0.1", "cliprange_high=0.3", "cliprange_value=0.2", "vf_coef=0.5", "norm_adv=false",
        "max_approx_kl=0.03", "scheduler=linear", "max_grad_norm=1.0", "value_init_steps=5", "save_video=True",
        "per_device_train_batch_size=16", "process_reward_model=True", "prm_model_name_or_path=some/qwen",
        "prm_checkpoint_path=lora", "prm_reward_weight=0.05", "use_vllm_prm=true",
        *LIBERO, "task_suite_name=libero_spatial", "num_steps_wait=5", "n_rollout_threads=4", "task_ids=[0, 3]",
        "max_env_length=0", "use_wandb=false", "beta=0", "eps=1e-5", "weight_decay=0.0", "use_value_model=true",
    )  # fmt: skip
    a = given.control_algorithm
    assert (given.runner.seed, given.runner.save_video, a.learning_rate, a.rollout_steps, a.num_epochs) == (
        3, True, 5e-6, 64, 2,
    )  # fmt: skip
    assert (a.minibatch_size, a.micro_batch_size, a.gamma, a.gae_lambda, a.value_coef) == (32, 16, 0.9, 0.8, 0.5)
    assert (a.clip_range, a.clip_range_high, a.clip_range_value) == (0.1, 0.3, 0.2)
    assert (a.normalize_advantages, a.lr_schedule, a.max_grad_norm, a.value_init_steps) == (False, "linear", 1.0, 5)
    assert a.target_kl == pytest.approx(0.02)
    source = given.reward.sources["prm"]
    assert (source.reward_weight, source.model.vlm.path, source.model.vlm.adapter) == (0.05, "some/qwen", "lora")
    assert source.model.vlm.backend == "vllm"
    env = given.env
    assert (env.task_suite_name, env.num_steps_wait, env.num_envs, env.task_ids) == ("libero_spatial", 5, 4, (0, 3))
    assert env.max_episode_steps == 280, "0 is the limit of the suite"


def test_options_of_the_policy():
    policy = study(
        "policy.type=vla", "vla_path=openvla/openvla-7b", "use_lora=true", "lora_rank=16", "lora_dropout=0.1",
        "center_crop=true", "temperature=1.5", "load_adapter_checkpoint=runs/clone",
        "use_quantization=true",
    ).policy  # fmt: skip
    assert (policy.vla_path, policy.use_lora, policy.lora_rank, policy.lora_dropout, policy.center_crop) == (
        "openvla/openvla-7b", True, 16, 0.1, True,
    )  # fmt: skip
    assert (policy.decoding.temperature, policy.load_adapter_checkpoint) == (1.5, "runs/clone")
    assert policy.use_quantization
    with pytest.raises(ConfigError, match="type: vla"):
        study("vla_path=openvla/openvla-7b")


def test_the_dummy_of_the_guide():
    assert study("process_reward_model=True").reward.sources["prm"].model.model_type == "DummyRM"
    assert not study("process_reward_model=False").reward.use_reward_model


@pytest.mark.parametrize("name", sorted(VLA_OPTIONS))
def test_every_option_works_or_is_refused_with_its_reason(name):
    option = VLA_OPTIONS[name]
    for same in option.same:
        text = str(same).lower() if isinstance(same, bool) else str(same)
        assert study(f"{name}={text}") == study()
    if option.key is None:
        with pytest.raises(ConfigError, match="cannot be set here") as refused:
            study(f"{name}=17")
        assert option.why in str(refused.value)
        assert f"override '{name}=17'" in str(refused.value)


def test_a_file_may_have_them_at_its_top(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("lr: 1e-4\nsave_video: true\nalgorithm: {gamma: 0.9}\n")
    given = load(Study, path, ["lr=2e-4", "gamma=0.8"])
    assert (given.control_algorithm.learning_rate, given.algorithm.gamma) == (2e-4, 0.8)
    assert load(Study, path).control_algorithm.learning_rate == 1e-4
    path.write_text("lr: 1e-4\nalgorithm: {learning_rate: 1e-3}\n")
    with pytest.raises(ConfigError, match=r"study\.yaml:1: lr and algorithm\.learning_rate are two names"):
        load(Study, path)
    path.write_text("name: x\nuse_wandb: true\n")
    with pytest.raises(ConfigError, match=r"study\.yaml:2: use_wandb is an option of the VLA guide"):
        load(Study, path)
    path.write_text("lr: fast\n")
    with pytest.raises(ConfigError, match=r"study\.yaml:1: algorithm\.learning_rate is 'fast'"):
        load(Study, path)
