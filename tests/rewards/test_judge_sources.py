"""Language models as judges in a run: what is asked and paid for, groups, kills, and what is refused."""

import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from test_text_sources import PRM, Says, reward

from guerdon.engines.reward_models import ShardedModel
from guerdon.errors import ConfigError, DataError, TooManyFailuresError
from guerdon.models.load import load_reward_model
from guerdon.rewards.text_sources import TextReward
from guerdon.rl import build_text
from guerdon.rl.run import run, run_folder
from guerdon.settings.reward_source import TextSource
from guerdon.tasks.prompt_files import read_prompts
from guerdon.types import Episode, Failure, RewardInfo, Score
from text_rl import Scripted, interrupted, letter_study, lines, result, start

sys.path.append(str(Path(__file__).parents[1] / "labels"))
from judge_server import judge_server

from tables import refuses

torch.set_num_threads(1)
COMPARES = RewardInfo("ranks", (0.0, 1.0), granularity="total", modality="text", frames_needed=0, compares=True)
PRICES = {"usd_per_million_in": 10.0, "usd_per_million_out": 100.0}
EACH = 100 * 10 / 1e6 + 20 * 100 / 1e6  # dollars for a reply of the server


def responses(text):
    return re.findall(r"<response-\w+[^>]*>\n(.*?)\n</response", text, re.S)


def ranks(text):
    """Scores by the number of ones, for the responses in the order in which they are shown."""
    return json.dumps({str(k + 1): {"reason": "ones", "score": min(10, one.count("1"))}
                       for k, one in enumerate(responses(text))})  # fmt: skip


def judge(server, *, mode="listwise", **given):
    own = {"api": "openai", "model": "m", "base_url": server.url + "/v1", "retries": 0, "concurrency": 4, **PRICES}
    return {"model_type": "judge", "mode": mode, "judge": own, **given}


def of_judge(server, **given):
    return {**reward(j={"model": judge(server, **given), "shaping": "raw"}), "failure_window": 16}


def asked(server):
    """How often each request came."""
    return Counter(request["messages"][-1]["content"] for request in server.requests)


def calls(folder):
    rows = [json.loads(line) for line in (folder / "judge" / "j" / "calls.jsonl").read_text().splitlines()]
    return [row for row in rows if "ended" in row]


def test_a_judge_in_a_run_sees_whole_groups_and_pays_for_nothing_twice(tmp_path):
    with judge_server(ranks) as server:
        study = letter_study(tmp_path, name="whole", reward=of_judge(server, max_usd=1.0))
        start(study).run()
        rows = [row for row in lines(study) if row["kind"] == "train"]
        assert all(row["failure_rate/j"] == 0 for row in rows)
        assert any(row["return/j"] for row in rows)
        first = asked(server)
        assert max(first.values()) == 1
        assert all(len(set(shown := responses(text))) == len(shown) >= 2 for text in first)
        ended = calls(run_folder(study))
        assert len(ended) == len(server.requests)
        assert sum(row["usd"] for row in ended) == pytest.approx(EACH * len(server.requests))

        again = letter_study(tmp_path, name="cut", reward=of_judge(server, max_usd=1.0))
        before = len(server.requests)
        interrupted(again, "update", 3)
        start(again, resume=True).run()
        assert len(server.requests) - before == before  # the same requests as without the kill
        assert result(again) == result(study)


def test_an_endpoint_that_dies_stops_the_run_and_what_was_paid_for_is_kept(tmp_path):
    billed = Counter()

    def reply(text):
        billed[text] += 1
        return ranks(text)

    with judge_server(reply) as server:
        study = letter_study(tmp_path, reward=of_judge(server))
        server.script = [{}] * 6 + [(503, {})] * 1000
        with pytest.raises(TooManyFailuresError, match="'j'"):
            start(study).run()
        assert billed.total() == 6
        assert sum("usd" in row and not row["failure"] for row in calls(run_folder(study))) == 6
        server.script.clear()
        start(study, resume=True).run()
        assert set(billed.values()) == {1}
        assert billed.total() > 6
        ended = calls(run_folder(study))
        assert sum(row.get("usd", 0.0) for row in ended) == pytest.approx(EACH * billed.total())


