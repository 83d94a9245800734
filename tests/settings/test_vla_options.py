"""The options of the VLA guide's training script and the keys of RLinf: each works, or is refused with a reason."""

import pytest

from guerdon.config.loading import load
from guerdon.config.schema import leaves
from guerdon.settings.aliases import RLINF_KEYS, VLA_OPTIONS
from guerdon.settings.study import Study
from tables import cases, refuses

LIBERO = ["env.type=libero"]


def study(*overrides):
    return load(Study, None, overrides)


def test_keys_are_keys_of_the_configuration():
    known = set(leaves((Study,)))
    names = [*VLA_OPTIONS.values(), *RLINF_KEYS.values()]
    assert not {one.key for one in names if one.key is not None} - known
    assert all(one.key or one.why for one in names)


SCRIPT = """
    seed vla_path load_adapter_checkpoint use_fast_tokenizer enable_gradient_checkpointing data_root_dir dataset_name
    center_crop use_lora lora_rank lora_dropout use_quantization context_length response_length
    process_reward_model prm_model_name_or_path prm_checkpoint_path prm_reward_weight
    use_value_model value_model_path value_model_type value_use_lora value_lr value_init_steps
    task_suite_name num_steps_wait num_tasks_per_suite num_trials_per_task n_rollout_threads task_ids max_env_length
    save_video env_gpu_id
    lr eps weight_decay scheduler max_grad_norm per_device_train_batch_size local_rollout_batch_size
    local_rollout_forward_batch_size local_mini_batch_size num_mini_batches num_epochs num_steps total_episodes
    temperature verify_reward_value penalty_reward_value non_stop_penalty beta kl_estimator whiten_rewards cliprange
    cliprange_value vf_coef gamma lam norm_adv max_approx_kl async_mode save_freq use_wandb push_to_hub
    vllm_num_engines vllm_tensor_parallel_size vllm_enforce_eager vllm_sync_backend gpu_memory_utilization
    use_curriculum curriculum_temp curriculum_min_prob cliprange_high cliprange_low clip_vloss eval_freq init_eval
"""  # every option of the guide's script and of its curriculum branch


def test_the_table_has_every_option_of_the_script():
    assert not set(SCRIPT.split()) - set(VLA_OPTIONS)


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
    with refuses("policy.vla_path"):
        study("vla_path=openvla/openvla-7b")


def test_recomputed_activations_and_no_critic():
    given = study("policy.type=vla", "vla_path=openvla/openvla-7b", "enable_gradient_checkpointing=true")
    assert given.policy.gradient_checkpointing
    assert study("use_value_model=false").control_algorithm.adv_estimator == "reinforce"


def test_the_dummy_of_the_guide():
    assert study("process_reward_model=True").reward.sources["prm"].model.model_type == "DummyRM"
    assert not study("process_reward_model=False").reward.use_reward_model


@cases("name", sorted(VLA_OPTIONS))
def test_every_option_works_or_is_refused_with_its_reason(name):
    option = VLA_OPTIONS[name]
    for same in option.same:
        text = str(same).lower() if isinstance(same, bool) else str(same)
        assert study(f"{name}={text}") == study()
    if option.key is None:
        with refuses(name, "cannot be set here") as refused:
            study(f"{name}=17")
        assert option.why in str(refused.value)
        assert f"override '{name}=17'" in str(refused.value)


def test_engines_that_generate_are_collectors():
    given = study("engine=ray", "runner.rollout_shards=2", "vllm_num_engines=2", "vllm_sync_backend=nccl")
    assert (given.cluster.collectors, given.cluster.weight_transfer) == (2, "auto")
    assert study("engine=ray", "gpu_memory_utilization=0.4").cluster.collector_gpus == 0.4
    for name in ("vllm_num_engines=2", "gpu_memory_utilization=0.4"):
        with refuses("cluster"):
            study(name)


