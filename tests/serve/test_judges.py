"""Judges and preference models behind the server: groups in one request, single items, clients, settings."""

import asyncio
import json
import re
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from processes import start_server
from test_model_queue import running

from tables import refuses

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "labels"), str(HERE.parent / "models")]

from judge_server import judge_server  # noqa: E402
from tiny_text_policies import tiny_policy  # noqa: E402

from guerdon.errors import DataError  # noqa: E402
from guerdon.files.append_log import Cache, Ledger, shared  # noqa: E402
from guerdon.models.explained_score import JudgeOptions  # noqa: E402
from guerdon.models.text.sequence_classifier import PreferenceModel  # noqa: E402
from guerdon.models.text.text_card import TextModelCard  # noqa: E402
from guerdon.models.text.text_load import load_text_model  # noqa: E402
from guerdon.serve.backends import model_loader, refuse_all  # noqa: E402
from guerdon.serve.client import load_remote  # noqa: E402
from guerdon.serve.errors import BadRequest, Busy  # noqa: E402
from guerdon.serve.wires.client_wire import read_items  # noqa: E402
from guerdon.settings.remote import RemoteSettings  # noqa: E402
from guerdon.settings.serve import ServedModelSettings, ServeSettings  # noqa: E402
from guerdon.types import Episode, RewardInfo, Score  # noqa: E402

RUBRIC = '[[criteria]]\nname = "ones"\ntext = "It has a one."\n'


def responses(text):
    return re.findall(r"<response-\w+[^>]*>\n(.*?)\n</response", text, re.S)


def says(text):
    """Of one response whether it has a one; of several, how many ones each has."""
    shown = responses(text)
    if "- own: " in text:
        return json.dumps(
            {"own": {"reason": "r", "choice": "yes" if re.search(r"<reference-\w+>\nt\n", text) else "no"}}
        )
    if len(shown) == 1:
        return json.dumps({"ones": {"reason": "seen", "choice": "yes" if "1" in shown[0] else "no"}})
    return json.dumps({str(k + 1): {"reason": "counted", "score": one.count("1")} for k, one in enumerate(shown)})


