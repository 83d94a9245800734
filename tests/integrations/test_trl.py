"""Inside TRL: None where a measurement failed, and advantages of tokens that equal guerdon's own."""

import asyncio
import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from text_episodes import FAILED, QUESTIONS, RESPONSES, Scripted, expected

from guerdon.errors import ConfigError
from guerdon.integrations.text import TextScorer, step_source
from guerdon.policies.language.tiny_text import build_model, build_tokenizer, byte_tokenizer
from guerdon.settings.text_policy import TinyModelSettings
from guerdon.types import Failure, RewardInfo, Score

pytest.importorskip("trl", reason="TRL is not installed: pip install guerdon[trl]")
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from guerdon.integrations import trl as integration

torch.set_num_threads(1)
SETTINGS = TinyModelSettings(alphabet="70123 ?\n", hidden_size=16, layers=1, heads=2)
RLOO = {"adv_estimator": "rloo"}
ROOT = Path(__file__).parents[2]


class Says:
    """The share of sevens in each line; fails where there is a 0."""

    info = RewardInfo("sevens", (0.0, 1.0), modality="text", frames_needed=0)

    def score(self, episodes):
        return [
            Score(failure=Failure("zero"))
            if "0" in "".join(e.texts)
            else Score.from_values(np.array([t.count("7") / max(len(t), 1) for t in e.texts]))
            for e in episodes
        ]


def right(completions, **_):
    return [None if text.startswith("1") else float("7" in text) for text in completions]


def config(folder, kind, **more):
    return kind(
        str(folder), **{"max_steps": 1, "per_device_train_batch_size": 16, "num_generations": 4, "seed": 0,
        "max_completion_length": 6, "logging_steps": 1, "report_to": "none", "use_cpu": True, "save_strategy": "no",
        **more},
    )  # fmt: skip


def built(cls, folder, config_keys=(), kind=GRPOConfig, **more):
    tokenizer = build_tokenizer(SETTINGS)
    data = Dataset.from_dict({"prompt": ["?", "1?", "2?", "3?"] * 4})
    model = build_model(SETTINGS, tokenizer, seed=0)
    model.save_pretrained(folder / "model")  # from where TRL reads the reference
    model.config._name_or_path = str(folder / "model")
    return cls(
        model, args=config(folder, kind, **dict(config_keys)), train_dataset=data, processing_class=tokenizer, **more
    )


def test_a_failure_is_none_for_trl():
    rewards, _ = expected()
    scorer, logged = TextScorer(Scripted(), aggregation="min"), {}
    function = integration.reward_function(scorer)
    assert function(prompts=QUESTIONS, completions=RESPONSES, log_metric=logged.__setitem__) == rewards
    assert logged == {"scripted/failed": len(FAILED) / 200}
    assert function.__name__ == "scripted"
    chats = [[{"role": "user", "content": text}] for text in QUESTIONS]
    answers = [[{"role": "assistant", "content": text}] for text in RESPONSES]
    other = integration.async_reward_function(scorer, "other")
    assert asyncio.run(other(prompts=chats, completions=answers, trainer_state=None)) == rewards
    assert other.__name__ == "other"


@pytest.mark.parametrize("make", [integration.reward_function, integration.async_reward_function])
def test_trl_leaves_failed_responses_out(make, tmp_path):
    """TRL's own trainer: no advantage for a failed response, and a baseline of the others only."""
    scorer, found = TextScorer(Says(), aggregation="mean", splitter="newline"), {}

    class Recorder(GRPOTrainer):
        def _calculate_rewards(self, *args):
            found["rewards"] = super()._calculate_rewards(*args)
            return found["rewards"]

        def _generate_and_score_completions(self, inputs):
            found["output"] = super()._generate_and_score_completions(inputs)
            return found["output"]

    trainer = built(Recorder, tmp_path, {"scale_rewards": "none"}, reward_funcs=[make(scorer)])
    trainer.train()
    rewards = found["rewards"][:, 0].reshape(-1, 4)
    failed = rewards.isnan()
    assert failed.any()
    assert not failed.all()
    advantages = found["output"]["advantages"].reshape(-1, 4)
    assert (advantages[failed] == 0).all()
    own = rewards - rewards.nanmean(dim=1, keepdim=True)
    torch.testing.assert_close(advantages[~failed], own[~failed])
    logged = [row["sevens/failed"] for row in trainer.state.log_history if "sevens/failed" in row]
    assert logged == pytest.approx([failed.float().mean().item()])


