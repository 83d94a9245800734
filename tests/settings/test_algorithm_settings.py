"""What the `algorithm` and `reward_model` sections of a language model accept, and what they refuse."""

import importlib
import pickle
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from guerdon.config.loading import to_plain, validate
from guerdon.plan.stages import stage
from guerdon.rewards.prime import GRAD_CLIP
from guerdon.rl.run import run
from guerdon.settings.algorithm import ControlAlgorithmSettings, TextAlgorithmSettings
from guerdon.settings.study import RobotStudy, Study, TextStudy
from guerdon.settings.text_policy import TextPolicySettings
from tables import cases, refuses

TEXT = {"policy": {"type": "text", "tiny": {}}, "data": {}}


def section_of(given, **more):
    """The `reward_model` section of a study."""
    return validate(Study, {**TEXT, "reward_model": given, **more}, origin="study.yaml").reward_model


def test_the_defaults_are_primes():
    section, algorithm = section_of({}), TextAlgorithmSettings()
    assert (section.rm_type, section.rm_coef, section.verifier_coef) == ("prime", 5, 5)
    assert (section.prime_granularity, section.prime_norm) == ("token", "batch_norm")
    assert (section.mini_batch_size, section.micro_batch_size) == (256, 64)
    model = section.prime_model
    assert (model.ref_type, model.update, model.beta_train, model.loss_type) == ("freeze", "after", 0.05, "ce")
    assert (model.optim.lr, model.optim.weight_decay, GRAD_CLIP) == (1e-6, 0.0, 10.0)
    assert (algorithm.adv_estimator, algorithm.rloo_form, algorithm.normalize_advantages) == ("rloo", "paper", False)
    assert algorithm.verifier_gamma == algorithm.reward_model_gamma == 1.0


@pytest.mark.parametrize(
    ("estimator", "values"),
    [
        ("rloo", (False, "ppo", "constant", "reward")), ("grpo", (False, "ppo", "sequence", "loss")),
        ("dr_grpo", (False, "ppo", "constant", "loss")), ("reinforce", (False, "reinforce", "constant", "reward")),
        ("reinforce_pp", (True, "ppo", "token", "reward")), ("remax", (False, "reinforce", "constant", "reward")),
        ("gae", (True, "ppo", "token", "reward")),
    ],
)  # fmt: skip
def test_a_name_has_the_defaults_of_its_paper_and_what_is_given_counts(estimator, values):
    def of(**given):
        found = TextAlgorithmSettings(adv_estimator=estimator, kl_coef=0.1, **given)
        assert validate(TextAlgorithmSettings, to_plain(found), origin="again") == found
        return found.normalize_advantages, found.loss, found.loss_agg, found.kl_in

    assert of() == values
    other = "loss" if values[3] == "reward" else "reward"
    assert of(kl_in=other) == (*values[:3], other)
    assert of(kl_type="k2")[3] == "loss"
    assert of(loss="gspo")[1] == "gspo"
    if estimator not in ("reinforce", "reinforce_pp", "dr_grpo"):
        assert of(normalize_advantages=not values[0])[0] is not values[0]
    if estimator != "dr_grpo":
        assert {of(loss_agg=agg)[2] for agg in ("token", "sequence", "constant")} == {"token", "sequence", "constant"}


def test_padding_is_removed_in_one_way():
    settings = TextPolicySettings(path="x", use_remove_padding=True)
    assert not settings.share_prompts
    assert validate(TextPolicySettings, to_plain(settings), origin="again") == settings
    assert TextPolicySettings(path="x").share_prompts
    with refuses("use_remove_padding"):
        TextPolicySettings(path="x", use_remove_padding=True, share_prompts=True)


def test_every_source_has_the_discount_it_was_given_or_the_common_one():
    algorithm = TextAlgorithmSettings(gamma=0.9, adv_params={"verifier_gamma": 0.5})
    assert (algorithm.verifier_gamma, algorithm.reward_model_gamma) == (0.5, 0.9)


