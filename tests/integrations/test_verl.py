"""Inside verl 0.9.1: rewards at tokens in `rm_scores`, failures that raise, an estimator under a name."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from text_episodes import FAILED, QUESTIONS, RESPONSES, Scripted, expected

from guerdon.errors import ConfigError, RewardFailure
from guerdon.integrations.text import TextScorer, step_source
from guerdon.policies.language.text_files import load_policy
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings
from tables import refuses

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install verl")
pytest.importorskip("verl.experimental.reward_loop", reason="verl's reward loop needs Ray: pip install verl")
from tensordict import TensorDict  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.experimental.reward_loop import reward_manager as reward_loop  # noqa: E402

from guerdon.integrations.verl import (  # noqa: E402
    TokenRewardManager,
    prime_source,
    register_estimator,
    register_sources,
    score_function,
)

ROOT = Path(__file__).parents[2]
TOKENIZER = byte_tokenizer()
_, VALUES = expected()


class Manager(TokenRewardManager):
    source = step_source("prm", Scripted())


def batch(rows, width=80):
    """Prompts padded on the left, responses on the right, as verl has them."""
    prompts = torch.full((len(rows), 40), TOKENIZER.pad_token_id)
    responses = torch.full((len(rows), width), TOKENIZER.pad_token_id)
    mask = torch.zeros(len(rows), 40 + width, dtype=torch.long)
    for k, n in enumerate(rows):
        asked = TOKENIZER(QUESTIONS[n])["input_ids"]
        said = [*TOKENIZER(RESPONSES[n])["input_ids"], TOKENIZER.eos_token_id]
        prompts[k, 40 - len(asked) :] = torch.tensor(asked)
        responses[k, : len(said)] = torch.tensor(said)
        mask[k, 40 - len(asked) : 40 + len(said)] = 1
    raw = np.empty(len(rows), dtype=object)
    raw[:] = [[{"role": "user", "content": QUESTIONS[n]}] for n in rows]
    tensors = TensorDict({"prompts": prompts, "responses": responses, "attention_mask": mask}, batch_size=len(rows))
    return DataProto(batch=tensors, non_tensor_batch={"raw_prompt": raw})


def test_rewards_stand_at_the_ends_of_steps():
    manager = Manager({}, TOKENIZER, None)
    rows = [0, 1, 2]
    data = batch(rows)
    sums = [asyncio.run(manager.run_single(data[n : n + 1]))["reward_score"] for n in range(3)]
    assert sums == pytest.approx([sum(VALUES[n]) for n in rows])
    scores = Manager.assemble_rm_scores(data, sums)
    assert scores.shape == data.batch["responses"].shape
    for k, n in enumerate(rows):
        assert scores[k][scores[k] != 0].tolist() == [v for v in VALUES[n] if v]
    last = data.batch["attention_mask"][:, 40:].sum(dim=1) - 1
    assert (scores[range(3), last] != 0).tolist() == [bool(VALUES[n][-1]) for n in rows]


def test_a_failure_raises_and_names_its_row():
    Manager({}, TOKENIZER, None)
    failed = next(iter(FAILED))
    with pytest.raises(RewardFailure, match=FAILED[failed]) as caught:
        Manager.assemble_rm_scores(batch([0, failed]), [0.0, 0.0])
    assert caught.value.reasons.keys() == {1}
    assert np.isnan(caught.value.result[1]).any()
    assert np.isfinite(caught.value.result[0]).all()


def test_a_score_function_needs_a_question():
    compute_score = score_function(TextScorer(Scripted(), aggregation="min"))
    with pytest.raises(ConfigError, match=r"extra_info\.question"):
        compute_score("gsm8k", "8", "8", {})


def test_an_estimator_under_a_name():
    register_estimator("guerdon_rloo_of_a_test", {"adv_estimator": "rloo"})
    compute = core_algos.get_adv_estimator_fn("guerdon_rloo_of_a_test")
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.5, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]])
    advantages, returns = compute(
        token_level_rewards=rewards, response_mask=mask, config=None, index=np.array(["a", "a", "b", "b"], dtype=object)
    )
    expect = [[0.0 + 1.0, 1.0, 0.0], [-1.5, -1.0, -0.5], [0.25 - 0.25, -0.25, 0.0], [0.0, 0.25, 0.0]]
    torch.testing.assert_close(advantages, torch.tensor(expect))
    torch.testing.assert_close(returns, advantages)
    with refuses("adv_estimator"):
        register_estimator("x", {"adv_estimator": "gae"})


@pytest.fixture
def estimate():
    """verl's own function that computes the advantages of a batch; afterwards its estimators are its own again."""
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="verl's trainer cannot be imported here")
    own = core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"]
    yield lambda data: trainer.compute_advantage(data, adv_estimator="gdpo", config={}).batch
    core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"] = own