@contextmanager
def endpoint(log, *, port=0, replies=0):
    """The process of `mortal_judge.py`, and its port."""
    command = [sys.executable, str(Path(__file__).with_name("mortal_judge.py")), str(port), str(replies), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_the_process_of_an_endpoint_that_dies_half_way_costs_nothing_twice(tmp_path):
    log = tmp_path / "sent"

    def study_at(port):
        own = {"api": "openai", "model": "m", "base_url": f"http://127.0.0.1:{port}/v1", "retries": 0, **PRICES}
        source = {"model": {"model_type": "judge", "mode": "listwise", "judge": own}, "shaping": "raw"}
        return letter_study(tmp_path, reward={**reward(j=source), "failure_window": 16})

    with endpoint(log, replies=7) as (process, port):
        study = study_at(port)
        with pytest.raises(TooManyFailuresError) as stopped:
            start(study).run()
        assert process.wait(20) == 9
    said = str(stopped.value)
    assert re.search(r"reward source 'j': .* go on with --resume", said)
    assert "\n" not in said
    with pytest.raises(TooManyFailuresError):  # still dead
        start(study, resume=True).run()
    assert len(log.read_text().splitlines()) == 7
    with endpoint(log, port=port):
        start(study, resume=True).run()
    sent = Counter(log.read_text().splitlines())
    assert max(sent.values()) == 1
    assert len(sent) > 7
    paid = [row for row in calls(run_folder(study)) if not row["failure"]]
    assert len(paid) == len(sent)
    assert sum(row["usd"] for row in paid) == pytest.approx(EACH * len(sent))


def test_a_budget_that_is_spent_can_be_raised_and_the_run_goes_on(tmp_path):
    with judge_server(ranks) as server:
        dear = 2048 * 100 / 1e6 + 0.03
        low, high = (letter_study(tmp_path, reward=of_judge(server, max_usd=usd)) for usd in (dear, 50.0))
        with pytest.raises(TooManyFailuresError, match="Raise max_usd and go on with --resume"):
            run(low)
        run(high, resume=True)
        assert max(asked(server).values()) == 1
        other = letter_study(tmp_path, reward=of_judge(server, max_usd=50.0, min_measured=0.9))
        with refuses("reward.sources.j.model.min_measured", "started with another configuration"):
            run(other, resume=True)


def test_a_spent_budget_stops_the_run(tmp_path):
    with judge_server(ranks) as server:
        dear = 2048 * 100 / 1e6 + 0.03  # a request is made only where its longest reply can be paid for
        study = letter_study(tmp_path, reward=of_judge(server, max_usd=dear))
        with pytest.raises(TooManyFailuresError, match="budget_spent"):
            start(study).run()
        assert 0 < len(server.requests) * EACH <= dear


# Groups.


class Numbered:
    """Scores are the place of an episode among those of its group in the same call; it remembers the calls."""

    def __init__(self, info=COMPARES):
        self.info, self.calls = info, []

    def score(self, episodes):
        self.calls.append([one.group for one in episodes])
        groups = [one.group for one in episodes]
        return [Score(total=float(groups[:i].count(g))) for i, g in enumerate(groups)]


def test_work_is_split_at_the_borders_of_groups():
    episodes = [Episode(id=str(i), task="?", texts=(str(i),), group=g) for i, g in enumerate("aaabbcdddd")]
    model = Numbered()
    sharded = ShardedModel(COMPARES, 3, lambda parts: [model.score(part) for part in parts])
    assert [one.total for one in sharded.score(episodes)] == [0, 1, 2, 0, 1, 0, 0, 1, 2, 3]
    assert model.calls == [list("aaabb"), ["c"], list("dddd")]
    mixed = [episodes[i] for i in (0, 3, 1, 4, 5, 2)]  # groups need not be neighbours
    assert [one.total for one in sharded.score(mixed)] == [0, 0, 1, 1, 0, 2]
    alone = Numbered(COMPARES.__class__("plain", (0.0, 9.0), granularity="total", modality="text"))
    plain = ShardedModel(alone.info, 3, lambda parts: [alone.score(part) for part in parts])
    plain.score(episodes)
    assert [len(call) for call in alone.calls] == [4, 3, 3]


def measured(folder, texts_per_prompt, model, **given):
    """Rewards of responses to the prompts of a rollout, two prompts with three responses each."""
    loop = start(letter_study(folder, data={"train_batch_size": 2, "n_samples": 3, "max_response_length": 3}))
    loop.collector.sampler.engine = Scripted(loop.learner.policy.tokenizer, lambda p, s, d: texts_per_prompt[p][s])
    rollout = loop.collector.collect(loop.learner.policy)
    loop.close()
    section = {"model": {"model_type": "text", "checkpoint_path": "x"}, "shaping": "raw", **given}
    return TextReward(PRM, model, TextSource.model_validate(section)).score(rollout)


def test_equal_answers_are_shared_within_a_group_and_not_between_groups(tmp_path):
    model = Says(lambda e: len(model.asked), COMPARES)
    measured(tmp_path, [["1", "1", "a"], ["1", "b", "b"]], model)
    assert [(one.group, one.texts) for one in model.asked] == [
        ("0", ("1",)), ("0", ("a",)), ("1", ("1",)), ("1", ("b",))
    ]  # fmt: skip
    assert all(one.meta["ground_truth"] == "1" for one in model.asked)


def test_a_group_of_equal_answers_has_nothing_to_compare_and_nothing_failed(tmp_path):
    say = {"a": 0.25, "b": 0.75}
    model = Says(lambda e: say.get(e.texts[0], Failure("no_comparison")), COMPARES)
    found = measured(tmp_path, [["1", "1", "1"], ["a", "b", "b"]], model)
    assert found.failed_B.tolist() == [True] * 3 + [False] * 3
    assert (found.failures, found.measured) == ((), 3)
    assert found.values.sum(axis=1).tolist() == [0, 0, 0, 0.25, 0.75, 0.75]
    model = Says(lambda e: Failure("late") if e.texts == ("a",) else 0.5, COMPARES)
    found = measured(tmp_path, [["1", "1", "1"], ["a", "b", "b"]], model)
    assert [(row, why.reason) for row, _, why in found.failures] == [(3, "late")]


def test_rubrics_and_true_answers_of_prompts_reach_the_judge(tmp_path):
    rows = [
        {"question": "aa", "answer": "1", "rubric": [{"criterion": "It is one.", "points": 2}]},
        {"question": "bb", "reference_answer": "2", "rubric": '["It is two."]'},
    ]
    path = tmp_path / "rows.jsonl"
    rows += [{**row, "question": row["question"] * 2} for row in rows]  # one of four is held out
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = read_prompts(str(path))
    assert prompts[0].extra_info["rubric"][0]["points"] == 2

    def judgement(text):
        return json.dumps({"c1": {"reason": "so", "choice": "yes"}})

    with judge_server(judgement) as server:
        model = judge(server, mode="criteria", reference=True)
        study = letter_study(
            tmp_path, reward=reward(j={"model": model, "shaping": "signed"}),
            data={"train_files": str(path), "val_size": 1, "train_batch_size": 3},
            runner={"total_steps": 12, "eval_every": 12},

        )  # fmt: skip
        start(study).run()
        texts = list(asked(server))
    assert any("It is one." in text and "\n1\n</reference" in text and "bb" not in text for text in texts)
    assert any("It is two." in text and "\n2\n</reference" in text for text in texts)


# Refused.


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"reward": {"shaping": "threshold"}}, "shaping"),
        ({"algorithm": {"adv_estimator": "remax"}}, "algorithm.adv_estimator"),
        ({"data": {"n_samples": 1}, "algorithm": {"adv_estimator": "gae"}}, "data.n_samples"),
    ],
    ids=str,
)
def test_what_needs_a_value_of_a_single_response_is_refused_of_a_judge_that_compares(given, key, tmp_path):
    shaping = given.pop("reward", {"shaping": "raw"})
    own = {"model_type": "judge", "judge": {"api": "openai", "model": "m"}}

    def study(mode):
        return letter_study(tmp_path, reward=reward(j={"model": {**own, "mode": mode}, **shaping}), **given)

    for mode in ("pairwise", "listwise"):
        with refuses(key):
            study(mode)
    study("scale")