@cases(
    ("given", "key"),
    [
        ({"gae_lambda": 0.9}, "gae_lambda"),
        ({"adv_estimator": "grpo", "rloo_form": "paper"}, "rloo_form"),
        ({"kl_type": "k2"}, "kl_type"),
        ({"kl_coef": 0.1, "kl_in": "reward", "kl_type": "k2"}, "kl_type"),
        ({"kl_coef": 0.1, "kl_type": "k1"}, "kl_type"),
        ({"kl_coef": 0.1, "kl_in": "loss", "kl_type": "k1"}, "kl_type"),
        ({"adv_estimator": "reinforce_pp", "normalize_advantages": False}, "adv_estimator"),
        ({"adv_estimator": "reinforce", "normalize_advantages": True}, "adv_estimator"),
        ({"adv_estimator": "dr_grpo", "normalize_advantages": True}, "adv_estimator"),
        ({"adv_estimator": "dr_grpo", "loss_agg": "token"}, "adv_estimator"),
        ({"adv_estimator": "reinforce", "num_epochs": 2, "clip_range": 0.1}, "clip_range"),
        ({"clip_range": 0.1}, "clip_range"),
        ({"loss": "gspo", "clip_range_high": 0.1}, "clip_range_high"),
        ({"loss": "reinforce", "num_epochs": 2, "clip_range": 0.1}, "clip_range"),
        ({"loss": "reinforce", "num_epochs": 2, "clip_ratio_c": 3}, "clip_ratio_c"),
        ({"loss": "cispo", "num_epochs": 2, "clip_ratio_c": 3}, "clip_ratio_c"),
        ({"clip_ratio_c": 3}, "clip_ratio_c"),
        ({"num_epochs": 2, "clip_ratio_c": 1}, "clip_ratio_c"),
        ({"minibatch_size": 6, "micro_batch_size": 4}, "minibatch_size"),
        ({"adv_estimater": "rloo"}, "adv_estimater"),
        ({"adv_params": {"gama": 1}}, "gama"),
    ],
    ids=str,
)
def test_an_algorithm_that_would_not_do_what_it_says_is_refused(given, key):
    with refuses(key):
        TextAlgorithmSettings(**given)


@cases(
    "given",
    [
        {"clip_range": 0.1, "num_epochs": 2},
        {"clip_range": 0.1, "minibatch_size": 8},
        {"kl_coef": 0.1, "kl_in": "reward"},
        {"kl_coef": 0.1, "kl_type": "k2"},
        {"gamma": 0.9, "adv_params": {"verifier_gamma": 1}},
        {"gamma": 0.9, "kl_coef": 0.1, "kl_in": "reward",
         "adv_params": {"verifier_gamma": 1, "reward_model_gamma": 1}},
        {"adv_estimator": "gae", "gae_lambda": 0.95, "value_coef": 1.0},
        {"credit": "min_form"},
    ],
    ids=str,
)  # fmt: skip
def test_what_has_an_effect_is_accepted(given):
    TextAlgorithmSettings(**given)