def scored(rows, outcomes, groups):
    """A batch as it is after verl has computed its rewards."""
    data = batch(rows)
    width = data.batch["prompts"].size(1)
    mask = data.batch["attention_mask"][:, width:]
    scores = torch.zeros(mask.shape)
    scores[range(len(rows)), mask.sum(dim=1) - 1] = torch.tensor(outcomes)
    data.batch["response_mask"] = mask
    data.batch["token_level_scores"] = data.batch["token_level_rewards"] = scores
    data.non_tensor_batch["uid"] = np.array(groups, dtype=object)
    return data


def test_several_sources_keep_their_baselines_and_failures(estimate):
    failed = next(iter(FAILED))
    data = scored([0, 1, 2, failed], [1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"])
    source = step_source("prm", Scripted(), reward_mode="terminal", aggregation="min", reward_weight=0.5)
    function = register_sources(lambda: [source], {"adv_estimator": "rloo"}, TOKENIZER)
    found = estimate(data)
    rewards, _ = expected()
    prm = 0.5 * (rewards[0] - rewards[1])
    first = [row[0].item() for row in found["advantages"]]
    assert first == pytest.approx(
        [1.0 + prm, -1.0 - prm, 1.0, -1.0], abs=1e-5
    )  # row 3: the outcome alone, so row 2, too
    assert (found["advantages"][data.batch["response_mask"] == 0] == 0).all()
    assert found["advantages"].shape == data.batch["responses"].shape
    assert function.metrics["prm"]["failed"] == 0.25


def test_the_penalty_of_verl_is_a_source_of_its_own(estimate):
    data = scored([0, 1], [1.0, 0.0], ["a", "a"])
    register_sources(list, {"adv_estimator": "rloo"}, TOKENIZER)
    plain = estimate(data)["advantages"].clone()
    assert plain[:, 0].tolist() == pytest.approx([1.0, -1.0])
    penalty = -0.1 * data.batch["response_mask"].float()
    penalty[1] *= 2
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] + penalty
    lengths = data.batch["response_mask"].sum(dim=1)
    by_penalty = estimate(data)["advantages"] - plain
    # a leave-one-out baseline of the mean penalty per token: +0.1 and -0.1 for every token to go
    assert by_penalty[0, 0].item() == pytest.approx(0.1 * lengths[0].item(), rel=1e-4)
    assert by_penalty[1, 0].item() == pytest.approx(-0.1 * lengths[1].item(), rel=1e-4)


@pytest.mark.parametrize("penalised", [False, True])
def test_a_missing_outcome_has_no_advantage_and_stops_nothing(estimate, penalised):
    data = scored([0, 1, 2], [1.0, float("nan"), 0.0], ["a", "a", "a"])
    register_sources(list, {"adv_estimator": "rloo"}, TOKENIZER)
    if penalised:
        penalty = -0.1 * data.batch["response_mask"].float()
        data.batch["token_level_rewards"] = data.batch["token_level_scores"] + penalty
    found = estimate(data)["advantages"]
    assert (found[1] == 0).all()
    if not penalised:
        assert found[[0, 2], 0].tolist() == pytest.approx([1.0, -1.0])
    assert found.isfinite().all()


def test_prime_learns_from_verls_batches(estimate):
    tiny = TinyModelSettings(hidden_size=32, heads=2, layers=1, intermediate=32, tokenizer="bytes", max_positions=256)
    policy = load_policy(TextPolicySettings(tiny=tiny, bf16=False), seed=0, device="cpu")
    model = {"prime_granularity": "token", "prime_norm": "none", "prime_model": {"optim": {"lr": 3e-3}}}
    prime = prime_source("prime", policy, length_limit=80, model=model)
    function = register_sources(lambda: [prime], {"adv_estimator": "rloo"}, policy.tokenizer, outcome_weight=0.0)
    data = scored([0, 1, 2, 3], [1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"])
    losses, gaps = [], []
    for _ in range(12):
        advantages = estimate(data)["advantages"]
        losses.append(function.metrics["prime"]["prm_loss"])
        gaps.append((advantages[[0, 2], 0].mean() - advantages[[1, 3], 0].mean()).item())
    assert losses[-1] < losses[0] - 0.05
    assert abs(gaps[0]) < 1e-4  # at first the reward model is its reference
    assert gaps[-1] > 0.1


def test_what_is_no_outcome_is_refused(estimate):
    register_sources(list, {"adv_estimator": "rloo"}, TOKENIZER)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        estimate(scored([0, 1], [2.0, 0.0], ["a", "a"]))
    register_sources(lambda: [step_source("verifier", Scripted())], {"adv_estimator": "rloo"}, TOKENIZER)
    with pytest.raises(ConfigError, match="distinct names"):
        estimate(scored([0, 1], [1.0, 0.0], ["a", "a"]))
    with pytest.raises(ConfigError, match="gdpo") as refused:
        core_algos.get_adv_estimator_fn("gdpo")(torch.zeros(1, 1), torch.zeros(1, 1), index=np.array(["a"]))
    assert refused.value.key == "algorithm.adv_estimator"


def test_the_example_registers_its_sources_where_verl_is_imported():
    path = ROOT / "examples" / "verl_prime.py"
    assert len(path.read_text().splitlines()) < 60
    code = "from verl.trainer.ppo import core_algos; print(core_algos.ADV_ESTIMATOR_REGISTRY['gdpo'].__module__)"
    env = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "verl_prime"}
    env["PYTHONPATH"] = os.pathsep.join([str(path.parent), str(ROOT / "src"), env.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.split()[-1:] == ["guerdon.integrations.verl"], done.stderr


def test_a_score_function_reads_questions_from_pandas_and_whole_batches():
    compute_score = score_function(TextScorer(Scripted(), aggregation="min"))
    rewards, _ = expected()
    rows = [n for n in range(12) if n not in FAILED]
    infos = [{"question": np.array([{"role": "user", "content": QUESTIONS[n]}], dtype=object)} for n in rows]
    assert compute_score("gsm8k", RESPONSES[rows[0]], "8", infos[0]) == rewards[rows[0]]
    many = {"data_sources": np.array(["gsm8k"] * len(rows), dtype=object), "ground_truths": ["8"] * len(rows)}
    answers = [RESPONSES[n] for n in rows]
    assert compute_score(**many, solution_strs=answers, extra_infos=np.array(infos, dtype=object)) == [
        rewards[n] for n in rows
    ]
    failed = next(iter(FAILED))
    infos[1]["question"] = QUESTIONS[failed]
    answers[1] = RESPONSES[failed]
    with pytest.raises(RewardFailure) as caught:
        compute_score(**many, solution_strs=answers, extra_infos=infos)
    assert set(caught.value.reasons) == {1}
    assert np.isnan(caught.value.result).tolist() == [n == 1 for n in range(len(rows))]
    with pytest.raises(ConfigError, match=r"extra_info\.question"):
        compute_score(**many, solution_strs=answers, extra_infos=None)


def rows_of_verl(rows):
    """A batch as verl's reward managers get it."""
    data = batch(rows)
    for name, values in {
        "data_source": ["gsm8k"] * len(rows),
        "reward_model": [{"ground_truth": "8", "style": "rule"} for _ in rows],
        "extra_info": [{"question": QUESTIONS[n], "index": n} for n in rows],
    }.items():
        data.non_tensor_batch[name] = np.empty(len(rows), dtype=object)
        data.non_tensor_batch[name][:] = values
    return data


def paid_by(name, compute_score, data):
    """Rewards of a batch by one of verl's own reward managers."""
    if name.startswith("loop "):
        omegaconf = pytest.importorskip("omegaconf", reason="omegaconf is not installed, which verl needs")
        manager_class = reward_loop.get_reward_manager_cls(name.removeprefix("loop "))
        config = omegaconf.OmegaConf.create({"reward": {"reward_kwargs": {}}})

        async def every():
            manager = manager_class(config, TOKENIZER, compute_score)
            found = [await manager.run_single(data[n : n + 1]) for n in range(len(data))]
            return [one["reward_score"] for one in found]

        return asyncio.run(every())
    managers = pytest.importorskip("verl.workers.reward_manager", reason="this verl has no such managers")
    manager = managers.get_reward_manager_cls(name)(TOKENIZER, 0, compute_score)
    paid = manager(data)
    last = data.batch["attention_mask"][:, 40:].sum(dim=1) - 1
    assert paid.sum(dim=1).tolist() == paid[range(len(data)), last].tolist()
    return paid.sum(dim=1).tolist()


@pytest.mark.parametrize("name", ["naive", "batch", "dapo", "loop naive", "loop dapo", "loop rate_limited"])
def test_verls_own_reward_managers_get_the_rewards_and_no_number_where_one_is_missing(name):
    rewards, _ = expected()
    rows = [0, 1, 2, 4, 5]
    compute_score = score_function(TextScorer(Scripted(), aggregation="min"))
    assert paid_by(name, compute_score, rows_of_verl(rows)) == pytest.approx([rewards[n] for n in rows])
    if name == "loop rate_limited":
        return  # it catches every exception (docs/integrations/verl.md)
    failed = next(iter(FAILED))
    with pytest.raises(RewardFailure, match=FAILED[failed]):
        paid_by(name, compute_score, rows_of_verl([0, failed]))
    data = rows_of_verl([0])
    data.non_tensor_batch["extra_info"][0] = {}
    with pytest.raises(ConfigError, match=r"extra_info\.question"):
        paid_by(name, compute_score, data)