def episode(prompt, text, **given):
    return Episode(id=f"{prompt}{text}", task=prompt, texts=(text,), **given)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with a rubric, a judge that ranks, and a preference model of three members; and its endpoint."""
    folder = tmp_path_factory.mktemp("judges")
    (folder / "rubric.toml").write_text(RUBRIC)
    members = dict.fromkeys(("m0", "m1", "m2"), 1.0)
    card = TextModelCard("preference", "conversation", "bradley_terry", outputs=members, combine="lower_bound")
    PreferenceModel(tiny_policy(), card).write(folder / "rm")
    with judge_server(says) as endpoint:
        judge = {"api": "openai", "model": "m", "base_url": endpoint.url + "/v1", "retries": 0}
        models = {
            "rubric": {"model_path": "rubric.toml", "options": {"judge": judge, "cache_dir": "a"}},
            "own": {"backend": "judge", "options": {"judge": judge, "reference": True, "cache_dir": "c"}},
            "ranks": {"backend": "judge", "options": {"judge": judge, "mode": "listwise", "cache_dir": "b"}},
            "rm": {"model_path": "rm", "options": {"device": "cpu"}},
        }
        server = start_server(folder, models=models)
        server.endpoint, server.folder = endpoint, folder
        yield server
        assert server.stop(60) == 0


def scores(server, model, *items):
    body = {"model": model, "items": [{"prompt": prompt, "completion": text} for prompt, text in items]}
    return server.post("/v1/rewards", body)


def test_a_rubric_is_served_and_single_items_are_fine(served):
    answer = scores(served, "rubric", ("p", "1")).json()
    assert [one["score"] for one in answer["results"]] == [1.0]
    assert answer["results"][0]["text"] == "ones: 1: seen"
    assert [one["score"] for one in scores(served, "rubric", ("p", "1"), ("q", "2")).json()["results"]] == [1.0, 0.0]
    assert "compares" not in served.get("/v1/rewards?model=rubric").json()["info"]


def test_the_rubric_and_the_true_answer_of_each_item(served):
    rubric = [{"name": "own", "text": "It agrees with the true answer."}]
    items = [{"prompt": "p", "completion": "x", "rubric": rubric, "label": "t"},
             {"prompt": "p", "completion": "y", "rubric": json.dumps(rubric)}, {"prompt": "p", "completion": "z"},
             {"prompt": "p", "completion": "z", "rubric": [{"weight": 1}]}]  # fmt: skip
    answer = served.post("/v1/rewards", {"model": "own", "items": items}).json()
    assert [one["score"] for one in answer["results"]] == [1.0, 0.0, None, None]
    assert [one["failure"]["reason"] for one in answer["results"][2:]] == ["no_rubric"] * 2
    wrong = {"model": "own", "items": [{"prompt": "p", "completion": "z", "rubric": 3}]}
    assert served.post("/v1/rewards", wrong).status_code == 422
    model = load_remote(RemoteSettings(endpoint=served.url, backend="own"))
    sent = [episode("q", "x", meta={"rubric": rubric, "ground_truth": "t"}), episode("q", "x", meta={"rubric": rubric})]
    assert [one.total for one in model.score(sent)] == [1.0, 0.0]
    model.close()


def test_a_judge_that_ranks_gets_the_responses_of_a_request_and_no_single_one(served):
    answer = scores(served, "ranks", ("p", "1"), ("p", "111"), ("q", "11"), ("p", "2")).json()
    assert [one["score"] for one in answer["results"]] == [0.1, 0.3, None, 0.0]
    assert answer["results"][2]["failure"]["reason"] == "no_comparison"
    refused = scores(served, "ranks", ("p", "1"))
    assert refused.status_code == 422
    assert "send all responses to a prompt in one request" in refused.json()["error"]["message"]
    assert scores(served, "ranks", ("p", "1"), ("q", "1")).status_code == 422
    assert served.get("/v1/rewards?model=ranks").json()["info"]["compares"] is True


def test_the_client_sends_each_group_in_a_request_of_its_own(served):
    model = load_remote(RemoteSettings(endpoint=served.url, backend="ranks", max_batch_items=2))
    assert model.info.compares
    groups = [("x", "1"), ("y", "1"), ("x", "11"), ("y", "1111"), ("x", "")]
    episodes = [episode("same", text or "-", group=group) for group, text in groups]
    before = len(served.endpoint.requests)
    assert [one.total for one in model.score(episodes)] == pytest.approx([0.1, 0.1, 0.2, 0.4, 0.0])
    asked = [responses(one["messages"][-1]["content"]) for one in served.endpoint.requests[before:]]
    assert sorted(map(sorted, asked)) == [["-", "1", "11"], ["1", "1111"]]
    alone = model.score([episode("z", "1", group="z")])[0]
    assert alone.failure.reason == "rejected"
    assert "compares responses to the same prompt" in alone.failure.detail
    model.close()


def test_a_preference_model_is_served(served):
    own = load_text_model(str(served.folder / "rm"), device="cpu").score([episode("2+2?", "4"), episode("2+2?", "5")])
    assert all(one.spread > 0 for one in own)
    answer = scores(served, "rm", ("2+2?", "4"), ("2+2?", "5")).json()
    np.testing.assert_allclose([one["score"] for one in answer["results"]], [one.total for one in own], atol=1e-6)
    np.testing.assert_allclose([one["spread"] for one in answer["results"]], [one.spread for one in own], atol=1e-6)
    assert [one["spread"] for one in scores(served, "rubric", ("p", "1")).json()["results"]] == [None]
    model = load_remote(RemoteSettings(endpoint=served.url, backend="rm"))
    remote = model.score([episode("2+2?", "4"), episode("2+2?", "5")])
    model.close()
    assert [one.spread for one in remote] == pytest.approx([one.spread for one in own], abs=1e-6)


@pytest.mark.parametrize("spread", ["wide", -1.0, float("nan"), [1]])
def test_a_spread_that_is_no_number_is_a_failure(spread):
    item = {"id": "0", "score": 0.5, "step_scores": None, "failure": None, "spread": spread}
    info = RewardInfo("rm", (-9.0, 9.0), granularity="total", modality="text", frames_needed=0)
    (found,) = read_items({"results": [item]}, [episode("p", "1")], info, ids=["0"])
    assert found.score.failure.reason == "bad_reply"
    (found,) = read_items({"results": [item | {"spread": 0}]}, [episode("p", "1")], info, ids=["0"])
    assert (found.score.total, found.score.spread) == (0.5, 0)


def template(prompt, text=""):
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{text}"


def get_reward(server, model, *items):
    """OpenRLHF's request (OpenRLHF/OpenRLHF 3c3be62, openrlhf/utils: query, prompts, labels)."""
    body = {"query": [template(*item) + "<|im_end|>\n" for item in items],
            "prompts": [template(prompt) for prompt, _ in items], "labels": ["?"] * len(items)}  # fmt: skip
    return server.post(f"/get_reward?model={model}", body)


