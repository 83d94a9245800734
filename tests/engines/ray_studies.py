"""Small studies of robots and of language models, in one process and on a Ray cluster."""

import os

import judge

import corridor
from guerdon.settings.study import Study
from scripted import SHAPE

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - else 15, and actors hardly start on a busy machine


def section(folder, name, **given):
    return {
        "seed": 1, "rollout_shards": 2, "eval_episodes": 2,
        "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False}, **given,
    }  # fmt: skip


def robots(folder, name, *, env=None, algorithm=None, policy=None, runner=None, reward=None, **more):
    return Study.model_validate(
        {
            "env": {
                "type": "gymnasium", "task": f"corridor:{corridor.ID}", "num_envs": 4, "max_episode_steps": 7,
                "frame_size": 8, **(env or {}),
            },
            "policy": policy or {"type": "mlp", "hidden": [8]},
            "algorithm": algorithm or {"rollout_steps": 10, "minibatch_size": 16, "num_epochs": 2},
            "reward": reward or {
                "use_reward_model": True, "combine_mode": "add", "reward_mode": "per_step", "shaping": "raw",
                "model": {"model_type": "constant", "value": 0.5},
            },
            "runner": section(folder, name, total_steps=160, eval_every=80, checkpoint_every=40, film_frames=2)
            | (runner or {}),
            **more,
        }
    )  # fmt: skip


def words(folder, name, *, runner=None, **more):
    return Study.model_validate(
        {
            "policy": {"type": "text", "tiny": {**SHAPE, "alphabet": "0123456789+-*=?;"}, "bf16": False},
            "data": {
                "task": {"family": "chain", "steps": 2}, "train_size": 24, "val_size": 4, "max_response_length": 10,
                "train_batch_size": 4, "n_samples": 2, "filter_accuracy": False, "filter_truncated": True,
                "shortfall": "fill",
            },
            "algorithm": {"adv_estimator": "remax", "learning_rate": 1e-2},
            "runner": section(folder, name, total_steps=64, eval_every=32, checkpoint_every=16) | (runner or {}),
            **more,
        }
    )  # fmt: skip


def on_ray(collectors, **given):
    return {
        "engine": "ray",
        "cluster": {"collectors": collectors, "collector_cpus": 0.5, "start_timeout": 600, **given},
    }


def recorded(folder):
    """Everything of a run that has no times: metrics, episodes, and the weights of its policy."""
    names = ["metrics.jsonl", "episodes.jsonl", *(p.relative_to(folder) for p in folder.glob("policy/*.safetensors"))]
    assert len(names) > 2
    return {str(name): (folder / name).read_bytes() for name in names}


def judged(orders, *, text=False, shards=4, **more):
    """A reward section with the judge, whose scores depend on what is scored together."""
    model = {"model_type": f"{judge.__name__}:make", "params": {"folder": str(orders), "text": text}}
    given = {"reward_mode": "terminal"} if text else {"reward_mode": "per_step"}
    return {
        "use_reward_model": True, "combine_mode": "add", "shaping": "raw", "max_failure_rate": 1.0,
        "scoring_shards": shards, **given, "model": {**model, **({"modality": "text"} if text else {})}, **more,
    }  # fmt: skip


def ordered(folder, name, count):
    """The folder of orders, with `count` new ones: `kill` or `stop`."""
    orders = folder / "orders"
    orders.mkdir(exist_ok=True)
    for k in range(count):
        (orders / f"{name}{k}").touch()
    return orders
