"""Time of runs on GPUs by who works: counted by hand, and printed without "on one core"."""

from pathlib import Path

import pytest

from guerdon.config.loading import load
from guerdon.pages.durations import duration
from guerdon.plan.estimate import START, estimate_label, estimate_run, estimate_sft, estimate_train, readable
from guerdon.plan.text_size import PUBLISHED
from guerdon.settings.gpus import GPUS, known_gpus
from guerdon.settings.study import Study
from tables import cases

CONFIGS = Path(__file__).parents[2] / "configs"
LIBERO = [f"libero_10_grpo_openvlaoft_{run}" for run in ("runA", "runB_qwen", "runC_primo")]
OPENVLA = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32064 * 4096 + 32 * 2 * 4096 + 4096 + 0.80e9
RATE = 989e12 * 0.4  # operations per second of an H100: its peak, and the share that is assumed
READING = 3.35e12 * 0.6  # bytes per second from its memory
P7 = PUBLISHED[7.0].parameters


def libero(name, *overrides):
    return load(Study, CONFIGS / f"{name}.yaml", overrides)


def grpo(**more):
    """7B: 64 prompts of 8 responses, 100 updates, an evaluation of 500 prompts every 25 and at the end."""
    given = {
        "policy": {"type": "text", "path": "Qwen/Qwen2.5-7B", "gpus": "8 x H100", "gradient_checkpointing": True},
        "data": {"type": "gsm8k", "path": "nowhere", "max_response_length": 2048, "max_prompt_length": 512,
                 "train_batch_size": 64, "n_samples": 8},
        "algorithm": {"adv_estimator": "grpo", "kl_coef": 0.001},
        "runner": {"total_steps": 51_200, "eval_every": 12_800, "eval_episodes": 500},
    }  # fmt: skip
    for section, keys in more.items():
        given[section] = {**given.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return Study.model_validate(given)


@cases("name", LIBERO)
def test_the_libero_files_by_hand(name):
    """One process acts and steps 80 copies, eight update: 100 rollouts of 80 episodes of 512 steps, chunks of 8."""
    found = estimate_run(libero(name))
    decisions, evaluated = 100 * 80 * 512 // 8, 10 * 500 * 512
    act, evaluate = OPENVLA * 347 * 4 * decisions / RATE, OPENVLA * 347 * 2 * evaluated / 8 / RATE
    update = OPENVLA * 347 * 4 * decisions / (8 * RATE)
    weights = (100 + 10) * 2 * OPENVLA / 450e9
    alone = "in 1 process, one copy after another: env.vectorization: async steps them at the same time"
    times = {key.removeprefix("time of "): line for key, line in found.items() if key.startswith("time of ")}
    assert times == {
        "acting on 1 x H100": duration(act),
        "evaluating on 1 x H100": duration(evaluate),
        "updating on 8 x H100": duration(update),
        "sending weights": duration(weights),
        "the simulators": f"{duration(4_096_000 / 13)} {alone}",
        "the simulators in evaluations": duration(evaluated / 13),
    }
    parts = act + evaluate + update + weights + (4_096_000 + evaluated) / 13
    assert found["seconds"] == pytest.approx(START + parts)
    sources = ", ".join(libero(name).robot_sources)
    server = "" if name == LIBERO[0] else f", without what these score: {sources}"
    assert f"time: about {duration(START + parts)} on 8 x H100{server}" in readable(found)
    at_once = estimate_run(libero(name, "env.vectorization=async"))
    assert at_once["time of the simulators"] == f"{duration(4_096_000 / 13 / 80)} in 80 processes"
    assert at_once["time of the simulators in evaluations"] == duration(evaluated / 13 / 80)


def test_collectors_of_a_cluster_act_together():
    """By hand: five collectors with a GPU each act for eight learners, and get the adapters by broadcasts."""
    cluster = ["engine=ray", "cluster.learners=8", "cluster.learner_gpus=1", "cluster.collectors=5",
               "cluster.collector_gpus=1", "runner.rollout_shards=5", "policy.gpus=13xH100"]  # fmt: skip
    found = estimate_run(libero(LIBERO[0], *cluster))
    decisions = 100 * 80 * 512 // 8
    assert found["time of acting on 5 x H100"] == duration(OPENVLA * 347 * 4 * decisions / (5 * RATE))
    assert found["time of updating on 8 x H100"] == duration(OPENVLA * 347 * 4 * decisions / (8 * RATE))
    assert found["time of the simulators"].startswith(f"{duration(4_096_000 / 13 / 5)} in 5 processes, one copy")
    assert "time of evaluating on 1 x H100" in found
    assert "GPUs" not in found
    fewer = estimate_run(libero(LIBERO[0], *cluster, "policy.gpus=8xH100"))
    assert fewer["GPUs"].startswith("policy.gpus names 5 fewer than learners, collectors and reward workers")
    more = estimate_run(libero(LIBERO[0], *cluster, "policy.gpus=16xH100"))
    assert more["GPUs"].startswith("policy.gpus names 3 more than")


def test_what_is_not_known_is_in_no_sum():
    cpus = ["engine=ray", "cluster.collectors=5", "runner.rollout_shards=5"]
    found = estimate_run(libero(LIBERO[0], *cpus))
    assert found["time of acting"] == "not known: collectors have no GPU (cluster.collector_gpus)"
    assert "time: not known, since a part of it is not" in readable(found)


def test_a_grpo_study_of_7b_by_hand():
    """Guerdon's own engine writes 256 responses at a time on one GPU; eight GPUs learn."""
    found = estimate_run(grpo())
    tokens = 300  # of a response (plan/estimate.py)
    token = max(25 * 28 * 8e-6, (2 * P7 + 4 * 512 * 28 * 256 * 400) / READING, 2 * P7 * 256 / RATE)
    assert token == (2 * P7 + 4 * 512 * 28 * 256 * 400) / READING, "weights and half of the cache are read"
    assert found["time of generating on 1 x H100"] == (
        f"{duration(200 * tokens * token)} = 200 batches of 256 x {tokens} tokens"
    )
    assert found["time of evaluating on 1 x H100"] == f"{duration(8 * tokens * token)} = 8 batches x {tokens} tokens"
    learn = 8 + 2 + 2  # twice forwards and once backwards, log-probabilities before the update, the KL's reference
    update = learn * P7 * 51_200 * 400 / (8 * RATE)
    assert found["time of updating on 8 x H100"] == duration(update)
    weights = (100 + 4) * (2 * (P7 - 152064 * 3584) + 4 * 152064 * 3584) / 450e9
    assert found["time of sending weights"] == duration(weights)
    assert found["seconds"] == pytest.approx(START + 208 * tokens * token + update + weights)
    assert not [line for line in readable(found) if "one core" in line]


def test_generation_by_vllm_next_to_the_first_learner():
    """No launches count; 512 responses at a time; weights cross the memory of the CPU."""
    found = estimate_run(grpo(generation={"engine": "vllm", "gpu_memory_utilization": 0.4}))
    token = max((2 * P7 + 4 * 512 * 28 * 512 * 400) / READING, 2 * P7 * 512 / RATE)
    assert found["time of generating on 1 x H100"].startswith(f"{duration(100 * 300 * token)} = 100 batches of 512 x")
    assert found["time of sending weights"] == duration(104 * 4 * P7 / 2e10)
    half = estimate_run(grpo(generation={"engine": "vllm", "tensor_parallel_size": 2}))
    assert half["time of generating on 2 x H100"].startswith(duration(100 * 300 * token / 2))


def test_a_frozen_reward_model_scores_on_a_gpu_of_its_own_number():
    model = {"model_type": "text", "checkpoint_path": "Qwen/Qwen2.5-Math-PRM-7B"}
    reward = {"use_reward_model": True, "sources": {"prm": {"model": model}}}
    found = estimate_run(grpo(reward=reward))
    assert found["time of scoring on 1 x H100"] == duration(2 * P7 * 51_200 * 400 / RATE)
    workers = {"reward_workers": 2, "reward_worker_gpus": 1, "collectors": 1, "collector_gpus": 1, "learners": 5,
               "learner_gpus": 1}  # fmt: skip
    found = estimate_run(grpo(reward={**reward, "scoring_shards": 2}, engine="ray", cluster=workers))
    assert found["time of scoring on 2 x H100"] == duration(2 * P7 * 51_200 * 400 / (2 * RATE))


def test_rollouts_ahead_take_no_time_beside_longer_updates():
    cluster = {"collectors": 4, "collector_gpus": 1, "learners": 4, "learner_gpus": 1}
    given = {"engine": "ray", "cluster": cluster, "runner": {"rollout_shards": 4}}
    turns = estimate_run(grpo(**given))
    ahead = estimate_run(grpo(**given | {"runner": {"rollout_shards": 4, "max_staleness": 1}}))
    generate = next(key for key in turns if key.startswith("time of generating"))
    assert generate == "time of generating on 4 x H100"
    assert turns[generate].endswith("= 100 batches of 128 x 300 tokens")
    assert ahead["seconds"] < turns["seconds"]


def test_every_command_says_for_what_its_time_is():
    sft = {"sft": {"save_dir": "s", "max_steps": 100}}
    label = {"label": {"labeler": "monte_carlo"}}
    train = {"train": {"prm": {"type": "stepwise", "save_dir": "s", "data_path": "x.jsonl", "max_steps": 10}}}
    for estimate, more in ((estimate_sft, sft), (estimate_label, label), (estimate_train, train)):
        named, unnamed = estimate(grpo(**more)), estimate(grpo(**more, policy={"gpus": None}))
        assert next(line for line in readable(named) if line.startswith("time: ")).endswith("x H100")
        assert next(line for line in readable(unnamed) if line.startswith("time: ")).endswith("on one core")
        assert named["seconds"] < unnamed["seconds"]
    tiny = {"type": "text", "path": None, "tiny": {}, "gradient_checkpointing": False}
    assert estimate_run(grpo(policy=tiny))["computed on"] == "8 x H100"


@cases(
    ("given", "meant"),
    [("8xH100", "8 x H100"), ("8 x H100", "8 x H100"), ("8X h100", "8 x H100"), ("8×B200", "8 x B200"),
     ("4 * H20", "4 x H20"), ("1xL4", "1 x L4"), ("8 x A100-40GB", "8 x A100-40GB"), ("8xA100 40GB", "8 x A100-40GB"),
     ("2 x A100-80GB", "2 x A100"), ("NVIDIA H100 80GB", "1 x H100"), ("rtx 4090", "1 x RTX4090"), (None, None)],
)  # fmt: skip
def test_gpus_by_their_usual_names(given, meant):
    assert known_gpus(given) == meant
    assert known_gpus(meant) == meant


def test_numbers_of_gpus_have_an_order():
    """B200 of an HGX board, H20 with more memory and less computing than an H100, A100 of 40 GB with slower memory."""
    assert GPUS["B200"].peak > 2 * GPUS["H100"].peak
    assert GPUS["H20"].memory > GPUS["H100"].memory
    assert GPUS["H20"].peak < GPUS["A100"].peak
    assert GPUS["A100-40GB"].peak == GPUS["A100"].peak
    assert GPUS["L4"].memory == 24e9


def test_collectors_with_gpus_of_their_own_take_no_memory_of_learners():
    cluster = {"collectors": 4, "collector_gpus": 1, "learners": 4, "learner_gpus": 1}
    vllm = {"engine": "vllm", "gpu_memory_utilization": 0.9}
    found = estimate_run(grpo(engine="ray", cluster=cluster, runner={"rollout_shards": 4}, generation=vllm))
    assert found["memory of a collector, on a GPU of its own"] == "72.0 GB"
    assert "memory of the rollout" not in found
    assert found["memory of weights"] == f"{4 * P7 / 4 / 1e9:.1f} GB"
    assert found["time of evaluating on 1 x H100"].endswith("= 4 batches x 300 tokens"), "all prompts at once"
