"""`score`, `evaluate`, `serve` and `run` give the same value for the same conversation and model, in any batch.

The tests of readers compare what a model is shown; those of models what they say of it, alone and in batches.
"""

import hashlib
import json
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign import serving
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification

import guerdon
from guerdon.endpoints.llm_client import LLMReply, answer_of
from guerdon.episodes.preferences import read_preferences
from guerdon.evaluation.benchmarks.labelled import read_labelled
from guerdon.evaluation.benchmarks.reward_bench import read_choices
from guerdon.models.judges.judge import JudgeModel, JudgePlan
from guerdon.models.judges.published import published_prompt
from guerdon.models.scores import score_solutions, solution_value
from guerdon.models.text.text_load import load_text_model
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.settings.reward_models import JUDGE_PROMPTS
from guerdon.settings.study import Study
from guerdon.tasks.prompt_files import read_prompts
from guerdon.train.text import start_model
from guerdon.types import Episode, Failure, RewardInfo, Score

sys.path.append(str(Path(__file__).parents[1] / "models"))

from tiny_text_policies import enliven

torch.set_num_threads(1)
WORDS = (
    "sea",
    "Sun",
    " dog",
    "cat\n",
    "7+5=",
    "<|im_end|>",
    "é",
    "\t",
    "{}",
    "<think>",
    "[INST]",
    "  two  blanks ",
    "\n\nx",
)
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def conversations(n, seed=0):
    """Rows with a response each: a text, messages, a system turn, several turns, and calls of a tool."""
    rng = random.Random(seed)

    def text(end):
        return "".join(rng.choice(WORDS) + " " for _ in range(rng.randint(1, 5))) + end

    def row(k):
        answer = said(text("a"))
        if k % 5 == 0:
            return {"prompt": text("q"), "response": answer["content"]}
        if k % 5 == 1:
            return {"messages": [user(text("q")), answer]}
        if k % 5 == 2:
            return {"messages": [{"role": "system", "content": text("s")}, user(text("q")), answer]}
        if k % 5 == 3:
            return {"messages": [user(text("q")), said(text("b")), user(text("q")), answer]}
        function = {"name": "add", "arguments": json.dumps({"a": k})}
        called = {**said(""), "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
        asked = [user(text("q")), called, {"role": "tool", "content": str(k), "tool_call_id": "c1"}]
        return {"messages": [*asked, answer], "tools": [ADD]}

    return [row(k) for k in range(n)]


class Recorder:
    """A model that keeps what it is shown."""

    info = RewardInfo("recorder", (-np.inf, np.inf), granularity="total", modality="text", frames_needed=0)

    def __init__(self):
        self.seen = []

    def score(self, episodes):
        self.seen += map(shown, episodes)
        return [Score(total=0.0) for _ in episodes]


def shown(episode):
    return json.dumps(
        [episode.task, list(episode.context), list(episode.tools), "".join(episode.texts)], sort_keys=True
    )


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def asked_in_run(path, response):
    """What a run shows of a response to the prompts of a file, as `TextReward` does."""
    return [
        Episode(id=one.id, task=one.question, texts=(response,), context=one.context, tools=one.tools)
        for one in read_prompts(path, answered=False)
    ]


FORMS = {
    "text": {"prompt": "hi there"},
    "messages": {"prompt": [{"role": "system", "content": "Be brief."}, user("hi there")]},
    "messages as text": {"prompt": json.dumps([{"role": "system", "content": "Be brief."}, user("hi there")])},
    "tools": {"prompt": [user("hi there")], "tools": [ADD]},
    "a system column": {"system": "Be brief.", "prompt": "hi there"},
    "turns as text": {"prompt": "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: and now?\n\nAssistant:"},
    "an open turn": {"prompt": "\n\nHuman: hi there\n\nAssistant:"},
    "a history": {"prompt": "and now?", "history": [["hi", "hello"]]},
    "a passage": {"question": "and now?", "context": "A passage of text."},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_is_the_same_for_every_command(tmp_path, form):
    def rows(**more):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        return written(path, [{**FORMS[form], **more}, {**FORMS[form], **more, "more": 1}])

    def scored(path):
        model = Recorder()
        guerdon.score(model, path, output=f"{path}.out.jsonl")
        return model.seen[0]

    better = {"chosen": "yes", "rejected": "no"}
    choices = read_choices(rows(**better)).choices, read_choices(rows(**better, subset="s")).choices
    seen = {
        "score": scored(rows(response="yes")),
        "score of a pair": scored(rows(**better)),
        "labels": shown(read_labelled(rows(response="yes", oracle_label=0.3)).responses()[0].as_episode()),
        "train": shown(read_preferences(rows(**better)).comparisons[0].responses[0].as_episode()),
        "pairs": shown(choices[0][0].responses[0].as_episode()),
        "pairs of a subset": shown(choices[1][0].responses[0].as_episode()),
        "run": shown(asked_in_run(rows(), "yes")[0]),
    }
    assert seen == dict.fromkeys(seen, seen["train"])


KINDS = {
    "stepwise": {}, "verdict": {}, "outcome": {}, "outcome in pairs": {"loss": "bradley_terry"}, "implicit": {},
    "preference": {}, "members": {"members": 3}, "encoder": {}, "judge": {}, "prometheus_absolute": {},
    "mt_bench_single": {}, "reward_bench_rating": {},
}  # fmt: skip
TINY = {"hidden_size": 32, "layers": 1, "heads": 2, "intermediate": 48, "tokenizer": "bytes", "max_positions": 2048}


class Replies:
    """An `LLMClient` whose replies are a number that depends on the request alone, in the form that it asks for."""

    name = "replies"

    def __init__(self, form):
        self.form = form

    def complete(self, requests, parsers, *, role):
        for i, (request, parse) in enumerate(zip(requests, parsers, strict=True)):
            text = re.sub(r"(response|question|turn|tools)-\w{8}", r"\1", json.dumps(request.messages))
            number = hashlib.sha256(text.encode()).digest()[0]
            yield i, answer_of(request, LLMReply(self.form(number), "end"), parse)


REPLIES = {
    "judge": lambda n: json.dumps({"reason": "so", "score": n % 11}),
    "prometheus_absolute": lambda n: f"So. [RESULT] {1 + n % 5}",
    "mt_bench_single": lambda n: f"So. Rating: [[{1 + n % 10}]]",
    "reward_bench_rating": lambda n: f"So.\n{1 + n % 10}",
}


def judge_of(kind):
    if kind == "judge":
        return JudgeModel(Replies(REPLIES[kind]), JudgePlan("scale"))
    form = JUDGE_PROMPTS[kind]
    return JudgeModel(Replies(REPLIES[kind]), JudgePlan(form.mode, scale=form.scale, prompt=published_prompt(kind)))


def encoder_of(folder):
    """A sequence classifier of a BERT without a chat template."""
    tokenizer = byte_tokenizer([], vocabulary_size=300)
    tokenizer.chat_template = None
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end[0]}", pair=f"$A {end[0]} $B:1 {end[0]}:1", special_tokens=[end]
    )
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=512, num_labels=1, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    network = BertForSequenceClassification(config)
    torch.nn.init.normal_(network.classifier.weight, std=0.3)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_text_model(str(folder))


