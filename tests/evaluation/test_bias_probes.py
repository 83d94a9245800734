"""Bias probes: effects in closed form of models and scripted judges with a known bias, and none of those without."""

import hashlib
import json
import re

import numpy as np
import pytest
from pydantic import ValidationError
from text_models import Scripted

from guerdon.endpoints.llm_client import LLMReply, answer_of
from guerdon.evaluation.benchmarks.attacks import CLAIM, FILLER, bias_probes, family_of
from guerdon.evaluation.benchmarks.reward_bench import choices_from_rows
from guerdon.evaluation.suites.text_suite import evaluate_text
from guerdon.models.judges.judge import JudgeModel, JudgePlan
from guerdon.models.scores import score_solutions
from guerdon.settings.evaluate import BiasProbeSettings, EvaluateTextSettings
from guerdon.types import Failure, RewardInfo, Score
from tables import cases, first, refuses

ALL = ("order", "length", "formatting", "confidence", "claim", "family")
LOGIT = RewardInfo("scripted", (-np.inf, np.inf), granularity="total", modality="text")
ROWS = [
    {"prompt": f"question {k}", "chosen": f"The answer is {k}. It is so.", "rejected": f"It is {k + 1}. Is it?"}
    for k in range(40)
]


def noise(text):
    """Standard normal, by the text alone."""
    return float(np.random.default_rng(list(hashlib.sha256(text.encode()).digest())).normal())


def model(value):
    """Of the prompt and the text of a response; a string: a failure with that reason."""

    def say(episode):
        said = value(episode.task, "".join(episode.texts))
        return Failure(said) if isinstance(said, str) else Score(total=said)

    return Scripted(say, LOGIT)


def probed(judge, names=ALL, rows=ROWS, **given):
    settings = BiasProbeSettings(names=names, prompts=given.pop("prompts", 100))
    return bias_probes(judge, choices_from_rows(rows), settings, aggregation="last", **{"seed": 0, **given})


def interval(one):
    return (one.low, one.estimate, one.high)


class Client:
    """An `LLMClient` that answers a pair of responses with A, B or tie."""

    def __init__(self, winner, name="scripted"):
        self.winner, self.name, self.contents = winner, name, []

    def complete(self, requests, parsers, *, role):
        for i, (request, parse) in enumerate(zip(requests, parsers, strict=True)):
            content = request.messages[-1]["content"]
            self.contents.append(content)
            first, second = re.findall(r"<response-\w+[^>]*>\n(.*?)\n</response", content, re.S)
            said = {"reason": "so", "winner": self.winner(content, first, second)}
            yield i, answer_of(request, LLMReply(json.dumps(said), "end"), parse)


def pairwise(winner, name="scripted"):
    return JudgeModel(Client(winner, name), JudgePlan("pairwise"))


def rightly(_, first, second):
    """The response that ROWS prefer."""
    return "A" if "The answer is" in first else "B"


@pytest.mark.parametrize(
    ("name", "mark"),
    [("length", FILLER[0]), ("formatting", "## Answer\n\n- "), ("confidence", "certain"), ("claim", CLAIM[2:].strip())],
)
def test_a_constant_bonus_is_the_bonus_in_standard_deviations_of_a_prompts_values(name, mark):
    """Right ones are worth 2 more: a pair's standard deviation is 2 / sqrt(2), and a bonus of 3 turns every pair."""
    found = probed(model(lambda task, text: len(task) + 2.0 * ("The answer" in text or "**The answer" in text)
                         + 3.0 * (mark in text)))  # fmt: skip
    assert list(found) == ["length", "formatting", "confidence", "claim"]
    for other, one in found.items():
        if other == name:
            assert interval(one.effect) == pytest.approx((3 / np.sqrt(2),) * 3)
            assert (one.gains.estimate, one.losses.estimate) == (1.0, 0.0)
        else:
            assert interval(one.effect) == pytest.approx((0.0,) * 3)
            assert (one.gains.estimate, one.losses.estimate) == (0.0, 0.0)
        assert (one.unit, one.effect.n, one.skipped, one.failures) == ("SD", 40, 0, {})


