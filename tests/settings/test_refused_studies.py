"""Studies whose keys do not fit together, by the key that the refusal names."""

from guerdon.config.loading import validate
from guerdon.settings.reward_models import OwnModelSettings
from guerdon.settings.search import SearchSettings
from guerdon.settings.serve import ServeSettings
from guerdon.settings.study import Study
from tables import cases, refuses

IMAGE = {"model_type": "resnet", "checkpoint_path": "x"}
LEARNS = {**IMAGE, "update": "after", "replay_path": "data"}
PRM = {"model_type": "text", "checkpoint_path": "x"}
V1 = "http://a/v1/rewards"
ARMS = {"a": {"label": "A"}, "b": {"label": "B"}}
TEXT = {"policy": {"type": "text", "tiny": {}}, "data": {}}
STATES = {"policy": {"type": "mlp"}}
SAC = {"algorithm": {"type": "sac"}}
GOALS = {"goal_relabelling": "future", "keep_info": ["mass"], "demonstrations": "data"}


def paid_by(model, **given):
    """The section `reward` with one source, `rm`."""
    return {"reward": {"use_reward_model": True, "sources": {"rm": {"model": model, **given}}}}


def remote(kind, **given):
    return paid_by({"model_type": kind, **given.pop("model", {})}, **given)


@cases(
    ("given", "key"),
    [
        (paid_by(IMAGE, use_rel_reward=True), "reward.sources.rm.use_rel_reward"),
        (
            paid_by(IMAGE, use_rel_reward=True, reward_mode="per_step", binary_reward=True),
            "reward.sources.rm.use_rel_reward",
        ),
        (paid_by(IMAGE, success_threshold=0.5, reward_threshold=0.5), "reward.sources.rm.success_threshold"),
        (paid_by(IMAGE, binary_reward=True, shaping="raw"), "reward.sources.rm.shaping"),
        (paid_by({**IMAGE, "update": "after"}), "reward.sources.rm.model.update"),
        ({"reward": {"use_reward_model": True, "shaping": "raw"}}, "reward.use_reward_model"),
        ({"reward": 3}, "reward"),
        (paid_by({"model_type": "qwen_vl", "vlm": 3}), "reward.sources.rm.model.vlm"),
        (
            paid_by({"model_type": "robometer", "vlm": {"path": "x", "backend": "vllm"}}),
            "reward.sources.rm.model.vlm.backend",
        ),
        (paid_by({"model_type": "ladder:Rung", "device": "cpu"}), "reward.sources.rm.model.device"),
        (
            remote("remote", model={"endpoint": V1, "remote": {"timeout": 3}}),
            "reward.sources.rm.model.endpoint",
        ),
        (
            remote("remote", model={"fallback": "native"}, on_failure="raise"),
            "reward.sources.rm.model.remote.fallback",
        ),
        ({**TEXT, **remote("remote_text", model={"endpoint": "http://a/score"})}, "reward.sources.rm.model"),
        (
            {**TEXT, **remote("remote_text", model={"endpoint": V1, "fallback": "native"})},
            "reward.sources.rm.model.remote.fallback",
        ),
    ],
    ids=str,
)
def test_keys_of_a_reward_source_that_contradict_each_other(given, key):
    with refuses(key):
        validate(Study, given, origin="s")


@cases(
    ("given", "key"),
    [
        ({**SAC, "engine": "ray", "cluster": {"learners": 2}}, "cluster.learners"),
        ({**SAC, **paid_by(LEARNS, reward_mode="episode")}, "reward.sources.rm.reward_mode"),
        (
            {**SAC, "reward": {**paid_by(IMAGE, adaptive_weight={"share": 0.3})["reward"], "combine_mode": "add"}},
            "reward.sources.rm.adaptive_weight",
        ),
        ({"algorithm": {"type": "sac", **GOALS}}, "algorithm.keep_info"),
    ],
    ids=str,
)
def test_what_an_algorithm_that_learns_from_a_replay_does_not_go_with(given, key):
    with refuses(key):
        validate(Study, given, origin="s")