def model_of(kind, folder):
    """A model as `guerdon train` would write it, with weights that tell texts apart; an encoder, or a judge."""
    if kind in REPLIES:
        return judge_of(kind)
    if kind == "encoder":
        return encoder_of(folder)
    name = {"members": "preference"}.get(kind, kind.split()[0])
    section = {"type": name, "save_dir": "unused", "data_path": "unused", "bf16": False, "tiny": TINY, **KINDS[kind]}
    study = Study.model_validate({"policy": {"type": "text", "tiny": TINY}, "train": {"rm": section}})
    model = start_model(study.train["rm"], study.text_default, separator="\n")
    enliven(model.policy.base.model, seed=3)
    if model.head is not None:
        enliven(model.head, seed=4)
    return load_text_model(str(model.write(folder)))


def values(scores):
    return [value.reason if isinstance(value := solution_value(one, "last"), Failure) else value for one in scores]


def assert_equal(found, wanted, what):
    assert len(found) == len(wanted), what
    for k, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one == (other if isinstance(other, str) else pytest.approx(other, abs=1e-6)), (what, k)


@pytest.mark.parametrize("n", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_equal_in_every_interface_and_batch(tmp_path, kind, n):
    model, rows = model_of(kind, tmp_path / "rm"), conversations(n)
    for part in (rows[::5], [row for k, row in enumerate(rows) if k % 5]):
        path = written(tmp_path / f"{len(part)}.jsonl", part)
        labelled = written(tmp_path / f"{len(part)}-labelled.jsonl", [row | {"oracle_label": 1} for row in part])
        solutions = read_labelled(labelled).responses()
        alone = values(model.score([one.as_episode()])[0] for one in solutions)
        assert sum(not isinstance(one, str) for one in alone) >= 0.5 * len(alone) or kind != "preference"
        assert_equal(values(score_solutions(model, solutions, batch_size=7)), alone, "evaluate")
        order = np.random.default_rng(0).permutation(len(part))
        mixed = values(model.score([solutions[k].as_episode() for k in order]))
        assert_equal([mixed[k] for k in np.argsort(order)], alone, "another order")
        guerdon.score(model, path, output=str(tmp_path / f"{len(part)}-out.jsonl"), aggregation="last")
        copy = [json.loads(line) for line in (tmp_path / f"{len(part)}-out.jsonl").read_text().splitlines()]
        assert_equal(
            [(row.get("reward_failure") or "").partition(":")[0] or row["reward"] for row in copy], alone, "score"
        )
        in_steps = model.info.granularity == "step"
        items = [item_of(row, in_steps) for row in part]
        with serving({"rm": model}, default="rm") as (client, _):
            found = [one for k in range(0, len(items), 9) for one in asked(client, items[k : k + 9], in_steps)]
        assert_equal(found, alone, "serve")
        prompts = read_prompts(path, answered=False)
        texts = [row["response"] if "response" in row else row["messages"][-1]["content"] for row in part]
        episodes = [
            Episode(id=one.id, task=one.question, texts=(text,), context=one.context, tools=one.tools)
            for one, text in zip(prompts, texts, strict=True)
        ]
        assert_equal(values(model.score(episodes)), alone, "run")


def item_of(row, in_steps):
    """A row as an item of `/v1/rewards`; models of steps take the response as one step."""
    *told, answer = row.get("messages") or [user(row["prompt"]), said(row["response"])]
    own = {"steps": [answer["content"]]} if in_steps else {"completion": answer["content"]}
    if "prompt" in row:
        return {"prompt": row["prompt"], **own}
    tools = {"tools": row["tools"]} if "tools" in row else {}
    return {"messages": told, **own, **tools}


def asked(client, items, in_steps):
    reply = client.post("/v1/rewards", json={"items": items, **({"aggregation": "last"} if in_steps else {})})
    assert reply.status_code == 200, reply.text
    return [one["failure"]["reason"] if one.get("failure") else one["score"] for one in reply.json()["results"]]


BETTER = {"prometheus_relative": "So. [RESULT] {}", "judgelm": "{}\nSo."}
COMPARING = [name for name, form in JUDGE_PROMPTS.items() if form.mode == "pairwise"]


class Prefers:
    """An `LLMClient` that prefers one of two responses by their hashes, whatever their order."""

    name = "prefers"

    def __init__(self, kind):
        self.kind = kind

    def complete(self, requests, parsers, *, role):
        for i, (request, parse) in enumerate(zip(requests, parsers, strict=True)):
            marks = re.findall(r"ANSWER (\d+)", request.messages[-1]["content"])
            first = hashlib.sha256(marks[0].encode()).digest() < hashlib.sha256(marks[1].encode()).digest()
            letter = "A" if first else "B"
            words = {"judgelm": "9 2" if first else "2 9"}.get(self.kind, letter)
            text = BETTER.get(self.kind, "So. [[{}]]").format(words)
            yield i, answer_of(request, LLMReply(text, "end"), parse)


@pytest.mark.parametrize("n", [4, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", COMPARING)
def test_a_judge_that_compares_gives_one_value_in_every_interface(tmp_path, kind, n):
    model = JudgeModel(Prefers(kind), JudgePlan("pairwise", prompt=published_prompt(kind)))
    rows = [{"prompt": f"q{k}", "response": f"ANSWER {5 * k + j}"} for k in range(n) for j in range(2 + k % 4)]
    episodes = [Episode(id=str(k), task=row["prompt"], texts=(row["response"],)) for k, row in enumerate(rows)]
    at = {
        prompt: [k for k, row in enumerate(rows) if row["prompt"] == prompt] for prompt in {r["prompt"] for r in rows}
    }
    alone = [None] * len(rows)
    for own in at.values():
        for k, one in zip(own, model.score([episodes[k] for k in own]), strict=True):
            alone[k] = one.total
    assert all(one is not None for one in alone)
    assert_equal(values(model.score(episodes)), alone, "run")
    order = np.random.default_rng(0).permutation(len(rows))
    mixed = values(model.score([episodes[k] for k in order]))
    assert_equal([mixed[k] for k in np.argsort(order)], alone, "another order")
    guerdon.score(model, written(tmp_path / "rows.jsonl", rows), output=str(tmp_path / "out.jsonl"))
    copy = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert_equal([row["reward"] for row in copy], alone, "score")
    items = [{"prompt": row["prompt"], "completion": row["response"]} for row in rows]
    with serving({"rm": model}, default="rm") as (client, _):
        assert_equal(asked(client, items, False), alone, "serve")
