"""`guerdon label` from end to end, with a real policy and a real judge over HTTP."""

import json
import re
import shutil
import sys
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from judge_server import FakeClock, judge_server, judgements, steps_asked
from label_studies import DATA, TINY, rows, study_of

from guerdon import cli
from guerdon.config.loading import to_yaml, validate
from guerdon.endpoints.completions import Completer, CompletionRequest, LocalLLMClient, SamplingParams, weights_hash
from guerdon.endpoints.llm_client import LLMReply, LLMRequest
from guerdon.episodes.solution_files import read_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, TooManyFailuresError
from guerdon.files.append_log import Cache
from guerdon.labels.candidates import fail_rate_row, judge_texts
from guerdon.labels.label import label
from guerdon.labels.labelers import ContinuationSampler, MonteCarloLabeler, PromptedSolution
from guerdon.network.retry import Clock
from guerdon.policies.batches.tokens import prompt_ids
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.data import GeneratedDataSettings
from guerdon.settings.label import LabelSettings, MiningSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import LocalGenerationSettings, TextPolicySettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import verifier_from
from guerdon.types import Failure
from tables import cases, refuses

torch.set_num_threads(1)


def fake():
    clock = FakeClock()
    return Clock(clock.now, clock.sleep)


def judge_of(server, **given):
    prices = {"usd_per_million_in": 10.0, "usd_per_million_out": 100.0}
    return {"api": "openai", "model": "m", "base_url": server.url + "/v1", "max_tokens": 50, "concurrency": 2, **prices,
            **given}  # fmt: skip


def honest(text):
    """A judge that can add modulo two, and takes each line for itself."""
    steps = steps_asked(text)
    if not steps:
        return "0+1=1;1+1=0;"
    return judgements([1 if len(s) == 6 and (int(s[0]) + int(s[2])) % 2 == int(s[4]) else -1 for s in steps])


def test_exact_labels_hard_rewards_and_every_format(policy, tmp_path):
    formats = ["training", "trl", "prm800k", "math_shepherd"]
    done = label(study_of(policy, tmp_path, formats=formats))
    assert done.folder == tmp_path / "prm_dataset_method1_HE"
    records = rows(done.folder)
    assert {"question", "solution", "steps", "step_rewards", "is_correct", "ground_truth_answer"} <= set(records[0])
    solutions = read_solutions(done.folder)
    for solution in solutions:
        right = solution.is_correct
        wanted = tuple(None if v is None else 1.0 if v and right else -1.0 for v in solution.labels)
        assert solution.rewards == wanted
        assert None not in solution.labels[: (solution.first_error + 1) or None]
    assert read_solutions(done.folder / "trl.jsonl") == solutions
    assert read_solutions(done.folder / "math_shepherd.jsonl") == solutions
    assert read_solutions(done.folder / "prm800k.jsonl") == solutions
    training = rows(done.folder, "training.jsonl")
    assert len(training) == sum(v is not None for s in solutions for v in s.labels)
    assert {row["target_text"] for row in training} <= {"CORRECT (+1)", "INCORRECT (-1)"}
    card = json.loads((done.folder / "card.json").read_text())
    assert card == done.card
    assert card["solutions"]["labelled"] == len(solutions)
    assert sum(card["solutions"]["left_out"].values()) + len(solutions) == 12
    assert card["stopped"] is None


def test_rewards_change_without_sampling(policy, tmp_path):
    hard = label(study_of(policy, tmp_path))
    soft = label(study_of(policy, tmp_path, reward="SE"), skip_generation=True)
    assert soft.folder == tmp_path / "prm_dataset_method1_SE"
    assert soft.card["labels_from"] == hard.folder.name
    again = label(study_of(policy, tmp_path / "other", reward="SE"))
    assert (soft.folder / "records.jsonl").read_bytes() == (again.folder / "records.jsonl").read_bytes()
    assert {abs(r) for row in rows(soft.folder) for r in row["step_rewards"] if r is not None} <= {0.75, 1.0}
    with pytest.raises(DataError, match="--skip_generation uses the data set that is there"):
        label(study_of(policy, tmp_path / "nothing"), skip_generation=True)
    (hard.folder / "fail_rates.jsonl").write_text('{"id": "1"}\n')
    soft = label(study_of(policy, tmp_path, reward="SE"), skip_generation=True)
    assert not (soft.folder / "fail_rates.jsonl").exists(), "it is made from itself"
    shutil.rmtree(soft.folder)
    soft = label(study_of(policy, tmp_path, reward="SE"), skip_generation=True)
    assert (soft.folder / "fail_rates.jsonl").read_text() == '{"id": "1"}\n'
    (hard.folder / "card.json").write_text("[]")
    with pytest.raises(DataError, match="expected a map of keys, this is list"):
        label(study_of(policy, tmp_path), skip_generation=True)


