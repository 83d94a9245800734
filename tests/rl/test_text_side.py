"""Language models through the whole loop: every estimator with every reward, cut-off runs, failures, learning."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from guerdon.errors import ConfigError, NonFiniteError, TooManyFailuresError
from guerdon.policies.language.text_files import load_policy, save_policy
from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings
from guerdon.tasks.reasoning import family_of
from tables import first, refuses, sample
from text_rl import (
    LETTERS,
    LORA,
    SHAPE,
    Scripted,
    half_solved,
    interrupted,
    letter_study,
    lines,
    prime,
    result,
    start,
    sum_study,
)

torch.set_num_threads(1)
ESTIMATORS = ("rloo", "grpo", "dr_grpo", "reinforce", "reinforce_pp", "remax", "gae")
REWARDS = ("none", "prime", "exact", "value", "normal")
CALLS = [(estimator, kind) for estimator in ESTIMATORS for kind in REWARDS]
USUAL = [(estimator, REWARDS[k % len(REWARDS)]) for k, estimator in enumerate(ESTIMATORS)]  # each of both occurs


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    """A sequence classifier with random weights that knows the letters."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    folder = tmp_path_factory.mktemp("judge")
    tokenizer = build_tokenizer(TinyModelSettings(**SHAPE, alphabet=LETTERS))
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        num_labels=1, pad_token_id=tokenizer.pad_token_id, initializer_range=0.5, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def study_with(kind, folder, judge, **given):
    """A study whose second reward is of this kind."""
    if kind == "exact":
        return sum_study(folder, reward_model={"rm_type": "exact"}, **given)
    if kind == "prime":
        return letter_study(folder, reward_model=prime(prime_granularity="token"), **given)
    if kind == "none":
        return letter_study(folder, **given)
    return letter_study(folder, reward_model={"rm_type": kind, "path": judge, "micro_batch_size": 5}, **given)


# Everything runs.


