"""Reward models of text: their numbers against the language model itself, and what they refuse to put a number on."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_text_policies import merging_policy, tiny_policy

from guerdon.episodes.solution_formats import closed, to_training, training_text
from guerdon.episodes.solutions import Solution
from guerdon.errors import CheckpointError, ConfigError
from guerdon.models.explained_score import Judge, JudgeOptions, judge
from guerdon.models.text.implicit_text import ImplicitModel
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_heads import OutcomeModel, StepwiseModel
from guerdon.models.text.text_inputs import close_steps
from guerdon.models.text.text_load import check_text_model, find_text_model, load_text_model
from guerdon.models.text.verdict import FORM, VerdictModel
from guerdon.policies.language.text import TextPolicy, add_policy, reference
from guerdon.settings.text_policy import LoraSettings
from guerdon.types import Episode, Learnable, RewardModel

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from verdict_prefixes import prefix_scores

from tables import first, refuses, sample

torch.set_num_threads(1)


def episode(question, *steps, outcome=None):
    return Episode(id=question, task=question, texts=steps, outcome=outcome)


EPISODES = [
    episode("3+5=?", "3+5=8;\n", "so 8", outcome=True),
    episode("What is 12*3, less 4?", "12*3=36.\n\n", "36-4=31.\n\n", "The answer is 31", outcome=False),
    episode("1+1", "2", outcome=True),
    episode("7-2=?", "7-2=5;\n", "7-2=5;\n", "5", outcome=True),
]


def lively_head(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.head.weight.copy_(torch.randn(model.head.weight.shape, generator=generator))
        model.head.bias.fill_(0.1)
    return model


def stepwise(policy=None, **changes):
    card = replace(TextModelCard("stepwise", "chat", "bce", separator="\n", bf16=False), **changes)
    return lively_head(StepwiseModel(policy or tiny_policy(), card))


def outcome(policy=None, loss="bce"):
    return lively_head(OutcomeModel(policy or tiny_policy(), TextModelCard("outcome", "chat", loss, bf16=False)))


def verdict(policy=None):
    return VerdictModel(policy or tiny_policy(), TextModelCard("verdict", FORM, "bce", bf16=False))


def moved(parameters, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in parameters:
            p.add_(0.03 * torch.randn(p.shape, generator=generator).to(p.device))


def implicit(lora=True, read="cumulative", **card):
    card = replace(TextModelCard("implicit", "chat", "ce", beta=0.5, read=read, bf16=False), **card)
    if lora:
        policy = add_policy(tiny_policy().base, "policy", LoraSettings(r=2), seed=0)
        ref = None
    else:
        policy, ref = tiny_policy(), TextPolicy(tiny_policy().base, trainable=False)
    moved(policy.parameters())
    return ImplicitModel(policy, card, ref=ref)


MAKERS = {
    "stepwise": stepwise, "outcome": outcome, "verdict": verdict, "implicit": implicit,
    "implicit_full": lambda: implicit(lora=False),
}  # fmt: skip


def hidden_states(policy, ids):
    with torch.no_grad():
        return policy.base.model.get_decoder()(torch.as_tensor(ids)[None].to(policy.device)).last_hidden_state[0]


def values(score):
    return score.steps if score.steps is not None else np.array([score.total])


@pytest.mark.parametrize("kind", MAKERS)
def test_the_contracts_are_kept(kind):
    model = MAKERS[kind]()
    assert isinstance(model, RewardModel)
    assert isinstance(model, Judge)
    assert isinstance(model, Learnable) == kind.startswith("implicit")
    assert model.info.modality == "text"
    assert model.info.frames_needed == 0
    low, high = model.info.range
    judged = judge(model, EPISODES, JudgeOptions())
    for one, done in zip(EPISODES, judged, strict=True):
        assert done.score.failure is None
        assert not done.truncated
        assert done.tokens == len(model.read(one.task, one.texts))
        found = values(done.score)
        assert len(found) == (len(one) if model.info.granularity == "step" else 1)
        assert ((found >= low) & (found <= high)).all()


def test_stepwise_is_the_head_on_the_hidden_state_at_each_steps_last_token():
    model = stepwise()
    for one, score in zip(EPISODES, model.score(EPISODES), strict=True):
        texts = close_steps(one.texts, "\n")
        for k in range(len(one)):
            tokens = model.tokenizer.encode(
                f"<|bos|><|user|>{one.task}<|assistant|>{''.join(texts[: k + 1])}", add_special_tokens=False
            )
            logit = model.head(hidden_states(model.policy, tokens)[-1]).item()
            assert score.steps[k] == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-6)


def test_outcome_is_the_head_on_the_hidden_state_at_the_end():
    for loss in ("bce", "bradley_terry"):
        model = outcome(loss=loss)
        for one, score in zip(EPISODES, model.score(EPISODES), strict=True):
            tokens = model.tokenizer.encode(
                f"<|bos|><|user|>{one.task}<|assistant|>{''.join(one.texts)}<|eos|>", add_special_tokens=False
            )
            logit = model.head(hidden_states(model.policy, tokens)[-1]).item()
            wanted = logit if loss == "bradley_terry" else 1 / (1 + math.exp(-logit))
            assert score.total == pytest.approx(wanted, abs=1e-5)
            assert score.steps is None


def test_implicit_is_beta_times_the_log_ratio_so_far():
    for lora in (True, False):
        cumulative, single = implicit(lora), implicit(lora, read="single")
        ratios = cumulative.policy.base.model
        for one, score, alone in zip(EPISODES, cumulative.score(EPISODES), single.score(EPISODES), strict=True):
            logits, start = [], 0.0
            for k in range(len(one)):
                ids = cumulative.read(one.task, one.texts[: k + 1])
                total = log_prob(cumulative.policy, ids) - log_prob(cumulative.ref, ids)
                logits.append(0.5 * total)
                assert alone.steps[k] == pytest.approx(1 / (1 + math.exp(-0.5 * (total - start))), abs=1e-5)
                start = total
            np.testing.assert_allclose(score.steps, 1 / (1 + np.exp(-np.array(logits))), atol=1e-5)
            assert abs(logits[-1]) > 1e-3
        assert ratios is cumulative.policy.base.model


def log_prob(policy, reading):
    with policy.base.adapter(policy.adapter), torch.no_grad():
        logits = policy.base.model(torch.from_numpy(reading.ids)[None].to(policy.device)).logits[0].double().cpu()
    table = torch.log_softmax(logits[reading.start - 1 : -1], -1)
    return float(table.gather(1, torch.from_numpy(reading.ids[reading.start :])[:, None]).sum())


def test_implicit_of_an_untrained_model_is_one_half_everywhere():
    policy = add_policy(tiny_policy().base, "policy", LoraSettings(r=2), seed=0)
    model = ImplicitModel(policy, TextModelCard("implicit", "chat", "ce", beta=0.05, read="cumulative"))
    for score in model.score(EPISODES):
        np.testing.assert_array_equal(score.steps, np.full(len(score.steps), 0.5, np.float32))


@pytest.mark.parametrize("kind", ["stepwise", "verdict", "implicit"])
def test_a_step_is_judged_without_what_stands_behind_it(kind):
    model = MAKERS[kind]()
    for one, whole in zip(EPISODES, model.score(EPISODES), strict=True):
        for k in range(1, len(one)):
            part = model.score([one[:k]])[0]
            np.testing.assert_allclose(part.steps, whole.steps[:k], atol=2e-6)


@pytest.mark.parametrize("kind", MAKERS)
def test_neighbours_and_batches_change_nothing(kind):
    model = MAKERS[kind]()
    together = model.score(EPISODES)
    model.micro_batch_size = 1
    for one, score in zip(EPISODES, together, strict=True):
        np.testing.assert_allclose(values(model.score([one])[0]), values(score), atol=2e-6)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_one_pass_over_all_steps_gives_the_verdicts_of_a_pass_each(architecture):
    model = verdict(tiny_policy(architecture))
    fast = [score.steps for score in model.score(EPISODES)]
    for a, b in zip(fast, prefix_scores(model, EPISODES), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert np.ptp(np.concatenate(fast)) > 0.01


def test_one_pass_is_exact_where_a_tokenizer_merges_too():
    model = verdict(merging_policy([training_text(e.task, e.texts) + "CORRECT (+1)" for e in EPISODES] * 10))
    fast = [score.steps for score in model.score(EPISODES)]
    for a, b in zip(fast, prefix_scores(model, EPISODES, pieces=True), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_slow_form_reads_the_seeds_own_text():
    model = verdict()
    solution = Solution(
        id="1", question=EPISODES[1].task, steps=EPISODES[1].texts, labels=(1.0, 0.0, 0.0), rewards=(1.0, -1.0, -1.0)
    )
    rows = to_training(solution)
    for k, (row, found) in enumerate(zip(rows, prefix_scores(model, [EPISODES[1]])[0], strict=True)):
        assert row["input_text"] == training_text(solution.question, solution.steps[: k + 1])
        logits = model.policy.base.model(
            torch.tensor([model.tokenizer.encode(row["input_text"], add_special_tokens=False)]).to(model.policy.device)
        ).logits[0, -1]
        right, wrong = (logits[model.tokenizer.encode(t)[0]].item() for t in ("CORRECT (+1)", "INCORRECT (-1)"))
        assert found == pytest.approx(1 / (1 + math.exp(wrong - right)), abs=1e-6)


@pytest.mark.parametrize("kind", MAKERS)
def test_what_cannot_be_read_is_a_failure_and_spoils_no_neighbour(kind):
    model = MAKERS[kind]()
    model.card = replace(model.card, max_length=model.read("3+5=?", ["3+5=8;\n", "so 8"]).reach)
    odd = [
        episode("é", "1"),
        EPISODES[0],
        episode("3+5=?", "3+5=8;\n", "so 8!"),
        Episode(id="0", task="1", success=np.zeros(2, bool)),
    ]
    scores = model.score(odd)
    assert [s.failure and s.failure.reason for s in scores] == ["unknown_character", None, "too_long", "no_step"]
    np.testing.assert_allclose(values(scores[1]), values(model.score([EPISODES[0]])[0]), atol=2e-6)
    assert model.score([]) == []


def test_weights_that_are_no_numbers_are_a_failure():
    model = stepwise()
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    assert model.score(EPISODES[:1])[0].failure.reason == "non_finite"


def test_a_step_without_text_is_no_measurement():
    for kind in ("stepwise", "verdict", "implicit"):
        asked = [episode("3+5=?", ""), episode("3+5=?", "3+5=8;", "", "1;"), episode("3+5=?", "3+5=8;")]
        *empty, whole = MAKERS[kind]().score(asked)
        assert [score.failure.reason for score in empty] == ["empty_text", "empty_text"]
        assert whole.steps.shape == (1,)


# on disk


@pytest.mark.parametrize("kind", MAKERS)
def test_written_and_read_back_it_gives_the_same_scores(tmp_path, kind):
    model = MAKERS[kind]()
    folder = model.write(tmp_path / "final_checkpoint", training={"steps": 3})
    again = load_text_model(str(tmp_path), micro_batch_size=2)
    assert type(again) is type(model)
    assert again.card == replace(model.card, training={"steps": 3})
    assert again.info == model.info
    for a, b in zip(model.score(EPISODES), again.score(EPISODES), strict=True):
        np.testing.assert_allclose(values(a), values(b), atol=1e-6)
    other = load_text_model(str(folder), adapter="guerdon")
    np.testing.assert_allclose(values(other.score(EPISODES)[1]), values(model.score(EPISODES)[1]), atol=1e-6)


def test_an_adapter_is_read_back_too(tmp_path):
    policy = add_policy(tiny_policy().base, "policy", LoraSettings(r=2), seed=0)
    moved(policy.parameters())
    model = stepwise(policy)
    before = model.score(EPISODES)
    model.write(tmp_path / "model")
    again = load_text_model(str(tmp_path / "model"))
    assert not again.policy.base.adapters  # merged: scoring needs no adapter
    for a, b in zip(before, again.score(EPISODES), strict=True):
        np.testing.assert_allclose(a.steps, b.steps, atol=1e-5)
    plain = stepwise(tiny_policy()).score(EPISODES)
    assert max(np.abs(a.steps - b.steps).max() for a, b in zip(before, plain, strict=True)) > 1e-3


def test_a_folder_that_was_altered_is_refused(tmp_path):
    folder = stepwise().write(tmp_path / "m")
    card = folder / "reward_model.json"
    card.write_text(card.read_text().replace('"threshold": 0.5', '"threshold": 0.9'))
    with pytest.raises(CheckpointError, match="does not have the bytes"):
        load_text_model(str(folder))


def test_what_is_no_reward_model_is_said(tmp_path):
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "trainer_state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="under way"):
        load_text_model(str(tmp_path / "cut"))
    for name in ("method1_HE", "method1_SE"):
        stepwise().write(tmp_path / "two" / name / "final_checkpoint")
    with pytest.raises(CheckpointError, match="several reward models"):
        load_text_model(str(tmp_path / "two"))
    assert find_text_model(str(tmp_path / "two" / "method1_SE")) == tmp_path / "two" / "method1_SE" / "final_checkpoint"
    with pytest.raises(CheckpointError, match="needs no adapter"):
        load_text_model(str(tmp_path / "two" / "method1_SE"), adapter="trl")
    tiny_policy().base.model.save_pretrained(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="no known kind"):
        load_text_model(str(tmp_path / "plain"))
    with refuses("weights", "are of a model that guerdon trained with attributes"):
        load_text_model(str(tmp_path / "plain"), weights={"right": 1.0})
    with refuses("adapter", "unknown adapter 'orm': choose one of qwen_prm"):
        check_text_model(str(tmp_path / "plain"), adapter="orm")
    stepwise(kind="pairwise").write(tmp_path / "newer")
    with pytest.raises(CheckpointError, match="holds a 'pairwise', which this version of guerdon does not know"):
        load_text_model(str(tmp_path / "newer"))
    with pytest.raises(CheckpointError, match="no such folder"):
        load_text_model(str(tmp_path / "nowhere"))


def test_a_folder_without_its_head_is_refused(tmp_path):
    model = stepwise()
    (tmp_path / "head.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"head\.safetensors cannot be read, or does not fit"):
        model.read_head(tmp_path)
    (tmp_path / "head.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no head\.safetensors; train it again"):
        model.read_head(tmp_path)
    assert verdict().read_head(tmp_path) is None, "which has none"


def test_an_implicit_model_without_a_reference_is_refused():
    with pytest.raises(ConfigError, match="needs a reference"):
        ImplicitModel(tiny_policy(), TextModelCard("implicit", "chat", "ce", beta=1.0, read="cumulative"))


# going on to learn


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("loss", first(["ce", "dpo"], 1))
def test_it_learns_from_outcomes_and_its_reference_stays(lora, loss):
    learning = {"learning_rate": 3e-3, "batch_size": 4}
    model = implicit(lora, loss=loss, learning=learning)
    right, wrong = episode("3+5=?", "3+5=8;", "8", outcome=True), episode("3+5=?", "3+5=9;", "9", outcome=False)
    unknown = episode("3+5=?", "3+5=7;", outcome=None)
    ref = reference(model.policy.base) if lora else model.ref
    before = log_prob(ref, model.read("3+5=?", ["3+5=8;"]))
    first = model.learn([right, wrong, unknown])
    assert (first["learned"], first["skipped"]) == (2.0, 1.0)
    for _ in range(12):
        last = model.learn([right, wrong, unknown])
    assert last["loss"] < first["loss"] - 0.1
    good, bad = (float(s.steps[-1]) for s in model.score([right, wrong]))
    assert good > bad + 0.1
    assert log_prob(ref, model.read("3+5=?", ["3+5=8;"])) == before
    assert model.learn([unknown]) == {"learned": 0.0, "skipped": 1.0}


@pytest.mark.parametrize("lora", [True, False])
def test_saved_and_restored_it_goes_on_as_if_nothing_had_happened(tmp_path, lora):
    lessons = [EPISODES[0], EPISODES[1], EPISODES[3]]

    def fresh():
        return implicit(lora, learning={"learning_rate": 3e-3, "batch_size": 2})

    model = fresh()
    model.learn(lessons)
    model.save(tmp_path / "state")
    whole = [model.learn(lessons)["loss"] for _ in range(3)]
    other = fresh()
    other.restore(tmp_path / "state")
    assert [other.learn(lessons)["loss"] for _ in range(3)] == whole
    for a, b in zip(model.tensors().values(), other.tensors().values(), strict=True):
        assert torch.equal(a, b)
    (tmp_path / "state" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="bytes that were written"):
        other.restore(tmp_path / "state")


@pytest.mark.parametrize("lora", [True, False])
def test_a_state_of_a_model_that_began_otherwise_is_refused(tmp_path, lora):
    lessons = [EPISODES[0], EPISODES[1], EPISODES[3]]
    model = implicit(lora)
    model.learn(lessons)
    model.save(tmp_path / "state")
    implicit(lora).restore(tmp_path / "state")
    another = implicit(lora)
    moved(another.policy.parameters(), seed=2)
    strangers = [type(another)(another.policy, another.card, ref=another.stored_reference), implicit(lora, beta=0.25)]
    if not lora:
        moved(another.stored_reference.base.model.parameters(), seed=3)
        own = implicit(lora)
        strangers.append(type(own)(own.policy, own.card, ref=another.stored_reference))
    for stranger in strangers:
        before = stranger.tensors()
        with pytest.raises(CheckpointError, match="learned by a model that began with other weights"):
            stranger.restore(tmp_path / "state")
        assert stranger.updates == 0
        assert all(torch.equal(v, before[k]) for k, v in stranger.tensors().items())


def test_learning_goes_on_after_loading_from_disk(tmp_path):
    model = implicit(learning={"learning_rate": 3e-3, "batch_size": 2})
    model.write(tmp_path / "m")
    again = load_text_model(str(tmp_path / "m"))
    lessons = [EPISODES[0], EPISODES[1], EPISODES[3]]
    assert [again.learn(lessons)["loss"] for _ in range(3)] == pytest.approx(
        [model.learn(lessons)["loss"] for _ in range(3)], abs=1e-6
    )


def solutions_of(number, separator):
    """Solutions of 1 to 6 steps, whose steps are joined by a separator."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(number):
        numbers = rng.integers(0, 50, size=(int(rng.integers(1, 7)), 2)).tolist()
        texts = [f"{a}+{b}={a + b}." + " So:\nnext" * (a % 2) for a, b in numbers]
        found.append(episode(f"question {i}", *closed(texts, separator, None)))
    return found