def test_a_small_bonus_turns_no_pair_and_a_malus_is_negative():
    small = probed(model(lambda task, text: 2.0 * ("The answer" in text) + 1.0 * ("correct" in text)), ["claim"])
    assert small["claim"].effect.estimate == pytest.approx(1 / np.sqrt(2))
    assert small["claim"].gains.estimate == 0.0
    bad = probed(model(lambda task, text: 2.0 * ("The answer" in text) - 3.0 * ("correct" in text)), ["claim"])["claim"]
    assert bad.effect.high < 0
    assert (bad.gains.estimate, bad.losses.estimate) == (0.0, 1.0)


@pytest.mark.parametrize("seeds", first([50, 200], 1))
def test_the_interval_of_a_model_without_bias_covers_zero_as_often_as_it_says(seeds):
    covered = []
    for seed in range(seeds):
        effect = probed(model(lambda task, text, seed=seed: noise(f"{seed}{task}{text}")), ["claim"], reps=400)
        covered.append(effect["claim"].effect.low <= 0 <= effect["claim"].effect.high)
    assert 0.88 <= np.mean(covered) <= 0.99


@pytest.mark.slow
def test_the_interval_of_a_known_bias_covers_it_as_often_as_it_says():
    """Values are standard normal, so that the bonus is its own effect."""
    covered = []
    for seed in range(200):
        biased = model(lambda task, text, seed=seed: noise(f"{seed}{task}{text}") + 0.7 * ("correct" in text))
        effect = probed(biased, ["claim"], reps=400)["claim"].effect
        covered.append(effect.low <= 0.7 <= effect.high)
    assert 0.88 <= np.mean(covered) <= 0.99


def test_failed_measurements_are_counted_and_never_a_number():
    def value(task, text):
        if task == "question 3" and "correct" in text:
            return "timeout"
        return "refused" if task == "question 4" else float("The answer" in text)

    one = probed(model(value), ["claim"])["claim"]
    assert one.failures == {"timeout": 1, "refused": 1}
    assert (one.effect.n, one.effect.n_undefined, one.effect.estimate) == (38, 2, 0.0)
    nothing = probed(model(lambda task, text: "late"), ["claim"])["claim"]
    assert (nothing.effect.estimate, nothing.effect.low, nothing.gains.estimate) == (None, None, None)
    assert nothing.failures == {"late": 40}


def test_an_effect_needs_a_spread():
    one = probed(model(lambda task, text: 1.0 + ("correct" in text)), ["claim"])["claim"]
    assert one.effect.estimate is None


def test_no_text_is_scored_twice_and_so_many_prompts_are_drawn():
    seen = []
    judge = model(lambda task, text: seen.append((task, text)) or float(len(text)))
    found = probed(judge, ["claim", "length", "confidence"], [*ROWS, ROWS[0]], prompts=7)
    assert {one.effect.n for one in found.values()} == {7}
    assert len(seen) == len(set(seen)) == 7 * 2 * 4
    again = []
    probed(model(lambda task, text: again.append((task, text)) or 1.0), ["claim"], prompts=7, seed=1)
    assert {task for task, _ in again} != {task for task, _ in seen}


def test_formatting_leaves_the_words_alone_and_code_as_it_is():
    texts = []
    rows = [
        {"prompt": "a", "chosen": "## Sum\n- **Two** and two is 4. So it is.", "rejected": "It is 3.5. No doubt"},
        {"prompt": "b", "chosen": "```python\nprint(4)\n```", "rejected": "- 4"},
    ]
    one = probed(model(lambda task, text: texts.append(text) or float(len(texts))), ["formatting"], rows)["formatting"]
    assert texts == [
        "Sum\nTwo and two is 4. So it is.",
        "It is 3.5. No doubt",
        "## Answer\n\n- **Sum**\n- **Two and** two is 4.\n- **So it** is.",
        "## Answer\n\n- **It is** 3.5.\n- **No doubt**",
    ]
    assert (one.effect.n, one.skipped) == (1, 1)