def test_of_other_models_the_info_says_that_they_compare(tmp_path, monkeypatch):
    monkeypatch.setattr(build_text, "load_source_model", lambda settings: Numbered())
    section = {"model": {"model_type": "text", "checkpoint_path": "x"}}
    with refuses("reward.sources.j.shaping", "ranks compares.*not threshold"):
        start(letter_study(tmp_path, reward=reward(j={**section, "shaping": "threshold"})))
    with refuses("algorithm.adv_estimator", "ranks compares.*greedy response"):
        start(letter_study(
            tmp_path, reward=reward(j={**section, "shaping": "raw"}), algorithm={"adv_estimator": "remax"}
        ))  # fmt: skip


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"votes": 3}, "votes"),
        ({"scale": [5, 5], "mode": "scale"}, "scale"),
        ({"scale": [1, 5]}, "scale"),
        ({"tournament": "ring", "mode": "listwise"}, "tournament"),
        ({"max_usd": 3}, "max_usd"),
        ({"min_measured": 0}, "min_measured"),
        ({"rubrik": "x"}, "rubrik"),
    ],
    ids=str,
)
def test_settings_that_do_nothing_or_cannot_be_are_refused(given, key):
    own = {"judge": {"api": "openai", "model": "m"}, **given}
    with refuses(key):
        load_reward_model("judge", **own)