@cases(
    ("given", "key"),
    [
        ({**STATES, "runner": 3}, "runner"),
        ({"compare": {"arms": ARMS, "baseline": "a", "seeds": [1, 1]}}, "compare.seeds"),
        (
            {"compare": {"arms": ARMS, "baseline": "a", "seeds": [1], "tasks": ["x", "x"]}},
            "compare.tasks",
        ),
        (
            {"engine": "ray", "cluster": {"reward_workers": 3}, **paid_by(IMAGE), "reward_model": None},
            "cluster.reward_workers",
        ),
        ({"engine": "ray", "cluster": {"strategy": "pack", "collector_cpus": 0}}, "cluster.strategy"),
        (
            {"env": {"type": "libero", "num_envs": 12, "task_ids": [0, 1, 2]}, "runner": {"rollout_shards": 2}},
            "runner.rollout_shards",
        ),
        (
            {
                "env": {"type": "gymnasium", "task": "x:y-v0", "num_envs": 4},
                "algorithm": {"adv_estimator": "grpo", "group_size": 4},
            },
            "env.max_episode_steps",
        ),
        (
            {**TEXT, "data": {"train_batch_size": 6}, "runner": {"rollout_shards": 4}},
            "data.train_batch_size",
        ),
        (
            {
                **TEXT,
                "reward": {
                    "use_reward_model": True,
                    "overlap_steps": 2,
                    "sources": {"p": {"model": {"model_type": "prime"}}},
                },
            },
            "reward.overlap_steps",
        ),
        (
            {
                **TEXT,
                "algorithm": {"adv_estimator": "gae"},
                **paid_by({"model_type": "prime", "prime_model": {"warm_up": {"rollouts": 2, "policy_learns": True}}}),
            },
            "reward.sources.rm.model.warm_up.policy_learns",
        ),
        (
            {
                **TEXT,
                "data": {"type": "prompts", "path": "p"},
                "agent": {"tools": ["calculator"]},
                **paid_by({"model_type": "exact"}),
            },
            "reward.sources.rm",
        ),
        ({"collect": {"save_dir": "d", "mixture": [{"type": "checkpoint"}]}}, "collect.mixture.0.checkpoint"),
        (
            {
                "env": {
                    "type": "gymnasium",
                    "task": "Pendulum-v1",
                    "autoreset_mode": "next_step",
                    "end_on_success": True,
                }
            },
            "env.end_on_success",
        ),
        (
            {
                "policy": {
                    "type": "vla",
                    "vla_path": "x",
                    "decoding": {"family": "flow", "noise_method": "flow_noise", "noise_std_range": [0.2, 0.1]},
                }
            },
            "policy.decoding.noise_std_range",
        ),
        (
            {"train": {"rm": {"type": "resnet", "save_dir": "s", "data_path": ["a", "b"], "outcomes": ["o"]}}},
            "train.rm.outcomes",
        ),
        (
            {**TEXT, "evaluate": {"aggregation": "last", "generated": {"families": []}, "models": "x"}},
            "evaluate.models",
        ),
        (
            {**TEXT, "label": {"labeler": "judge", "judge": {"api": "ladder:Rung", "params": {"colour": 3}}}},
            "label.judge.params.colour",
        ),
        ({"evaluate": {"repair": {"elites": 9, "population": 8}}}, "evaluate.repair.elites"),
        ({**TEXT, "evaluate": {"aggregation": "last", "best_of_n": {}, "columns": {"id": "a"}}}, "evaluate.columns"),
        (
            {**TEXT, "search": {"model": PRM, "aggregation": "last", "method": "beam", "n": 6, "beam_width": 4}},
            "search.n",
        ),
    ],
    ids=str,
)
def test_sections_that_do_not_fit_together(given, key):
    with refuses(key):
        validate(Study, given, origin="s")


@cases(
    ("given", "key"),
    [
        ({}, "models"),
        ({"models": {"m": {}}}, "models.m.backend"),
        ({"models": {"m": {"update_dir": "u"}}}, "models.m.backend"),
    ],
)
def test_a_server_without_models_is_refused(given, key):
    with refuses(key):
        validate(ServeSettings, given, origin="s")


def test_a_search_refuses_a_model_of_ones_own_that_looks_at_pictures():
    pictures = OwnModelSettings(model_type="ladder:Rung", modality="image")
    with refuses("model"):
        SearchSettings(model=pictures, aggregation="last")