@pytest.mark.parametrize("estimator", ["rloo", "grpo", "dr_grpo"])
def test_advantages_of_tokens_are_guerdons(estimator, tmp_path):
    seen = {}

    class Recorder(integration.TokenAdvantageTrainer):
        def _generate_and_score_completions(self, inputs):
            seen["output"] = super()._generate_and_score_completions(inputs)
            return seen["output"]

        def _token_advantages(self, inputs, output):
            seen["inputs"] = inputs
            return super()._token_advantages(inputs, output)

    source = step_source("prm", Says(), splitter="newline", reward_weight=0.5)
    trainer = built(Recorder, tmp_path, reward_funcs=[right], sources=[source], algorithm={"adv_estimator": estimator})
    trainer.train()
    output, outcomes = seen["output"], trainer._outcomes[:, 0].numpy()
    advantages = output["advantages"].numpy()
    mask = output["completion_mask"].numpy().astype(bool)
    texts = trainer.processing_class.batch_decode(output["completion_ids"], skip_special_tokens=True)
    assert outcomes[~np.isnan(outcomes)].tolist() == [v for v in right(texts) if v is not None]
    assert advantages.shape == mask.shape
    assert (advantages[~mask] == 0).all()
    both_failed = np.array(["0" in t and t.startswith("1") for t in texts])
    only_outcome = np.array(["0" in t and not t.startswith("1") for t in texts])
    assert (advantages[both_failed] == 0).all()
    assert only_outcome.any()
    for row in np.flatnonzero(only_outcome):  # an outcome gives every token of a response the same
        own = advantages[row][mask[row]]
        np.testing.assert_allclose(own, own[0], atol=1e-6)
    if estimator == "rloo":
        group = np.arange(16) // 4
        for row in np.flatnonzero(only_outcome):
            others = [
                outcomes[j] for j in np.flatnonzero(group == group[row]) if j != row and outcomes[j] == outcomes[j]
            ]
            expect = outcomes[row] - np.mean(others) if others else 0.0
            assert advantages[row][0] == pytest.approx(expect, abs=1e-6)
    assert np.isfinite([row["loss"] for row in trainer.state.log_history if "loss" in row]).all()
    assert any("prm/failed" in row for row in trainer.state.log_history)


def test_what_trl_has_no_place_for_is_refused(tmp_path):
    source = step_source("right", Says(), splitter="newline")
    for sources, algorithm, key, message in (
        ([source], {"adv_estimator": "rloo"}, None, "distinct names"),
        ([], {"adv_estimator": "gae"}, "adv_estimator", None),
        ([], {"adv_estimator": "rloo", "kl_coef": 0.1}, "kl_coef", None),
    ):
        with pytest.raises(ConfigError, match=message) as refused:
            built(
                integration.TokenAdvantageTrainer, tmp_path, reward_funcs=[right], sources=sources, algorithm=algorithm
            )
        assert refused.value.key == key


def test_with_outcomes_alone_the_first_update_is_that_of_trls_rloo(tmp_path):
    weights = {}
    for cls, more in (
        (RLOOTrainer, {}),
        (integration.TokenRLOOTrainer, {"sources": [], "algorithm": RLOO}),
    ):
        trainer = built(cls, tmp_path, kind=RLOOConfig, config_keys={"beta": 0.0}, reward_funcs=[right], **more)
        trainer.train()
        weights[cls] = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
        assert np.isfinite([row["loss"] for row in trainer.state.log_history if "loss" in row]).all()
    for name, value in weights[RLOOTrainer].items():
        torch.testing.assert_close(weights[integration.TokenRLOOTrainer][name], value, atol=1e-6, rtol=1e-4)


def test_rloo_has_the_penalty_as_a_source_and_a_ratio_per_token(tmp_path):
    seen = []

    class Recorder(integration.TokenRLOOTrainer):
        def _more_sources(self, output, rollout):
            found = super()._more_sources(output, rollout)
            seen.append((found["kl"], self._log_probs, rollout.mask))
            return found

        def _compute_loss(self, model, inputs):
            seen.append(inputs["advantages"])
            return super()._compute_loss(model, inputs)

    source = step_source("prm", Says(), splitter="newline")
    trainer = built(
        Recorder, tmp_path, kind=RLOOConfig, config_keys={"beta": 0.5, "max_steps": 2, "learning_rate": 1e-2},
        reward_funcs=[right], sources=[source], algorithm=RLOO,
    )  # fmt: skip
    trainer.train()
    rewards, terms = seen[0][0]
    assert (rewards.values == 0).all()  # policy and reference are the same at first
    assert terms.weight(0.0) == 0.5
    (rewards, _), (policy, reference), mask = seen[2]
    expected = np.where(mask, (reference - policy).numpy()[:, : mask.shape[1]], 0.0)
    np.testing.assert_allclose(rewards.values, expected, atol=1e-6)
    assert np.abs(expected).max() > 1e-3
    assert all(one.shape[1] > 1 for one in seen[1::2])
    with pytest.raises(ConfigError, match="reward_clip_range") as refused:
        built(
            integration.TokenRLOOTrainer, tmp_path, kind=RLOOConfig, config_keys={"reward_clip_range": (0.0, 1.0)},
            reward_funcs=[right], sources=[source], algorithm=RLOO,
        )  # fmt: skip
    assert refused.value.key == "reward_clip_range"