def test_a_judge_outside_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.toml").write_text('[[criteria]]\nname = "one"\ntext = "It says one."\n')
    with judge_server(lambda text: json.dumps({"one": {"reason": "", "choice": "yes"}})) as server:
        own = judge(server)["judge"]
        model = load_reward_model("judge", "r.toml", judge=own)
        assert model.score([Episode(id="1", task="?", texts=("1",))])[0].total == 1.0
        other = load_reward_model("judge", "r.toml", judge=own)  # the files of a process are shared
        assert other.score([Episode(id="3", task="?", texts=("1",))])[0].total == 1.0
        dearer = {**own, "usd_per_million_in": 11.0}
        with pytest.raises(DataError, match="in use by another"):
            load_reward_model("judge", "r.toml", judge=dearer)
        model.close()
        model.close()
        other.close()
        again = load_reward_model("judge", "r.toml", judge=own)
        assert again.score([Episode(id="2", task="?", texts=("1",))])[0].total == 1.0
        again.close()
    assert len(server.requests) == 1
    assert (tmp_path / "judge_cache" / "replies.jsonl").is_file()
    with pytest.raises(ConfigError, match="missing"):
        load_reward_model("judge", "missing.toml", judge=own)


def test_a_judge_reads_each_turn_of_an_agent_with_what_was_said_before_it(tmp_path):
    """A judge that gives 8 of 10 where the conversation before the response has a turn of the assistant."""

    def reply(text):
        before = text.partition("<response")[0]
        return json.dumps({"reason": "context", "score": 8 if "assistant" in before else 2})

    with judge_server(reply) as server:
        source = {"model": judge(server, mode="scale"), "shaping": "raw", "reward_mode": "per_turn"}
        study = letter_study(
            tmp_path, agent={"type": "agent_parts:Counting", "max_turns": 3}, reward=reward(j=source),
            algorithm={"adv_estimator": "turn_rloo"},
        )  # fmt: skip
        start(study).run()
        rows = lines(study, "conversations")
        paid = [[call["rewards"]["j"] for call in row["calls"]] for row in rows]
        assert {len(one) for one in paid} == {1, 2}
        assert all(one == [pytest.approx(0.2), pytest.approx(0.8)][: len(one)] for one in paid)
        assert max(asked(server).values()) == 1  # equal turns after equal conversations are judged once