@cases(
    ("given", "key"),
    [
        (
            {"mini_batch_size": 100, "micro_batch_size": 64},
            "reward_model.mini_batch_size",
        ),
        ({"path": "x"}, "reward_model.path"),
        ({"rm_type": "value"}, "reward_model.path"),
        ({"rm_type": "normal", "path": "x", "prime_norm": "none"}, "reward_model.prime_norm"),
        ({"prime_norm": "none", "prime_norm_shards": 2}, "reward_model.prime_norm_shards"),
        (
            {"rm_type": "value", "path": "x", "prime_granularity": "token"},
            "reward_model.prime_granularity",
        ),
        ({"rm_type": "exact", "prime_granularity": "whole"}, "reward_model.prime_granularity"),
        ({"rm_type": "exact", "on_failure": "raise"}, "reward_model.on_failure"),
        ({"rm_type": "exact", "micro_batch_size": 4}, "reward_model.micro_batch_size"),
        ({"prime_model": {"update": "none"}, "mini_batch_size": 64}, "reward_model.mini_batch_size"),
        ({"rm_coef": 0}, "reward_model.rm_coef"),
        ({"prime_model": {"ref_type": "policy", "ref_path": "x"}}, "reward_model.prime_model.ref_path"),
        (
            {"prime_model": {"update": "none", "beta_train": 0.1}},
            "reward_model.prime_model.beta_train",
        ),
        ({"prime_model": {"update": "none", "optim": {"lr": 1e-3}}}, "reward_model.prime_model.optim"),
        (
            {"prime_model": {"update": "none", "replay_size": 5, "warm_up": {"rollouts": 5}}},
            "reward_model.prime_model.replay_size",
        ),
        (
            {"prime_model": {"update": "none", "optim": {"epochs": 2}, "warm_up": {"rollouts": 5}}},
            "reward_model.prime_model.optim.epochs",
        ),
        ({"prime_model": {"replay_ratio": 0.5}}, "reward_model.prime_model.replay_ratio"),
        ({"prime_model": {"replay_size": 8, "loss_type": "dpo"}}, "reward_model.prime_model.replay_size"),
        (
            {"prime_model": {"warm_up": {"epochs": 2}}},
            "reward_model.prime_model.warm_up.epochs",
        ),
        (
            {"prime_model": {"warm_up": {"policy_learns": True}}},
            "reward_model.prime_model.warm_up.policy_learns",
        ),
        ({"prime_model": {"ref_type": "policy", "bf16": False}}, "reward_model.prime_model.bf16"),
        ({"prime_clip": 2.0}, "reward_model.prime_clip"),
        ({"prime_norm": "clip", "prime_norm_shards": 2}, "reward_model.prime_norm_shards"),
        ({"prime_clip_above": 0.0}, "reward_model.prime_clip_above"),
        ({"prime_norm": "clip", "prime_clip": 0}, "reward_model.prime_clip"),
        ({"rm_type": "exact", "prime_clip": 1}, "reward_model.prime_clip"),
        ({"prime_model": {"lr": 1e-3}}, "reward_model.prime_model.lr"),
    ],
    ids=str,
)
def test_a_reward_model_that_would_not_do_what_it_says_is_refused(given, key):
    with refuses(key):
        section_of(given)


@pytest.mark.parametrize(
    "given",
    [
        {"rm_type": "value", "path": "x", "micro_batch_size": 7, "on_failure": "raise"},
        {"rm_type": "exact", "rm_coef": 1, "verifier_coef": 0, "rm_coef_schedule": "linear_decay"},
        {"prime_model": {"update": "none", "warm_up": {"rollouts": 64, "epochs": 3}, "beta_train": 0.5}},
        {"prime_model": {"update": "before", "loss_type": "dpo", "optim": {"epochs": 2}}},
        {"prime_model": {"update": "none", "path": "trained", "ref_path": "start"}},
        {"prime_model": {"replay_size": 64, "replay_ratio": 0.3}},
    ],
    ids=str,
)
def test_what_a_reward_model_can_do_is_accepted(given):
    section_of(given, data={"n_samples": 64})


