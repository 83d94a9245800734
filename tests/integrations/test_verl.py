"""Inside verl 0.9.1: rewards at tokens in `rm_scores`, failures that raise, an estimator under a name."""

import asyncio

import numpy as np
import pytest
import torch
from text_episodes import FAILED, QUESTIONS, RESPONSES, Scripted, expected

from guerdon.errors import ConfigError, RewardFailure
from guerdon.integrations.text import TextScorer, step_source
from guerdon.policies.tiny_text import byte_tokenizer

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install verl")
pytest.importorskip("verl.experimental.reward_loop", reason="verl's reward loop needs Ray: pip install verl")
from tensordict import TensorDict  # noqa: E402
from verl import DataProto  # noqa: E402

from guerdon.integrations.verl import TokenRewardManager, register_estimator, score_function  # noqa: E402

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
    with pytest.raises(ConfigError, match="needs value heads"):
        register_estimator("x", {"adv_estimator": "gae"})