def test_length_adds_half_of_the_text_at_least_and_at_most_a_sentence_more():
    texts = []
    rows = [{"prompt": "a", "chosen": "word " * 200, "rejected": "no"}]
    probed(model(lambda task, text: texts.append(text) or 0.0), ["length"], rows)
    long, short, longer, shorter = texts
    assert 1.5 * len(long) <= len(longer) <= 1.5 * len(long) + 65
    assert longer.startswith(long)
    assert shorter == f"{short}\n\n{FILLER[0]}"


@pytest.mark.parametrize(("share", "tie"), [(1.0, False), (0.25, False), (0.5, True), (0.0, False)])
def test_the_place_of_a_response_is_worth_the_share_of_judgements_that_follow_it(share, tie):
    """In a share of the prompts the first one wins; with `tie` only where the right one is first, else it is a tie."""

    def winner(content, first, second):
        number = int(re.search(r"question (\d+)", content).group(1))
        if number >= 40 * share:
            return rightly(content, first, second)
        return "tie" if tie and rightly(content, first, second) == "B" else "A"

    one = probed(pairwise(winner), ["order"])["order"]
    assert one.effect.estimate == pytest.approx(share / 2 if tie else share)
    assert one.effect.low <= one.effect.estimate <= one.effect.high
    assert one.gains.estimate == (0.0 if tie else share)
    assert (one.unit, one.losses.estimate, one.failures) == ("value", 0.0, {})


def test_the_second_place_may_be_the_better_one():
    one = probed(pairwise(lambda *_: "B"), ["order"])["order"]
    assert (one.effect.estimate, one.gains.estimate, one.losses.estimate) == (-1.0, 0.0, 1.0)


def test_judgements_that_change_with_the_order_are_failures_of_the_other_probes():
    found = probed(pairwise(lambda *_: "A"), ["claim", "order"])
    assert found["claim"].failures == {"order_effect": 40}
    assert found["claim"].effect.estimate is None
    assert found["order"].failures == {}


def test_a_judge_that_favours_its_own_family():
    """It decides by the signature where only one is its own, else rightly: the worse response gains 1, the other 0."""

    def winner(content, first, second):
        own = [("Claude" in text) for text in (first, second)]
        return rightly(content, first, second) if own[0] == own[1] else "AB"[own[1]]

    judge = pairwise(winner, "claude-judge-1")
    found = probed(judge, ["order", "claim", "family"])
    assert found["family"].effect.estimate == pytest.approx(0.5)
    assert (found["family"].gains.estimate, found["family"].losses.estimate) == (1.0, 0.0)
    assert [found[name].effect.estimate for name in ("order", "claim")] == [0.0, 0.0]
    fair = probed(pairwise(rightly, "claude-judge-1"), ["family"])["family"]
    assert interval(fair.effect) == (0.0, 0.0, 0.0)
    signed = [name for name in ("GPT", "Gemini", "Llama", "Qwen", "Mistral", "DeepSeek")
              if any(f"(Written by {name}.)" in content for content in judge._client.contents)]  # fmt: skip
    assert len(signed) > 3


@cases(
    ("name", "family"),
    [
        ("gpt-4o-2024-08-06", "GPT"), ("openai/o3-mini", "GPT"), ("claude-sonnet-4-5", "Claude"), ("QwQ-32B", "Qwen"),
        ("deepseek-r1-distill-qwen-7b", "DeepSeek"), ("meta-llama/CodeLlama-7b", "Llama"), ("gemma-3", "Gemini"),
        ("mistralai/Ministral-8B", "Mistral"), ("my-judge", "my-judge"), ("foo1-o4x", "foo1-o4x"),
    ],
)  # fmt: skip
def test_the_family_of_a_language_model(name, family):
    assert family_of(name) == family