ALIASES = {
    "prime": (
        {"mini_batch_size": 64, "on_failure": "neutral", "rm_coef_schedule": "linear_warmup"},
        {"prime": {"model": {"model_type": "prime", "mini_batch_size": 64}, "on_failure": "neutral",
                   "reward_weight": 5.0, "reward_weight_schedule": "linear_warmup"}},
    ),
    "exact": (
        {"rm_type": "exact", "rm_coef": 2},
        {"exact": {"model": {"model_type": "exact"}, "reward_weight": 2.0}},
    ),
    "normal": (
        {"rm_type": "normal", "path": "x", "micro_batch_size": 7},
        {"rm": {"model": {"model_type": "normal", "checkpoint_path": "x", "micro_batch_size": 7},
                "reward_weight": 5.0, "shaping": "raw"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", ALIASES)
def test_the_section_stands_for_a_source(form):
    section, sources = ALIASES[form]
    gamma = {"algorithm": {"adv_params": {"reward_model_gamma": 0.9}}}
    short = validate(Study, {**TEXT, "reward_model": {**section, "verifier_coef": 3}, **gamma}, origin="s")
    (source,) = sources.values()
    reward = {"use_reward_model": True, "combine_mode": "weighted", "env_reward_weight": 3}
    long = validate(Study, {**TEXT, "reward": {**reward, "sources": {form: {**source, "gamma": 0.9}}}}, origin="s")
    assert list(short.text_sources) == list(sources)
    assert list(short.text_sources.values()) == list(long.text_sources.values())
    assert short.text_reward.env_weight() == long.text_reward.env_weight() == 3
    assert Study.model_validate(to_plain(short)) == short
    assert Study.model_validate(to_plain(long)) == long


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"model": {"model_type": "prime"}, "shaping": "raw"}, "reward.sources.a.shaping"),
        ({"model": {"model_type": "exact"}, "on_failure": "drop"}, "reward.sources.a.on_failure"),
        ({"model": {"model_type": "exact", "prime_norm": "none"}}, "reward.sources.a.model.prime_norm"),
        (
            {"model": {"model_type": "prime", "mini_batch_size": 6, "micro_batch_size": 4}},
            "reward.sources.a.model.mini_batch_size",
        ),
        (
            {"model": {"model_type": "value", "checkpoint_path": "x"}, "reward_mode": "per_token", "gama": 1},
            "reward.sources.a.gama",
        ),
    ],
    ids=str,
)
def test_a_source_that_only_a_run_has_refuses_what_it_has_no_use_for(source, key):
    with refuses(key):
        validate(Study, {**TEXT, "reward": {"use_reward_model": True, "sources": {"a": source}}}, origin="s")


OWN_GAMMAS = {"gamma": 0.9, "adv_params": {"verifier_gamma": 1, "reward_model_gamma": 1}}


def test_gamma_is_the_discount_of_what_has_none_of_its_own():
    sources = {"a": {"model": {"model_type": "value", "checkpoint_path": "x"}, "reward_mode": "per_token"}}
    reward = {"use_reward_model": True, "sources": sources}
    given = {"algorithm": OWN_GAMMAS, "reward_model": {"rm_type": "exact"}, "reward": reward}
    assert Study.model_validate({**TEXT, **given}).algorithm.gamma == 0.9
    sources["a"]["gamma"] = 0.5
    with refuses("algorithm.gamma"):
        Study.model_validate({**TEXT, **given})


def test_only_a_run_of_a_language_model_needs_prompts(tmp_path):
    train = {"prm": {"type": "stepwise", "save_dir": "prm"}}
    study = Study.model_validate({"policy": TEXT["policy"], "train": train, "work_dir": str(tmp_path / "work")})
    assert study.data is None
    for command in ("train", "evaluate"):
        assert stage(command).estimate(study)
    with refuses("data"):
        stage("run").estimate(study)
    with refuses("data"):
        run(study)
    assert not (tmp_path / "work").exists()


@cases(
    ("given", "key"),
    [
        ({"algorithm": {"credit": "min_form"}}, "algorithm.credit"),
        ({"algorithm": {"credit": "min_form"}, "reward_model": {"rm_type": "exact"}}, "algorithm.credit"),
        ({"algorithm": {"rloo_form": "prime_compat"}}, "algorithm.rloo_form"),
        ({"algorithm": {"adv_params": {"reward_model_gamma": 0.9}}}, "algorithm.adv_params.reward_model_gamma"),
        (
            {"reward_model": {"verifier_coef": 0, "rm_coef": 2}, "algorithm": {"normalize_advantages": True}},
            "reward_model.rm_coef",
        ),
        ({"algorithm": OWN_GAMMAS, "reward_model": {"rm_type": "exact"}}, "algorithm.gamma"),
        ({"algorithm": {"gamma": 0.9, "adv_params": {"verifier_gamma": 1}}}, "algorithm.gamma"),
        ({"runner": {"film_frames": 3}}, "runner.film_frames"),
        ({"reward": {"combine_mode": "add"}}, "combine_mode"),
        ({"env": {"task": "door-close"}}, "env"),
        ({"data": {"n_samples": 1, "filter_accuracy": False}}, "data.n_samples"),
        ({"policy": {"type": "mlp"}}, "data"),
    ],
)
def test_a_study_of_a_language_model_means_what_it_says(given, key):
    with refuses(key):
        Study.model_validate({**TEXT, **given})