@pytest.mark.parametrize("labeler", ["monte_carlo", "binary_search"])
def test_a_killed_run_goes_on_to_the_same_bytes(policy, tmp_path, labeler):
    how = {"labeler": labeler, "monte_carlo": {"completions": 4}, "mining": {"attempts": 4, "max_fail_rate": 1.0,
           "min_fail_rate": 0.0}}  # fmt: skip
    first = label(study_of(policy, tmp_path, **how))
    records = (first.folder / "records.jsonl").read_bytes()
    assert first.card["sampled"]["continue: texts"] > 0
    cache = tmp_path / "cache" / "completions.jsonl"
    lines = cache.read_bytes().splitlines(keepends=True)
    cache.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:20])  # killed while a line was written
    second = label(study_of(policy, tmp_path, **how))
    assert (second.folder / "records.jsonl").read_bytes() == records
    third = label(study_of(policy, tmp_path, **how))
    assert (third.folder / "records.jsonl").read_bytes() == records
    assert not any(n for name, n in third.card["sampled"].items() if name.endswith(("texts", "tokens")))


def test_mining_keeps_what_is_failed_often_but_not_always(policy, tmp_path):
    done = label(study_of(policy, tmp_path, mining={"attempts": 8, "min_fail_rate": 0.2, "max_fail_rate": 0.9}))
    table = rows(done.folder, "fail_rates.jsonl")
    assert len(table) == done.card["questions"]["tried"]
    kept = [row for row in table if row["kept"]]
    assert [row["id"] for row in kept] == list(
        dict.fromkeys(s.meta["question_id"] for s in read_solutions(done.folder))
    )
    for row in table:
        assert row["low"] <= row["fail_rate"] == row["fails"] / 8 <= row["high"]
        assert row["kept"] <= (0.2 <= row["fail_rate"] <= 0.9)


def test_fail_rates_count_what_could_be_checked():
    prompt = Prompt("p", ({"role": "user", "content": "q"},), "1", "x")
    row = fail_rate_row(prompt, [1.0, 0.0, 0.0, Failure("timeout")], MiningSettings())
    assert (row["attempts"], row["checked"], row["fails"], row["fail_rate"]) == (4, 3, 2, 2 / 3)
    assert row["kept"]
    unknown = fail_rate_row(prompt, [Failure("timeout")] * 2, MiningSettings())
    assert (unknown["fail_rate"], unknown["low"], unknown["kept"]) == (None, None, False)
    assert [fail_rate_row(prompt, [0.0] * n + [1.0] * (10 - n), MiningSettings())["kept"] for n in (2, 3, 8, 9)] == [
        False, True, True, False,
    ]  # fmt: skip


class Echo:
    """A model that answers at once with the number of the request."""

    name = "echo"

    def __init__(self):
        self.requests = []

    def complete(self, requests, parsers, *, role):
        self.requests = list(requests)
        yield from ((i, f"answer {i}") for i in range(len(requests)))


def test_the_judges_model_writes_no_solution_to_a_prompt_with_tools():
    settings = study_of("x", "x", num_rollouts=2).label
    data = GeneratedDataSettings.model_validate({"type": "generated", **DATA})
    prompts = [Prompt(str(k), ({"role": "user", "content": f"q{k}"},), "1", "x") for k in range(101)]
    prompts[1] = replace(prompts[1], tools=({"type": "function", "function": {"name": "add"}},))
    said, echo = [], Echo()
    texts = judge_texts(prompts, echo, data, settings, said.append)
    assert texts[0] == ["answer 0", "answer 1"]
    assert [(one.reason, one.detail) for one in texts[1]] == [
        ("unreadable_chat", "the judge's model is given no tools, and prompt 1 has some")
    ] * 2
    assert texts[2] == ["answer 2", "answer 3"]
    assert (len(echo.requests), [one.sample for one in echo.requests[:3]]) == (200, [0, 1, 0])