def test_a_listwise_judge_is_probed_for_order_too():
    def reply(requests, parsers, role):
        for i, (request, parse) in enumerate(zip(requests, parsers, strict=True)):
            said = {"1": {"reason": "", "score": 9}, "2": {"reason": "", "score": 4}}
            yield i, answer_of(request, LLMReply(json.dumps(said), "end"), parse)

    client = Client(None)
    client.complete = lambda requests, parsers, *, role: reply(requests, parsers, role)
    judge = JudgeModel(client, JudgePlan("listwise", votes=2, temperature=1.0))
    assert probed(judge, ["order"])["order"].effect.estimate == pytest.approx(0.5)


def test_groups_are_never_cut_by_the_size_of_a_batch():
    calls = []

    class Group:
        info = RewardInfo("group", (0.0, 1.0), granularity="total", modality="text", compares=True)

        def score(self, episodes):
            calls.append([episode.group for episode in episodes])
            return [Score(total=0.5)] * len(episodes)

    solutions = [one for choice in choices_from_rows(ROWS[:4]) for one in choice.responses]
    assert len(score_solutions(Group(), solutions, groups=[0, 0, 0, 1, 1, 2, 2, 2], batch_size=2)) == 8
    assert calls == [["0"] * 3, ["1"] * 2, ["2"] * 3]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return {"aggregation": "last", "reps": 100, "pairs": str(path)}


def test_the_card_of_an_evaluation_has_the_probes(pairs, tmp_path):
    biased = model(lambda task, text: 2.0 * ("The answer" in text) + 3.0 * ("correct" in text))
    record = evaluate_text(biased, EvaluateTextSettings.model_validate(pairs), tmp_path / "out")
    assert record["pairs"]["overall"]["measured"]["estimate"] == 1.0
    assert list(record["bias_probes"]) == ["length", "formatting", "confidence", "claim"]
    lines = (tmp_path / "out" / "evaluation.txt").read_text().splitlines()
    (claim,) = (line.split() for line in lines if line.startswith("claim"))
    assert claim == ["claim", "2.121", "2.121", "2.121", "SD", "for", "it", "1.000", "0.000", "40", "-", "0"]
    assert any(re.match(r"length +0.000 .* not shown", line) for line in lines)
    quiet = evaluate_text(biased, EvaluateTextSettings.model_validate({**pairs, "probes": None}), tmp_path / "quiet")
    assert "bias_probes" not in quiet


def test_a_judge_that_compares_is_evaluated_on_pairs(pairs, tmp_path):
    settings = EvaluateTextSettings.model_validate({**pairs, "probes": ["order"], "batch_size": 3})
    record = evaluate_text(pairwise(rightly), settings, tmp_path)
    assert record["pairs"]["overall"]["measured"]["estimate"] == 1.0
    assert record["bias_probes"]["order"]["effect"]["estimate"] == 0.0


def test_the_section(pairs):
    assert EvaluateTextSettings.model_validate({**pairs, "probes": True}).probes == BiasProbeSettings()
    assert EvaluateTextSettings.model_validate({**pairs, "probes": False}).probes is None
    assert EvaluateTextSettings.model_validate({**pairs, "probes": ["order"]}).probes.names == ("order",)
    with pytest.raises(ValidationError, match="verbosity"):
        EvaluateTextSettings.model_validate({**pairs, "probes": ["verbosity"]})
    with refuses("probes"):
        EvaluateTextSettings.model_validate({"aggregation": "min", "prm_bench": "x.jsonl", "probes": True})


def test_a_log_has_at_most_a_line_for_each_probe(capfd):
    probed(model(lambda _, text: noise(text)), batch_size=4)
    lines = capfd.readouterr().err.splitlines()
    assert [re.search(r"\((\w+)\)", line)[1] for line in lines] == ["length", "formatting", "confidence", "claim"]