@pytest.mark.parametrize(
    ("build", "trained"),
    sample(
        [(build, trained) for build in (stepwise, outcome, verdict, implicit) for trained in ("\n", "\n\n")],
        *[(stepwise, "\n"), (outcome, "\n\n"), (verdict, "\n"), (implicit, "\n\n")],
        several=True,
    ),
)
def test_the_blank_lines_between_steps_do_not_move_scores(build, trained):
    model = build()
    model.card = replace(model.card, separator=trained)
    ways = [model.score(solutions_of(40, joined)) for joined in ("\n", "\n\n", " \n", "")]
    assert all(score.failure is None for score in ways[0])
    for other in ways[1:]:
        for one, two in zip(ways[0], other, strict=True):
            assert one.total == two.total
            assert (one.steps is None) == (two.steps is None)
            assert one.steps is None or np.array_equal(one.steps, two.steps)
    assert len({score.steps[0] if score.steps is not None else score.total for score in ways[0]}) > 20


def test_only_line_breaks_between_steps_are_closed():
    assert close_steps(("a\n\n", "b", "c"), "\n") == ("a\n", "b\n", "c")
    assert close_steps(("a\n", "b \n\n\n"), "\n\n") == ("a\n\n", "b\n\n")  # a prefix reads as the whole does
    assert close_steps(("So. ", "b\n", "", "\n", "d"), "\n\n") == ("So. ", "b\n\n", "", "\n\n", "d")
    for separator in ("", ";", " "):
        assert close_steps(("a\n\n", "b;", "c"), separator) == ("a\n\n", "b;", "c")