def test_what_has_nothing_to_label_is_refused(policy, tmp_path):
    with refuses("data", "a data section .* or solutions in label.solutions.data_path"):
        label(study_of("x", tmp_path).model_copy(update={"data": None}))
    with pytest.raises(DataError, match=r"no solution to label: of 4 questions x 3 rollouts, .* too_few_steps"):
        label(study_of(policy, tmp_path, solutions={"min_steps": 9}))


def test_nothing_to_keep_is_said(tmp_path):
    study = study_of("x", tmp_path, mining={"attempts": 2, "max_fail_rate": 0.9})
    random = study.model_copy(update={"policy": TextPolicySettings(type="text", tiny=TINY, bf16=False)})
    with pytest.raises(DataError, match=r"none of 7 questions has .* 0 were always right, 7"):
        label(random)


def test_a_judge_over_http_then_nobody_is_asked_again(policy, tmp_path):
    with judge_server(honest, [(429, {"retry-after": "1"}), (500, {})]) as server:
        study = study_of(policy, tmp_path, labeler="judge", judge=judge_of(server))
        done = label(study, clock=fake())
        calls = len(server.requests)
        spent = done.card["ledger"]["judge"]
        assert (spent["calls"], spent["failed"]) == (calls, 2)
        assert spent["usd"] == pytest.approx(0.003 * (calls - 2))
        again = label(study, clock=fake())
        assert len(server.requests) == calls
        assert again.card["ledger"]["judge"]["from_cache"] == len(rows(again.folder))
    for solution in read_solutions(done.folder):
        assert solution.meta["labels"]["judge"] == "m"
        assert solution.labels == tuple(
            float(len(s) == 6 and (int(s[0]) + int(s[2])) % 2 == int(s[4])) for s in solution.steps
        )


def test_the_judges_model_writes_with_method_2(policy, tmp_path):
    with judge_server(honest) as server:
        study = study_of(policy, tmp_path, method=2, num_samples=2, judge=judge_of(server))
        done = label(study, clock=fake())
        assert done.folder.name == "prm_dataset_method2_HE"
        assert done.card["ledger"]["solve"]["calls"] == 6
        assert done.card["solutions"]["left_out"] == {"duplicate": 4}
        assert {s.text for s in read_solutions(done.folder)} == {"0+1=1;1+1=0;"}


def test_a_spent_budget_keeps_what_is_done_and_the_next_run_goes_on(policy, tmp_path):
    with judge_server(honest) as server:
        judge = judge_of(server, concurrency=1)
        poor = label(study_of(policy, tmp_path, labeler="judge", judge=judge, max_usd=0.03), clock=fake())
        done = len(rows(poor.folder))
        assert poor.stopped == "max_usd"
        assert 0 < done == len(server.requests)
        assert poor.card["solutions"]["not_asked"] == poor.card["solutions"]["written"] - done
        assert "stopped by max_usd" in poor.summary
        rich = label(study_of(policy, tmp_path, labeler="judge", judge=judge, max_usd=3.0), clock=fake())
        assert rich.stopped is None
        assert len(rows(rich.folder)) == rich.card["solutions"]["written"] == len(server.requests)


def test_too_many_failures_stop_the_run(policy, tmp_path):
    with judge_server(lambda text: "no idea") as server:
        study = study_of(policy, tmp_path, labeler="judge", judge=judge_of(server, retries=0), num_rollouts=8)
        with pytest.raises(TooManyFailuresError, match=r"not_json.*resumes"):
            label(study, clock=fake())
    card = json.loads((tmp_path / "prm_dataset_method1_HE" / "card.json").read_text())
    counts = card["solutions"]
    assert card["stopped"] == "failures"
    assert counts["failed"]["not_json"] + counts["not_asked"] == counts["written"]
    assert counts["not_asked"] > 0  # the first lot was enough to see


def test_judge_and_continuations_agree(policy, tmp_path):
    with judge_server(honest) as server:
        how = {"labeler": "consensus", "monte_carlo": {"completions": 8}, "num_rollouts": 6}
        study = study_of(policy, tmp_path, judge=judge_of(server), **how)
        done = label(study, clock=fake())
    assert set(done.card["solutions"]["failed"]) <= {"no_consensus"}
    for solution in read_solutions(done.folder):
        assert set(solution.meta["labels"]) == {"judge", "completions"}