def test_measurements_may_fail_more_often_where_the_study_says_so():
    assert Study.model_validate({**TEXT, "reward": {"max_failure_rate": 0.5}}).reward.max_failure_rate == 0.5
    assert Study.model_validate({"reward": {"max_failure_rate": 0.5}}).reward.max_failure_rate == 0.5  # of simulators


def test_the_algorithm_follows_the_policy():
    assert Study.model_validate(TEXT).algorithm.type == "text"
    assert Study().algorithm.type == "control"
    with refuses("algorithm.type"):
        Study.model_validate({**TEXT, "algorithm": {"type": "control"}})


def test_what_was_measured_says_what_a_name_of_an_estimator_would_decide(monkeypatch):
    """Tables in the documentation were measured with these values: a new default must not change what they are of."""
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    shipped = [
        yaml.safe_load((root / "configs" / name).read_text()) for name in ("prime_math.yaml", "prm_rewards.yaml")
    ]
    for given in (*(study["algorithm"] for study in shipped), importlib.import_module("text_sides").ALGORITHM):
        assert (given["adv_estimator"], given["normalize_advantages"], given["loss_agg"]) == ("rloo", True, "token")
        assert TextAlgorithmSettings.model_validate(given).loss == "ppo"


@cases(
    ("given", "key"),
    [
        ({"adv_estimator": "remax"}, "adv_estimator"),
        ({"adv_estimator": "rloo", "rollout_steps": 8}, "rollout_steps"),
        ({"adv_estimator": "dr_grpo", "grpo_std": True}, "grpo_std"),
        ({"adv_estimator": "grpo", "value_coef": 1.0}, "value_coef"),
        ({"adv_estimator": "reinforce", "group_size": 4}, "group_size"),
        ({"adv_estimator": "reinforce_pp", "normalize_advantages": True}, "normalize_advantages"),
        ({"adv_estimator": "reinforce", "gae_lambda": 0.9}, "gae_lambda"),
        ({"grpo_std": False}, "grpo_std"),
        ({"estimator_params": {"a": 1}}, "estimator_params"),
        ({"adv_estimator": "reinfroce"}, "adv_estimator"),
    ],
    ids=str,
)
def test_an_algorithm_of_a_robot_that_would_not_do_what_it_says_is_refused(given, key):
    with refuses(key):
        ControlAlgorithmSettings(**given)


def test_what_an_estimator_needs_is_the_same_for_robots_and_language_models():
    for name in ("gae", "rloo", "grpo", "dr_grpo", "reinforce", "reinforce_pp"):
        robot, language = ControlAlgorithmSettings(adv_estimator=name), TextAlgorithmSettings(adv_estimator=name)
        assert robot.needs == language.needs
        assert robot.reward_credit == ("episode" if robot.needs.groups else "dense")
        assert robot.whiten_batch == (name == "reinforce_pp")
        assert robot.normalize_minibatches == robot.needs.critic == (name == "gae")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, RobotStudy), ({"policy": {"type": "vla", "tiny": {}}}, RobotStudy), (TEXT, TextStudy),
        ({"train": {"prm": {"type": "stepwise", "save_dir": "x"}}}, TextStudy),
        ({"train": {"rm": {"type": "resnet", "save_dir": "x", "data_path": "y"}}}, RobotStudy),
        ({"policy": TextPolicySettings(path="x")}, TextStudy),
    ],
    ids=str,
)  # fmt: skip
def test_a_study_is_of_the_kind_that_its_sections_say(given, kind):
    made = (Study(**given), Study.model_validate(given), validate(Study, given, origin="s"), kind(**given))
    assert [type(study) for study in made] == [kind] * 4
    assert all(study == made[0] for study in made)
    for again in (Study.model_validate(made[0]), pickle.loads(pickle.dumps(made[0])), made[0].model_copy()):
        assert type(again) is kind
        assert again == made[0]
    if isinstance(given.get("policy"), dict):
        assert Study.model_validate(to_plain(made[0])) == made[0]
    other = TextStudy if kind is RobotStudy else RobotStudy
    with pytest.raises(ValidationError):
        other.model_validate({"evaluate": made[0].evaluate, "algorithm": made[0].algorithm, **given})