def classify(server, model, *items):
    """verl's request (volcengine/verl b178a3c, compute_score_disrm), with several texts where it sends one."""
    given = {"model": model, "use_activation": False}
    return server.post("/classify", {**given, "input": [template(*item) + "<|im_end|>\n" for item in items]})


def test_clients_of_openrlhf_and_verl_get_values_of_judges_and_preference_models(served):
    for model, items in (
        ("rubric", [("p", "1"), ("q", "2")]),
        ("ranks", [("p", "1"), ("q", "11"), ("p", "111"), ("q", "2")]),
        ("rm", [("2+2?", "4"), ("2+2?", "5")]),
    ):
        own = [one["score"] for one in scores(served, model, *items).json()["results"]]
        assert None not in own
        answer = get_reward(served, model, *items)
        assert answer.json() == {"rewards": own, "scores": own, "extra_logs": {"failed": [0.0] * len(own)}}
        answer = classify(served, model, *items).json()
        assert [one["probs"] for one in answer["data"]] == [[value] for value in own]
        assert "spread" not in json.dumps(answer)


def test_clients_that_send_single_responses_to_a_judge_that_compares_get_one_line(served):
    one_by_one = [
        get_reward(served, "ranks", ("p", "1")),
        classify(served, "ranks", ("p", "1")),
        served.post("/rm?model=ranks", {"prompt": "p", "response": "1", "label": "1"}),
    ]
    for answer in one_by_one:
        assert answer.status_code == 422
        said = answer.json()["error"]["message"]
        assert "send all responses to a prompt in one request" in said
        assert "\n" not in said


def test_a_judge_is_loaded_again_with_a_changed_rubric_and_pays_for_nothing_twice(served):
    path, before = served.folder / "rubric.toml", len(served.endpoint.requests)
    asked = ("reload", "1")
    assert scores(served, "rubric", asked).json()["results"][0]["score"] == 1.0
    assert served.post("/v1/reload", {"model": "rubric"}).status_code == 200
    assert scores(served, "rubric", asked).json()["results"][0]["score"] == 1.0
    assert len(served.endpoint.requests) == before + 1, "its reply is kept"
    path.write_text(RUBRIC + "weight = -1.0\n")  # the same request, another value
    assert served.post("/v1/reload", {"model": "rubric"}).status_code == 200
    assert scores(served, "rubric", asked).json()["results"][0]["score"] == 0.0
    assert len(served.endpoint.requests) == before + 1
    path.write_text("criteria = 3")
    refused = served.post("/v1/reload", {"model": "rubric"})
    assert refused.status_code == 500
    assert "the old one stays" in refused.json()["error"]["message"]
    assert scores(served, "rubric", ("more", "1")).json()["results"][0]["score"] == 0.0
    path.write_text(RUBRIC)
    assert served.post("/v1/reload", {"model": "rubric"}).status_code == 200
    assert scores(served, "rubric", asked).json()["results"][0]["score"] == 1.0
    assert served.post("/v1/reload", {"model": "ranks"}).status_code == 200
    assert served.post("/v1/reload", {"model": "rm"}).status_code == 200