@pytest.mark.parametrize(("estimator", "kind"), sample(CALLS, *USUAL, several=True))
def test_every_estimator_with_every_reward(estimator, kind, tmp_path, judge):
    written = 4 * (4 + (estimator == "remax"))
    study = study_with(
        kind, tmp_path, judge, algorithm={"adv_estimator": estimator},
        runner={"total_steps": 3 * written, "eval_every": 1000, "checkpoint_every": 1000},
    )  # fmt: skip
    loop = start(study)
    if kind == "exact":
        half_solved(loop)
    before = loop.learner.policy.tensors()
    heads = loop.learner.policy.value_head
    loop.run()
    after = loop.learner.policy.tensors()
    assert any(not torch.equal(v, after[k]) for k, v in before.items())
    assert all(torch.isfinite(v).all() for v in after.values())
    rows = [row for row in lines(study) if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [written, 2 * written, 3 * written]
    assert (heads is not None) == (estimator == "gae")
    assert (rows[0].get("value_loss") is not None) == (estimator == "gae")
    if heads is not None:
        assert heads.out_features == (1 if kind == "none" else 2)
    assert all(row["skipped_updates"] == 0 and row["failures"] == 0 for row in rows)
    learned = {"none": (), "prime": ("prime",), "exact": ("exact",)}.get(kind, ("rm",))
    for row in rows:
        assert {f"return/{n}" for n in ("verifier", "combined", *learned)} <= set(row)
        assert {"response_length", "steps", "separator_rate", "entropy", "rollout_gap_max", "tokens_generated"} <= set(
            row
        )
    assert (run_folder(study) / "COMPLETE").is_file()
    assert (run_folder(study) / "reward_models").exists() == (kind == "prime")


PRIMES = {
    "before": {"prime_model": {"update": "before", "optim": {"lr": 1e-2, "epochs": 2}}},
    "frozen": {"prime_model": {"update": "none", "warm_up": {"rollouts": 16, "epochs": 2}, "optim": {"lr": 1e-2}}},
    "by_policy": {"prime_model": {"ref_type": "policy"}},
    "dpo": {"prime_model": {"loss_type": "dpo"}},
    "bon_acc": {"prime_model": {"loss_type": "bon_acc"}, "prime_granularity": "whole"},
    "bon_rm": {"prime_model": {"loss_type": "bon_rm"}, "prime_norm": "none"},
    "step": {"prime_granularity": "step", "rm_coef_schedule": "linear_warmup"},
    "packed": {"prime_model": {"use_remove_padding": True}},
    "clip": {"prime_norm": "clip", "prime_clip": 0.5},
}


@pytest.mark.parametrize("setup", sample(PRIMES, "before", "by_policy", "dpo", "clip"))
def test_every_form_of_prime_runs(setup, tmp_path):
    given = json.loads(json.dumps(PRIMES[setup]))
    build = sum_study if setup == "step" else letter_study
    study = build(
        tmp_path, reward_model=prime(**given), policy={"lora": LORA} if setup == "by_policy" else None,
        runner={"total_steps": 48, "eval_every": 1000, "checkpoint_every": 1000},
    )  # fmt: skip
    loop = start(study)
    phi = loop.sources["prime"].phi.tensors()
    loop.run()
    rows = [row for row in lines(study) if row["kind"] == "train"]
    moved = any(not torch.equal(v, phi[k]) for k, v in loop.sources["prime"].phi.tensors().items())
    assert moved
    assert (rows[-1].get("reward_model/prime/prm_loss") is None) == (setup == "frozen")
    assert {"reward_model/prime/dpo_acc", "reward_model/prime/dpo_acc_coverage"} <= set(rows[-1])
    if setup == "frozen":
        assert rows[0]["step"] == 32  # the warm-up's rollouts count
    if setup == "step":
        weights = [row["reward_weight/prime"] for row in rows]
        assert weights == pytest.approx([0, 5 / 3, 10 / 3])
        assert "reward_model/prime/step_auroc" in rows[0]


OPTIONS = {
    "kl in the loss": {"kl_coef": 0.1},
    "kl in the reward": {"kl_coef": 0.1, "kl_in": "reward"},
    "kl in the reward, remax": {"kl_coef": 0.1, "kl_in": "reward", "adv_estimator": "remax"},
    "kl in the reward, gae": {"kl_coef": 0.1, "kl_in": "reward", "adv_estimator": "gae"},
    "kl in the reward, grpo": {"kl_coef": 0.1, "kl_in": "reward", "adv_estimator": "grpo", "gamma": 0.9},
    "many steps": {"num_epochs": 2, "minibatch_size": 8, "micro_batch_size": 4, "clip_range_high": 0.3},
    "gspo": {"loss": "gspo", "loss_agg": "sequence", "num_epochs": 2},
    "cispo": {"loss": "cispo", "entropy_coef": 0.01, "lr_schedule": "cosine"},
    "constant": {"loss": "reinforce", "loss_agg": "constant", "normalize_advantages": False},
    "compat": {"rloo_form": "prime_compat", "adv_params": {"reward_model_gamma": 0.9}},
    "min form": {"credit": "min_form"},
}


@pytest.mark.parametrize("setup", sample(OPTIONS, "kl in the reward, remax", "many steps", "gspo", "min form"))
def test_every_option_of_the_algorithm_runs(setup, tmp_path):
    study = letter_study(
        tmp_path, reward_model=prime(), algorithm=OPTIONS[setup],
        runner={"total_steps": 64, "eval_every": 1000, "checkpoint_every": 1000},
    )  # fmt: skip
    loop = start(study)
    before = loop.learner.policy.tensors()
    loop.run()
    assert any(not torch.equal(v, before[k]) for k, v in loop.learner.policy.tensors().items())
    rows = [row for row in lines(study) if row["kind"] == "train"]
    if "kl" in setup:
        assert rows[0]["kl"] == pytest.approx(0, abs=1e-5)
        assert rows[-1]["kl"] != pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("update", first(["after", "before"], 1))
def test_the_policy_learns_from_warm_up_outcomes_where_it_is_told_to(update, tmp_path):
    total = {"runner": {"total_steps": 64, "eval_every": 1000, "checkpoint_every": 1000}, "data": {"n_samples": 4}}
    warm_up = {"rollouts": 32, "policy_learns": True}
    study = letter_study(tmp_path, reward_model=prime(prime_model={"update": update, "warm_up": warm_up}), **total)
    start(study).run()
    rows = [row for row in lines(study) if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [16, 32, 48, 64]  # every rollout is an update
    paid = [row["return/prime"] is not None for row in rows]
    assert paid == ([False, False, True, True] if update == "after" else [False, True, True, True])
    plain = letter_study(tmp_path, name="plain", algorithm={"adv_params": {"reward_model_gamma": None}}, **total)
    start(plain).run()
    same = [row for row in lines(plain) if row["kind"] == "train"]
    until = paid.index(True)  # until then the policy learns as from outcomes alone
    assert [row["success"] for row in rows[: until + 1]] == [row["success"] for row in same[: until + 1]]
    assert [row["tokens_generated"] for row in rows[: until + 1]] == [r["tokens_generated"] for r in same[: until + 1]]


def test_coefficients_change_the_advantage(tmp_path):
    found = []
    for coef in (0.5, 5.0):
        study = letter_study(
            tmp_path, name=f"run{coef}", reward_model=prime(rm_coef=coef, prime_model={"warm_up": {"rollouts": 16}}),
            runner={"total_steps": 32},
        )  # fmt: skip
        loop = start(study)
        loop.run()
        found.append(loop.learner.policy.tensors())
    assert any(not torch.equal(v, found[1][k]) for k, v in found[0].items())


# Cut off and gone on with.

SETUPS = {
    "outcome": (letter_study, {"algorithm": {"num_epochs": 2, "minibatch_size": 8}}),
    "prime": (
        letter_study,
        {
            "policy": {"lora": {**LORA, "dropout": 0.1}},
            "data": {"filter_accuracy": True, "accuracy_lower_bound": 0.1, "accuracy_upper_bound": 0.9,
                     "shortfall": "fill"},
            "reward_model": prime(
                mini=8, micro=4,
                prime_model={"replay_size": 12, "warm_up": {"rollouts": 16, "epochs": 2}, "optim": {"lr": 1e-2}},
            ),
        },
    ),
    "learning_warm_up": (
        letter_study,
        {"reward_model": prime(prime_model={"warm_up": {"rollouts": 40, "epochs": 2, "policy_learns": True}})},
    ),
    "gae": (letter_study, {"algorithm": {"adv_estimator": "gae", "kl_coef": 0.1, "kl_in": "reward"}}),
    "remax": (
        sum_study,
        {"algorithm": {"adv_estimator": "remax"}, "reward_model": prime(prime_model={"update": "before"})},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "setup", first([pytest.param(one, marks=[pytest.mark.slow] * (one == "prime")) for one in SETUPS], 2)
)
def test_a_run_that_was_cut_off_anywhere_ends_the_same(setup, tmp_path):
    build, given = SETUPS[setup]
    given = {**given, "runner": {"total_steps": 80}}
    whole = build(tmp_path, name="whole", **given)
    start(whole).run()
    expected = result(whole)
    assert any("model.safetensors" in name for name in expected)
    moments = [("update", 3), ("_record", 4), ("_evaluate", 1), ("_complete", 1)]
    for where, count in moments if setup == "prime" else moments[:1]:
        study = build(tmp_path, name=f"{where}{count}", **given)
        interrupted(study, where, count)
        start(study, resume=True).run()
        assert result(study) == expected, where


def test_evaluating_and_showing_change_nothing(tmp_path):
    found = []
    for name, every in (("seldom", 1000), ("often", 16)):
        study = letter_study(
            tmp_path, name=name, reward_model=prime(),
            runner={"total_steps": 48, "eval_every": every, "film_every": every},
        )  # fmt: skip
        loop = start(study)
        loop.run()
        found.append((loop.learner.policy.tensors(), [r for r in lines(study) if r["kind"] == "train"]))
    assert found[0][1] == found[1][1]
    assert all(torch.equal(v, found[1][0][k]) for k, v in found[0][0].items())


def test_a_second_stage_takes_the_policy_over(tmp_path):
    first = letter_study(tmp_path, name="first", runner={"total_steps": 32})
    one = start(first)
    one.run()
    after = one.learner.policy.tensors()
    again = letter_study(tmp_path, name="again", runner={"resume_dir": str(run_folder(first))})
    loop = start(again)
    assert loop.step == 0
    assert all(torch.equal(v, after[k]) for k, v in loop.learner.policy.tensors().items())
    assert loop.learner.optimizer.optimizer.state
    assert any("policy and optimiser" in note for note in loop.parts.notes)
    loop.close()
    other = letter_study(
        tmp_path, name="other", reward_model=prime(), algorithm={"adv_estimator": "gae"},
        runner={"resume_dir": str(run_folder(first))},
    )  # fmt: skip
    loop = start(other)
    assert not loop.learner.optimizer.optimizer.state
    assert torch.equal(loop.learner.policy.tensors()["model.norm.weight"], after["model.norm.weight"])
    loop.close()


@pytest.mark.parametrize(
    "lora", first([None, LORA, {**LORA, "target_modules": ["embed_tokens", "o_proj"]}], 2),
    ids=["all weights", "adapter", "adapter of the embedding"],
)  # fmt: skip
@pytest.mark.parametrize("kl_in", sample(["loss", "reward"], "reward"))
def test_the_kl_of_a_second_stage_is_measured_from_where_it_starts(tmp_path, lora, kl_in):
    given = {"policy": {"lora": lora}, "algorithm": {"kl_coef": 0.1, "kl_in": kl_in, "learning_rate": 3e-2}}
    first = letter_study(tmp_path, name="first", runner={"total_steps": 48}, **given)
    start(first).run()
    resume_dir = {"resume_dir": str(run_folder(first))}
    whole = letter_study(tmp_path, name="whole", runner={"total_steps": 64, **resume_dir}, **given)
    loop = start(whole)
    begun = {k: v for k, v in loop.learner.policy.tensors().items() if "value_head" not in k}
    kept = loop.learner.reference.tensors()
    assert [torch.equal(a, b) for a, b in zip(begun.values(), kept.values(), strict=True)] == [True] * len(begun)
    happened = loop.collector.collect(loop.learner.policy)
    with torch.no_grad():
        now, ref = (policy.log_probs(happened.inputs.batch) for policy in (loop.learner.policy, loop.learner.reference))
    torch.testing.assert_close(now, ref, atol=1e-5, rtol=0)
    loop.close()
    start(whole).run()
    cut = letter_study(tmp_path, name="cut", runner={"total_steps": 64, **resume_dir}, **given)
    interrupted(cut, "update", 3)
    resumed = start(cut, resume=True)
    assert all(torch.equal(v, kept[k]) for k, v in resumed.learner.reference.tensors().items())
    resumed.run()
    assert result(cut) == result(whole)


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_the_disk_has_no_room_for_does_not_start(tmp_path, monkeypatch, saved):
    study = letter_study(tmp_path, reward_model=prime(), runner={"save_reward_models": saved})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"policy: the model in float32 .*free some space") as refused:
        start(study)
    assert ("prime: its reference" in str(refused.value)) == saved
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    start(study).close()


# Failures.


def test_answers_that_cannot_be_checked_are_counted_and_teach_nothing(tmp_path):
    study = letter_study(tmp_path, data={"unparsable": "failure", "max_response_length": 2}, runner={"total_steps": 64})
    loop = Loop(study, run_folder(study))
    loop.failures.max_rate = 1.0
    loop.run()
    rows, failures = lines(study, "episodes"), lines(study, "failures")
    unknown = [row for row in rows if row["success"] is None]
    assert unknown
    assert all(row["return/verifier"] is None and row["return/combined"] is None for row in unknown)
    assert {row["reason"] for row in failures} == {"answer_unparsable"}
    last = [row for row in lines(study) if row["kind"] == "train"][-1]
    assert last["failures"] == len(failures) >= len(unknown)
    assert 0 < last["failure_rate"] < 1
    assert all(row["success"] is not None for row in loop.stats.finished)


def test_too_many_unchecked_answers_stop_the_run_with_a_checkpoint(tmp_path):
    study = letter_study(
        tmp_path, data={"unparsable": "failure", "max_response_length": 1}, runner={"total_steps": 4096}
    )
    with pytest.raises(TooManyFailuresError, match="answer_unparsable"):
        start(study).run()
    assert list((run_folder(study) / "checkpoints").glob("step_*"))


def broken_prime(loop, every=2):
    """From now on the reward model's numbers are not finite."""
    phi = loop.sources["prime"].phi
    original = phi.evaluate

    def evaluate(batch, **kwargs):
        scores = original(batch, **kwargs)
        scores.log_probs[::every] = float("nan")
        return scores

    phi.evaluate = evaluate


@pytest.mark.parametrize("on_failure", ["drop", "neutral", "raise"])
def test_a_reward_model_that_breaks(on_failure, tmp_path):
    study = letter_study(tmp_path, reward_model=prime(on_failure=on_failure), runner={"total_steps": 32})
    loop = start(study)
    loop.failures.max_rate = 1.0
    broken_prime(loop)
    before = loop.learner.policy.tensors()
    if on_failure == "raise":
        with pytest.raises(TooManyFailuresError, match="on_failure is raise"):
            loop.run()
        assert all(torch.equal(v, before[k]) for k, v in loop.learner.policy.tensors().items())
        return
    with pytest.raises(NonFiniteError, match="skipped updates in a row"):  # it learnt nothing up to the end
        loop.run()
    rows = lines(study, "episodes")
    broken = [row for row in rows if row["return/prime"] is None]
    assert len(broken) == len(rows) // 2
    assert all(isinstance(row["return/verifier"], float) for row in rows)
    assert {row["reason"] for row in lines(study, "failures")} == {"non_finite"}
    assert len(lines(study, "failures")) == len(broken)
    train = [row for row in lines(study) if row["kind"] == "train"]
    assert all(row["reward_model/prime/skipped_updates"] >= 1 for row in train)
    assert all(row["undefined_returns/prime"] == 8 for row in train)


def test_a_verifier_that_always_works_does_not_hide_a_reward_model_that_never_does(tmp_path):
    limits = {"max_failure_rate": 0.5, "failure_window": 32}
    study = letter_study(tmp_path, reward_model=prime(on_failure="neutral"), reward=limits)
    loop = start(study)
    broken_prime(loop, every=1)
    with pytest.raises(TooManyFailuresError, match=r"'prime': 100% of its last 16 measurements failed \(non_finite 16"):
        loop.run()
    train = [row for row in lines(study) if row["kind"] == "train"]
    assert [(row["failure_rate"], row["failure_rate/prime"], row["failure_rate/verifier"]) for row in train] == [
        (1, 1, 0)
    ]
    start(study, resume=True).run()
    assert (run_folder(study) / "COMPLETE").is_file()


def test_gradients_do_not_stay_through_the_next_rollout(tmp_path):
    loop = start(letter_study(tmp_path, reward_model=prime()))
    loop.run()
    learned = [*loop.learner.policy.parameters(), *loop.sources["prime"].phi.parameters()]
    assert learned
    assert all(p.grad is None for p in learned)


def test_every_part_of_a_batch_can_have_its_own_unit_as_the_ranks_of_the_original_have(tmp_path):
    frozen = {"update": "none", "ref_type": "policy"}
    section = {"prime_granularity": "token", "micro_batch_size": 8, "prime_model": frozen}
    both = {}
    for shards in (1, 2):
        study = letter_study(tmp_path, name=str(shards), reward_model={**section, "prime_norm_shards": shards})
        loop = start(study)
        answered = loop.collector.sampler.answer(loop.collector.prompts.validation[:2], 4)
        log_ratio = torch.linspace(0.5, 4.0, answered.mask.size).view(answered.mask.shape)
        old = (loop.learner.policy.log_probs(answered.inputs.batch).detach().cpu() - log_ratio).numpy()
        measured = loop.sources["prime"].measure(replace(answered, log_probs=old), learn=False)
        rewards = measured.values * answered.mask
        loop.close()
        returns = np.abs(np.cumsum(rewards[:, ::-1], axis=1))
        both[shards] = (rewards, returns[:4].max(), returns[4:].max())
    rewards, first, second = both[1]
    assert max(first, second) == pytest.approx(1, abs=1e-4)
    assert first < 0.7 * second  # later responses were given larger log-ratios
    assert both[2][1] == pytest.approx(1, abs=1e-4)
    assert both[2][2] == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(both[2][0][:4], rewards[:4] / first, rtol=1e-4)


def test_a_unit_of_its_own_does_not_go_with_greedy_baselines(tmp_path):
    section = prime(prime_granularity="token") | {"prime_norm_shards": 2}
    with refuses("reward.sources.prime.model.prime_norm_shards"):
        letter_study(tmp_path, reward_model=section, algorithm={"adv_estimator": "remax"})


def test_exact_rewards_need_steps_that_can_be_checked(tmp_path):
    with refuses("data.type"):
        letter_study(tmp_path, reward_model={"rm_type": "exact"})


def test_exact_rewards_are_the_truth_about_each_step(tmp_path):
    loop = start(sum_study(tmp_path, reward_model={"rm_type": "exact"}, data={"max_response_length": 20}))
    prompts = loop.collector.prompts.validation[:3]
    right = prompts[1].solution[:5]
    slip = right[:4] + str((int(right[4]) + 1) % 10)
    goes_on = family_of(prompts[1]).solve(prompts[1].question).follow(1, [slip])
    malformed = prompts[2].solution[:6].replace("=", "+") + prompts[2].solution[6:]
    texts = [prompts[0].solution, f"{slip};{goes_on};", malformed]
    loop.collector.sampler.engine = Scripted(loop.learner.policy.tokenizer, lambda p, s, d: texts[p])
    paid = loop.sources["exact"].score(loop.collector.sampler.answer(prompts, 1, greedy=True)).values
    # A slip costs its own line; nothing follows from a line that cannot be read.
    assert paid.tolist() == [[1] * 12 + [0], [0] * 6 + [1] * 6 + [0], [0] * 13]
    loop.close()


# Shared weights.


def test_lora_has_one_base_for_policy_reward_model_and_both_references(tmp_path):
    study = letter_study(
        tmp_path, policy={"lora": LORA}, reward_model=prime(), algorithm={"kl_coef": 0.1}, runner={"total_steps": 32}
    )
    loop = start(study)
    model = loop.sources["prime"]
    bases = {id(p.base) for p in (loop.learner.policy, model.phi, model.ref, loop.learner.reference)}
    assert len(bases) == 1
    frozen = {k: v.clone() for k, v in loop.learner.policy.base.model.state_dict().items() if ".lora_" not in k}
    loop.run()
    now = loop.learner.policy.base.model.state_dict()
    assert all(torch.equal(v, now[k]) for k, v in frozen.items())
    stored = run_folder(study)
    for part in (stored / "policy", stored / "reward_models" / "prime"):
        assert (part / "adapter_config.json").is_file()
        load_policy(TextPolicySettings(path=str(part), bf16=False), seed=0)


def test_full_training_shares_the_copy_of_the_start(tmp_path):
    loop = start(letter_study(tmp_path, reward_model=prime(), algorithm={"kl_coef": 0.1}))
    assert loop.learner.reference.base is loop.sources["prime"].ref.base
    assert loop.learner.reference.base is not loop.learner.policy.base
    loop.close()


# It learns.

EASY = {"train_batch_size": 8, "n_samples": 8, "max_response_length": 1}


@pytest.mark.parametrize("estimator", first(["rloo", "gae"], 1))
def test_what_pays_is_done_more_often(estimator, tmp_path):
    study = letter_study(
        tmp_path, data=EASY,
        algorithm={"adv_estimator": estimator, "learning_rate": 3e-2},
        runner={"total_steps": 64 * 30, "eval_every": 64 * 30, "checkpoint_every": 10**6},
    )  # fmt: skip
    start(study).run()
    rows = [row for row in lines(study) if row["kind"] == "train"]
    early, late = (np.mean([r["success"] for r in part]) for part in (rows[:1], rows[-3:]))
    assert early < 0.35  # before the first update
    assert late > 0.85
    assert lines(study)[-1]["success"] == 1.0


def test_a_process_reward_that_knows_the_answer_teaches_without_the_outcome(tmp_path):
    """phi starts as a policy that solves the task: its log-ratio alone is enough."""
    solved = letter_study(
        tmp_path, name="solved", data=EASY,
        runner={"total_steps": 64 * 30, "eval_every": 10**6, "checkpoint_every": 10**6},
    )  # fmt: skip
    start(solved).run()
    begin = save_policy(load_policy(solved.text_policy, seed=0), tmp_path / "begin")
    section = {
        "verifier_coef": 0, "prime_norm": "batch_norm",
        "prime_model": {"path": str(run_folder(solved) / "policy"), "ref_path": str(begin), "update": "none"},
    }  # fmt: skip
    study = letter_study(
        tmp_path, data=EASY, reward_model=section,
        runner={"total_steps": 64 * 20, "eval_every": 10**6, "checkpoint_every": 10**6},
    )  # fmt: skip
    start(study).run()
    rows = [row for row in lines(study) if row["kind"] == "train"]
    assert np.mean([row["success"] for row in rows[-3:]]) > 2 * np.mean([row["success"] for row in rows[:3]])
    assert rows[0]["reward_model/prime/dpo_acc"] > 0.9


# Videos.


def test_a_video_shows_tokens_rewards_and_the_true_steps(tmp_path):
    study = sum_study(tmp_path, reward_model=prime(prime_granularity="step"), runner={"total_steps": 16})
    start(study).run()
    video = json.loads(next((run_folder(study) / "films").glob("*.json")).read_text())
    assert video["step"] == 16
    assert len(video["responses"]) == 16
    for row in video["responses"]:
        assert len(row["rewards"]["prime"]) == len(row["tokens"])
        assert len(row["step_ends"]) == len(row["steps_true"])