def completer(policy, cache, **given):
    loaded = load_policy(TextPolicySettings(path=policy, bf16=False), seed=0)
    return Completer(loaded, LocalGenerationSettings(batch_size=8), cache, **{"seed": 0, **given})


def test_completions_continue_the_prefix_and_are_kept(policy, tmp_path):
    with closing(Cache(tmp_path / "c.jsonl")) as cache:
        one = completer(policy, cache)
        prompt = prompt_ids(one.policy.tokenizer, [{"role": "user", "content": "0+1=?;?+1=?;"}])
        asks = [CompletionRequest(prompt), CompletionRequest(prompt, "0+1=1;"), CompletionRequest(prompt)]
        found = one.complete(asks, n=6, limit=16, sampling=SamplingParams(0.7), purpose="x")
        assert found[0] == found[2]
        assert [len(row) for row in found] == [6, 6, 6]
        assert sum(len(d.text) == 6 for d in found[1]) > sum(len(d.text) == 6 for d in found[0])
        assert one.counts == {"x: from cache": 0, "x: texts": 12, "x: tokens": one.counts["x: tokens"]}
        other = one.complete(asks, n=6, limit=16, sampling=SamplingParams(0.7), purpose="y")
        assert other != found
        greedy = one.complete(asks, n=2, limit=16, sampling=SamplingParams(0.0), purpose="x")
        assert greedy[0][0] == greedy[0][1]
    with closing(Cache(tmp_path / "c.jsonl")) as cache:
        two = completer(policy, cache)
        assert two.complete(asks, n=6, limit=16, sampling=SamplingParams(0.7), purpose="x") == found
        assert two.counts["x: texts"] == 0
        assert (
            completer(policy, cache, seed=1).complete(asks, n=6, limit=16, sampling=SamplingParams(0.7), purpose="x")
            != found
        )
        assert len({weights_hash(load_policy(TextPolicySettings(tiny=TINY), seed=s)) for s in (0, 1, 1)}) == 2


def test_a_local_judge_answers_like_one_behind_an_api(policy, tmp_path):
    with closing(Cache(tmp_path / "c.jsonl")) as cache:
        client = LocalLLMClient(completer(policy, cache), "tiny")
        request = LLMRequest(({"role": "user", "content": "0+1=?;?+1=?;"},), 16, 0.0)
        short = LLMRequest(({"role": "user", "content": "0+1=?;?+1=?;"},), 2, 0.0)
        seen = []

        def check(reply):
            seen.append(reply)
            return "yes"

        assert dict(client.complete([request, short], [check, check], role="judge")) == {
            0: "yes", 1: Failure("truncated", "the reply reached its length limit (length)"),
        }  # fmt: skip
        assert isinstance(seen[0], LLMReply)
        assert seen[0].text.count(";") == 2


def test_a_request_that_a_local_judge_cannot_read_fails_alone(policy, tmp_path):
    with closing(Cache(tmp_path / "c.jsonl")) as cache:
        client = LocalLLMClient(completer(policy, cache), "tiny")
        texts = ["0+1=?;?+1=?;", "0+1=?;" * 60, "0+1=?;\u20ac", "0+1=?;?+1=?;"]
        requests = [LLMRequest(({"role": "user", "content": text},), 16, 0.0) for text in texts]
        found = dict(client.complete(requests, [lambda _: "yes"] * 4, role="judge"))
        assert (found[0], found[3]) == ("yes", "yes")
        assert {found[1].reason, found[2].reason} == {"unreadable"}
        assert re.search(r"a request of \d+ tokens .* 64 positions", found[1].detail)


def test_a_solution_beyond_the_positions_of_the_policy_fails_alone(policy, tmp_path):
    prompt = Prompt("p", ({"role": "user", "content": "0+1=?;"},), "1", "0+1=?;")

    def given(*steps):
        return PromptedSolution(Solution("s", "0+1=?;", steps, is_correct=False), prompt)

    data = GeneratedDataSettings.model_validate(DATA)
    with closing(Cache(tmp_path / "c.jsonl")) as cache, verifier_from(data) as verifier:
        one = completer(policy, cache)
        sampler = ContinuationSampler(one, verifier, data, SamplingParams(1.0, 1.0))
        rest = one.policy.base.positions - len(prompt_ids(one.policy.tokenizer, prompt.messages))
        assert sampler.unreadable(given("0" * (rest - 1), "1")) is None
        assert sampler.unreadable(given("0" * rest, "1")).reason == "too_long"
        assert sampler.unreadable(given("0" * rest)) is None  # a single step has no prefix
        assert sampler.unreadable(given("\u20ac", "1")).reason == "unknown_character"
        labeler = MonteCarloLabeler(sampler, k=2, hard=True)
        found = labeler.label([given("0;", "1;"), given("0" * rest, "1"), given("0" * (rest - 1), "1")])
        assert [isinstance(one, Failure) and one.reason == "too_long" for one in found] == [False, True, False]