def test_files_of_replies_are_shared_within_a_process_and_closed_by_the_last(tmp_path):
    path = tmp_path / "replies.jsonl"
    with shared(Cache, path) as one:
        with shared(Cache, path) as other:
            assert one is other
            other.put({"a": 1})
        assert one.get("a") == 1
        one.put({"b": 2})
        with pytest.raises(DataError, match="in use"):
            Cache(path)
    with closing(Cache(path)) as again:
        assert (again.get("a"), again.get("b")) == (1, 2)
    prices = {"prices": (1.0, 1.0)}
    other_prices = shared(Ledger, tmp_path / "calls.jsonl", prices=(2.0, 2.0))
    with shared(Ledger, tmp_path / "calls.jsonl", **prices), pytest.raises(DataError, match="in use"), other_prices:
        pass
    with closing(Ledger(tmp_path / "calls.jsonl", **prices)) as ledger:
        assert ledger.spent == 0


class Ranks:
    """The place of each episode in its call; raises where it is told to."""

    info = RewardInfo("ranks", (0.0, 9.0), granularity="total", modality="text", frames_needed=0, compares=True)

    def __init__(self):
        self.calls = []

    def score(self, episodes):
        self.calls.append(len(episodes))
        if any("poison" in one.texts for one in episodes):
            raise RuntimeError("poisoned")
        return [Score(total=float(place)) for place in range(len(episodes))]


def test_requests_of_a_model_that_compares_are_neither_joined_nor_cut():
    model = Ranks()

    async def work():
        async with running(model, max_items=2, cache_items=64, queue_items=5) as models:
            queue = models.get("toy0")
            three = [episode("p", text) for text in "abc"]
            found = await asyncio.gather(*(queue.judge(part, JudgeOptions()) for part in (three, three[:2])))
            again = await queue.judge(three[1:], JudgeOptions())
            poisoned = await queue.judge([*three[:2], episode("p", "poison")], JudgeOptions())
            with pytest.raises(BadRequest, match="compares"):
                await queue.judge(three[:1], JudgeOptions())
            with pytest.raises(Busy):
                await queue.judge(three * 2, JudgeOptions())
            return found, again, poisoned

    found, again, poisoned = asyncio.run(work())
    assert [[one.score.total for one in part] for part in found] == [[0, 1, 2], [0, 1]]
    assert [one.score.total for one in again] == [0, 1]  # not what is remembered of another request
    assert [one.score.failure.reason for one in poisoned] == ["model_error"] * 3
    assert model.calls == [3, 2, 2, 3]


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"backend": "judge", "processes": 2}, "models.j.processes", "copies would do nothing"),
        ({"backend": "judge", "update_dir": "u"}, "models.j.update_dir", "cannot learn"),
        ({"backend": "judge", "temperature": 0.5}, "models.j.temperature", ""),
        ({"backend": "judge", "options": {"mode": "rank"}}, "models.j.options.mode", ""),
        ({"backend": "judge", "options": {"rubrik": "x"}}, "models.j.options", "no rubrik"),
        ({"model_path": "r.yaml", "options": {"adapter": "trl"}}, "models.j.options", ""),
        ({"model_path": "bad.toml"}, "title", "bad.toml"),
        ({"model_path": "none.toml"}, "model_path", ""),
    ],
    ids=str,
)
def test_what_a_served_judge_does_not_have_is_refused_before_the_start(given, key, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text("criteria: [{name: a, text: b}]")
    (tmp_path / "bad.toml").write_text('title = "a rubric"')
    with refuses(key) as refused:
        refuse_all(ServeSettings(models={"j": ServedModelSettings(**given)}))
    assert message in str(refused.value)
    fine = {"model_path": "r.yaml", "options": {"judge": {"api": "openai", "model": "m"}}}
    refuse_all(ServeSettings(models={"j": ServedModelSettings(**fine)}))
    assert model_loader("j", ServedModelSettings(**fine)).lanes == 1