def sevens(completions, **_):
    return [text.count("7") / 6 - 0.2 * len(text) for text in completions]


def both(cls, folder, keys, kind, rewards=(right, sevens), **more):
    """A trainer of guerdon, and for each batch outcomes, TRL's advantages and its own, and what is truncated."""
    pairs = []

    class Recorder(cls):
        def _token_advantages(self, inputs, output):
            own = super()._token_advantages(inputs, output)
            truncated = [row[-1] != self.processing_class.eos_token_id for row in self._completions]
            pairs.append((self._outcomes[:, 0].clone(), output["advantages"].clone(), own, output["completion_mask"],
                          truncated))  # fmt: skip
            return own

    trainer = built(Recorder, folder, keys, kind, reward_funcs=list(rewards), sources=[], **more)
    return trainer, pairs


def check_pairs(pairs):
    for _, theirs, own, mask, truncated in pairs:
        kept = mask.sum(dim=1) > 0
        wide = torch.where(mask.bool(), theirs[:, None], own)
        torch.testing.assert_close(own, wide, atol=2e-6, rtol=1e-4)
        torch.testing.assert_close(own[~kept][:, 0], theirs[~kept], atol=2e-6, rtol=1e-4)  # out of the loss only
        assert any(truncated)


SCALES = [
    {"scale_rewards": "group"},
    {"scale_rewards": "batch"},
    {"scale_rewards": "none"},
    {"scale_rewards": "group", "mask_truncated_completions": True},
    {"scale_rewards": "none", "mask_truncated_completions": True, "num_generations": 8},
    {"scale_rewards": "group", "reward_weights": [2.0, 0.25], "num_generations": 2},
    {"scale_rewards": "batch", "reward_weights": [2.0, 0.25], "mask_truncated_completions": True},
    {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [2.0, 0.25]},
    {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none", "mask_truncated_completions": True},
    {"scale_rewards": True, "num_iterations": 2, "max_steps": 3},
    {"scale_rewards": False, "steps_per_generation": 2, "gradient_accumulation_steps": 1, "max_steps": 3},
]


def exact(completions, **_):
    return [float("7" in text) for text in completions]


@pytest.mark.parametrize("keys", SCALES, ids=str)
def test_the_advantages_of_outcomes_are_those_of_trls_grpo(keys, tmp_path):
    trainer, pairs = both(integration.TokenAdvantageTrainer, tmp_path, keys, GRPOConfig, rewards=[exact, sevens],
                          algorithm={"adv_estimator": "grpo"})  # fmt: skip
    trainer.train()
    check_pairs(pairs)


@pytest.mark.parametrize(
    "keys", [{}, {"mask_truncated_completions": True}, {"multi_objective_aggregation": "normalize_then_sum"}], ids=str
)
@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_unmeasured_and_truncated_outcomes_are_treated_as_by_trl(keys, scale, tmp_path):
    name = "dr_grpo" if scale == "none" and "multi_objective_aggregation" not in keys else "grpo"
    keys = {"scale_rewards": scale, **keys}
    trainer, pairs = both(integration.TokenAdvantageTrainer, tmp_path, keys, GRPOConfig, rewards=[right],
                          algorithm={"adv_estimator": name})  # fmt: skip
    trainer.train()
    assert trainer._outcomes.isnan().any()
    check_pairs(pairs)


@pytest.mark.parametrize(
    "keys",
    [
        {"reward_weights": [2.0, 0.25]},
        {"mask_truncated_completions": True, "num_generations": 2},
        {"normalize_advantages": True, "num_generations": 8},
        {"normalize_advantages": True, "mask_truncated_completions": True, "reward_weights": [2.0, 0.25]},
    ],
    ids=str,
)
@pytest.mark.parametrize("rewards", [[exact, sevens], [right]])
def test_the_advantages_of_outcomes_are_those_of_trls_rloo(rewards, keys, tmp_path):
    if len(rewards) == 1:  # it is missing for some responses
        keys = {**keys, "reward_weights": None}
    trainer, pairs = both(integration.TokenRLOOTrainer, tmp_path, {"beta": 0.0, **keys}, RLOOConfig,
                          rewards=rewards, algorithm=RLOO)  # fmt: skip
    trainer.train()
    assert len(rewards) == 2 or trainer._outcomes.isnan().any()
    check_pairs(pairs)


LOSSES = [
    *({"loss_type": loss} for loss in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")),
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    {"importance_sampling_level": "sequence", "num_iterations": 2},
    {"loss_type": "grpo", "num_iterations": 3, "epsilon": 0.01, "epsilon_high": 0.02, "delta": 1.5},
    {"loss_type": "cispo", "num_iterations": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 1},
    {"top_entropy_quantile": 0.5, "scale_rewards": "batch"},
    {"off_policy_mask_threshold": 0.01, "num_iterations": 2},
    {"multi_objective_aggregation": "normalize_then_sum", "num_iterations": 2},
]


@pytest.mark.parametrize("keys", LOSSES, ids=str)
def test_with_outcomes_alone_an_update_is_that_of_trls_grpo(keys, tmp_path):
    weights = []
    keys = {"max_steps": 3, "learning_rate": 1e-2, "beta": 0.1, "mask_truncated_completions": True, **keys}
    own = {"sources": [], "algorithm": {"adv_estimator": "grpo"}}
    for cls, more in ((GRPOTrainer, {}), (integration.TokenAdvantageTrainer, own)):
        trainer = built(cls, tmp_path, keys, reward_funcs=[sevens], **more)
        start = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
        trainer.train()
        weights.append({name: value.detach().clone() for name, value in trainer.model.named_parameters()})
    assert any((value != start[name]).any() for name, value in weights[0].items())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("cls", "kind", "algorithm"),
    [
        (integration.TokenAdvantageTrainer, GRPOConfig, "grpo"),
        (integration.TokenAdvantageTrainer, GRPOConfig, "dr_grpo"),
        (integration.TokenRLOOTrainer, RLOOConfig, "rloo"),
        (integration.TokenAdvantageTrainer, GRPOConfig, "reinforce"),
    ],
)
def test_an_evaluation_may_have_one_response_to_a_prompt(cls, kind, algorithm, size, tmp_path):
    keys = {"num_generations_eval": size, "per_device_eval_batch_size": 4, "mask_truncated_completions": True}
    if kind is GRPOConfig and algorithm != "grpo":
        keys["scale_rewards"] = "none"
    data = Dataset.from_dict({"prompt": ["?", "1?", "2?", "3?"]})
    trainer, pairs = both(
        cls, tmp_path, keys, kind, rewards=[sevens], algorithm={"adv_estimator": algorithm}, eval_dataset=data
    )
    logged = trainer.evaluate()
    assert np.isfinite(logged["eval_loss"])
    assert np.isfinite(logged["eval_rewards/sevens/mean"])
    assert len(pairs) == size
    if algorithm == "reinforce":
        for outcomes, _, own, _, _ in pairs:
            torch.testing.assert_close(own[:, 0], outcomes)
    else:
        check_pairs(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_a_reward_model_trains_as_the_same_function_does(kind, seed):
    """The numbers in docs/integrations/trl.md."""
    train = runpy.run_path(str(ROOT / "benchmarks" / "trl_training.py"))["train"]
    before, after = train(kind, seed)
    print(f"{kind}, seed {seed}: {before:.2f} -> {after:.2f}")
    assert before <= 0.3
    assert after >= 0.6
    assert train(f"{kind}_native", seed) == (before, after)
    assert train(f"{kind}_tokens", seed)[1] >= 0.6


@pytest.mark.slow
def test_the_example_learns(monkeypatch):
    found = runpy.run_path(str(ROOT / "examples" / "trl_grpo.py"))["main"]()
    assert np.mean(found[:5]) <= 0.3
    assert np.mean(found[-5:]) >= 0.6


# Conversations: `tools` and `environment_factory`.


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return f"={a + b}"


class Sums:
    """An environment with one tool; its first message is part of the prompt."""

    def reset(self, **_):
        return " 1+2?"

    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return add(a, b)


class TurnsBefore:
    """Half for each turn of the assistant before this one."""

    info = RewardInfo("turns", (0.0, 10.0), granularity="total", modality="text", frames_needed=0)
    seen = None

    def score(self, episodes):
        self.seen = episodes
        return [Score(total=0.5 * sum(m["role"] == "assistant" for m in one.context)) for one in episodes]


CALLS = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def led(folder, algorithm, sources, *, cut=False, **more):
    """A trainer whose model calls `add` in every other conversation and then answers, and what it gave for a batch."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = "<|im_end|>"
    templates = Path(next(iter(find_spec("trl").submodule_search_locations))) / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    bytes_of = TinyModelSettings(tokenizer="bytes", hidden_size=16, layers=1, heads=2)
    seen = {}

    class Recorder(integration.TokenAdvantageTrainer):
        def _generate_single_turn(self, prompt_ids, *_, **__):
            first = len(prompt_ids) == 4
            said = [CALLS if first and k % 2 == 0 else "3" for k in range(len(prompt_ids))]
            ends = [[] if cut and text == "3" else [tokenizer.eos_token_id] for text in said]
            return [[*tokenizer(text)["input_ids"], *end] for text, end in zip(said, ends, strict=True)], None

        def _generate_and_score_completions(self, inputs):
            seen["output"] = super()._generate_and_score_completions(inputs)
            return seen["output"]

    def called(completions, **_):
        return [float(len(one) > 1) for one in completions]

    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": "Sum"}]] * 4})
    keys = config(folder, GRPOConfig, per_device_train_batch_size=4, max_completion_length=400, **more.pop("keys", {}))
    trainer = Recorder(
        build_model(bytes_of, tokenizer, seed=0), args=keys, train_dataset=data, processing_class=tokenizer,
        reward_funcs=[called], sources=sources, algorithm=algorithm, **more,
    )  # fmt: skip
    trainer.train()
    return tokenizer, seen["output"]


@pytest.mark.parametrize("more", [{"tools": [add]}, {"environment_factory": Sums}])
def test_answers_of_a_completion_with_tools_get_advantages_of_turns(more, tmp_path):
    model = TurnsBefore()
    source = step_source("turns", model, reward_mode="per_turn")
    tokenizer, output = led(tmp_path, {"adv_estimator": "turn_rloo"}, [source], **more)
    advantages, wrote = output["advantages"].numpy(), output["tool_mask"].bool().numpy()
    there = output["completion_mask"].bool().numpy()
    assert (advantages[~(wrote & there)] == 0).all()
    assert (there & ~wrote).sum(axis=1).tolist() == [(~wrote[0]).sum(), 0, (~wrote[2]).sum(), 0]
    for row in range(4):
        ids = output["completion_ids"][row][torch.from_numpy(wrote[row] & there[row])]
        said = tokenizer.decode(ids)
        own = advantages[row][wrote[row] & there[row]]
        if row % 2:
            assert said == "3<|im_end|>"
            # outcome 0 against 1, 0, 1; the source: 0 against 0.5, 0, 0.5
            np.testing.assert_allclose(own, (0 - 2 / 3) + (0 - 1 / 3), atol=1e-6)
        else:
            assert said == f"{CALLS}<|im_end|>3<|im_end|>"
            # outcome 1 against 0, 1, 0; the source: 0.5 to go in both turns, against 0, 0.5, 0
            np.testing.assert_allclose(own, (1 - 1 / 3) + (0.5 - 0.5 / 3), atol=1e-6)
    (answer,) = [one for one in model.seen if len(one.context) > 1]  # equal ones of a group are scored once
    assert [m["role"] for m in answer.context][-3:] == ["user", "assistant", "tool"]
    assert answer.context[-3]["content"] == ("Sum" if "tools" in more else "Sum 1+2?")
    assert (answer.context[-1]["content"], "".join(answer.texts)) == ("=3", "3")
    assert answer.tools[0]["function"]["name"] == "add"


def test_conversations_that_trl_masks_belong_to_their_group(tmp_path):
    keys = {"mask_truncated_completions": True, "scale_rewards": "none"}
    _, output = led(tmp_path, {"adv_estimator": "rloo"}, [], tools=[add], keys=keys, cut=True)
    assert not output["completion_mask"].any()
    first = output["advantages"][:, 0]
    torch.testing.assert_close(first, torch.tensor([2 / 3, -2 / 3, 2 / 3, -2 / 3]))


def test_sources_of_single_responses_are_refused_with_tools(tmp_path):
    source = step_source("prm", Says(), splitter="newline")
    with pytest.raises(ConfigError, match="per_step scores steps of one response"):
        led(tmp_path, {"adv_estimator": "turn_rloo"}, [source], tools=[add])