@cases(
    ("given", "key", "words"),
    [
        ({"judge": {}}, "judge", "would do nothing with a labeler and a method that ask no judge"),
        ({"max_usd": 1.0}, "max_usd", ""),
        ({"monte_carlo": {}}, "monte_carlo", ""),
        ({"labeler": "binary_search", "monte_carlo": {"estimate": "soft"}}, "monte_carlo.estimate", ""),
        ({"labeler": "judge", "judge": {"api": "openai"}}, "judge.model", ""),
        ({"labeler": "judge", "judge": {"api": "openai", "model": "m"}, "max_usd": 1.0}, "max_usd", "both prices"),
        (
            {"labeler": "judge", "judge": {"api": "local", "model": "m", "timeout": 3.0}},
            "judge.timeout",
            "unknown key; it belongs to api: anthropic or api: openai",
        ),
        ({"labeler": "judge", "judge": {"token_limit_key": "max_tokens"}}, "judge.token_limit_key", ""),
        (
            {"mining": {"attempts": 3, "min_fail_rate": 0.4, "max_fail_rate": 0.6}},
            "mining.min_fail_rate",
            "no question can be kept",
        ),
        ({"method": 2, "solutions": {"top_p": 0.9}}, "solutions.top_p", ""),
    ],
)
def test_settings_that_would_do_nothing_are_refused(given, key, words):
    with refuses(key) as refused:
        validate(LabelSettings, {"labeler": "exact", **given}, origin="study.yaml")
    assert words in str(refused.value)


def test_labels_belong_to_language_models():
    with pytest.raises(
        ValueError, match=r"label would do nothing .* a language model is `policy: \{type: text, path: FOLDER\}`"
    ):
        Study.model_validate({"label": {"labeler": "exact"}})
    with pytest.raises(ConfigError, match="this configuration has no label section") as refused:
        label(Study.model_validate({"policy": {"type": "text", "tiny": {}}, "data": DATA}))
    assert refused.value.key == "label"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["guerdon", "label", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


def test_the_seeds_flags(policy, tmp_path, call):
    study = study_of(policy, "data").model_copy(
        update={"policy": TextPolicySettings(type="text", tiny=TINY, bf16=False)}
    )
    (tmp_path / "study.yaml").write_text(to_yaml(study))
    flags = ["--method", 1, "--reward", "SE", "--sft_model", policy, "--num_rollouts", 2, "--num_samples", 3]
    status, out, err = call("study.yaml", *flags)
    assert status == 0, err
    assert "wrote data/prm_dataset_method1_SE: " in out
    solutions = read_solutions("data/prm_dataset_method1_SE")
    assert {s.meta["model"] for s in solutions} == {policy}
    assert len({s.meta["question_id"] for s in solutions}) <= 3
    status, out, _ = call("study.yaml", *flags[:2], "--reward", "HE", *flags[4:], "--skip_generation")
    assert status == 0
    assert read_solutions("data/prm_dataset_method1_HE")[0].labels == solutions[0].labels


def test_a_dry_run_says_what_it_would_cost(policy, tmp_path, call):
    (tmp_path / "study.yaml").write_text(to_yaml(study_of(policy, "data", labeler="judge")))
    status, out, _ = call("study.yaml", "--dry-run", "--max-usd", "2.5", "--num_samples", 7)
    assert status == 0
    assert "calls: at most 21, to claude-sonnet-4-20250514 at https://api.anthropic.com" in out
    assert "stops before $2.50" in out
    assert "dollars: about $" in out
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--reward", "XE"], "label.reward"), (["--method", "3"], "label.method"), (["--max-usd", "3"], "max_usd")],
)
def test_a_wrong_flag_is_one_line(policy, tmp_path, call, flags, words):
    (tmp_path / "study.yaml").write_text(to_yaml(study_of(policy, "data")))
    status, out, err = call("study.yaml", *flags)
    assert (status, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