def test_a_file_may_have_them_at_its_top(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("lr: 1e-4\nsave_video: true\nalgorithm: {gamma: 0.9}\n")
    given = load(Study, path, ["lr=2e-4", "gamma=0.8"])
    assert (given.control_algorithm.learning_rate, given.algorithm.gamma) == (2e-4, 0.8)
    assert load(Study, path).control_algorithm.learning_rate == 1e-4
    path.write_text("lr: 1e-4\nalgorithm: {learning_rate: 1e-3}\n")
    with refuses("lr", r"study\.yaml:1: lr and algorithm\.learning_rate are two names"):
        load(Study, path)
    path.write_text("name: x\nuse_wandb: true\n")
    with refuses("use_wandb", r"study\.yaml:2: "):
        load(Study, path)
    path.write_text("lr: fast\n")
    with refuses("algorithm.learning_rate"):
        load(Study, path)


def test_options_of_the_curriculum():
    env = study(*LIBERO, "use_curriculum=true", "curriculum_temp=2.0", "curriculum_min_prob=0.1").env
    assert (env.use_curriculum, env.curriculum_over, env.curriculum_temp, env.curriculum_min_prob) == (
        True, "states", 2.0, 0.1,
    )  # fmt: skip
    with refuses("env.curriculum_temp"):
        study(*LIBERO, "curriculum_temp=2.0")
    assert study("use_curriculum=False", "curriculum_temp=1.0", "curriculum_min_prob=0.0") == study()  # a launcher's


def test_options_of_the_tasks():
    given = study(*LIBERO, "num_tasks_per_suite=4", "num_trials_per_task=5")
    assert given.env.task_ids == (0, 1, 2, 3)
    assert given.runner.eval_episodes == 20
    with refuses("task_ids"):
        study(*LIBERO, "num_tasks_per_suite=4", "task_ids=[1]")


PATHS = ("actor.model.model_path", "rollout.model.model_path", "actor.tokenizer.tokenizer_model")
VLA = ["policy.type=vla", *LIBERO]


def test_keys_of_rlinf():
    given = study(
        *VLA, *(f"{name}=/models/oft" for name in PATHS), "env.train.num_envs=4", "env.train.max_episode_steps=100",
        "env.train.task_suite_name=libero_goal", "env.train.ignore_terminations=false", "actor.model.is_lora=true",
        "env.train.use_ordered_reset_state_ids=false", "env.eval.reward_model.enable=False", "actor.optim.lr=2e-5",
        "actor.model.num_action_chunks=4", "actor.micro_batch_size=50", "actor.seed=7",
    )  # fmt: skip
    policy, env, algorithm = given.policy, given.env, given.control_algorithm
    assert (policy.vla_path, policy.use_lora, policy.num_action_chunks) == ("/models/oft", True, 4)
    assert (env.num_envs, env.max_episode_steps, env.task_suite_name, env.end_on_success, env.init_states) == (
        4, 100, "libero_goal", True, "drawn",
    )  # fmt: skip
    assert (algorithm.learning_rate, algorithm.micro_batch_size, given.runner.seed) == (2e-5, 50, 7)


def test_rewards_of_the_libero_guide(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "actor: {model: {model_path: /models/oft}, tokenizer: {tokenizer_model: '${actor.model.model_path}'}}\n"
        "rollout: {model: {model_path: '${actor.model.model_path}'}}\n"
        "policy: {type: vla}\n"
        "reward: {reward_mode: episode}\n"
        "env:\n"
        "  type: libero\n"
        "  train:\n"
        "    reward_coef: 5.0\n"
        "    use_rel_reward: true\n"
        "    reward_model: {enable: true, endpoint: 'http://127.0.0.1:18080/score', backend: PRIMO-R1, nframes: 8,\n"
        "      binary_reward: true, success_threshold: 0.4, fail_on_request_error: true}\n"
        "  eval: {reward_model: {enable: false}}\n"
    )
    path.write_text(path.read_text().replace("reward: {", "reward: {model: {model_type: remote}, "))
    given = load(Study, path)
    (source,) = given.reward.sources.values()
    assert given.policy.vla_path == "/models/oft"
    assert (source.reward_coef, source.shaping, source.on_failure) == (5.0, "threshold", "raise")
    remote = source.model.remote
    assert (remote.endpoint, remote.backend, remote.nframes) == ("http://127.0.0.1:18080/score", "PRIMO-R1", 8)
    assert load(Study, path, ["actor.model.model_path=/other"]).policy.vla_path == "/other"


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ([f"{PATHS[0]}=/a", f"{PATHS[1]}=/b"], "rollout.model.model_path"),
        (["env.eval.reward_model.enable=true"], "env.eval.reward_model.enable"),
        (["env.eval.num_envs=500"], "env.eval.num_envs"),
        (["actor.global_batch_size=16384"], "actor.global_batch_size"),
        (["env.train.num_env=4"], "env.train"),
        (["actor.model.model_pth=/a"], "actor"),
    ],
)
def test_keys_of_rlinf_that_cannot_be_set(overrides, key):
    with refuses(key):
        study(*VLA, *overrides)


def test_a_file_may_not_name_one_thing_twice(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("policy: {type: vla, vla_path: /a}\nactor: {model: {model_path: /b}}\n")
    with refuses("actor.model.model_path", r"run\.yaml:2: "):
        load(Study, path)
    path.write_text("policy: {type: vla}\nactor: {model: {model_path: /b}}\nrollout: {model: {model_path: /a}}\n")
    with refuses("rollout.model.model_path"):
        load(Study, path)
