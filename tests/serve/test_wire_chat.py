"""`POST /v1/chat/completions` in the shape of RLinf's API reward worker."""

import pytest
from foreign import FRAME, VIDEO, Watching, b64, brightness, brightness_of_frames, failing, grey, picture, serving

from guerdon.models.explained_score import ExplainedScore
from guerdon.serve.wires.wire_chat import trend
from guerdon.types import Failure, Score
from tables import cases

TREND = (
    "You are currently performing the task: put the cube. on the plate. You are given two synchronized 5-frame videos "
    "from different camera views (main view and third-person view) of the same robot action window. Judge whether the "
    "action trend is positive, negative, or unclear. Answer with exactly one word: positive, negative, or unclear."
)


def body(frames, text="close the drawer", **more):
    urls = ["data:image/jpeg;base64," + b64(picture(frame, "JPEG", quality=95)) for frame in frames]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}], **more}


def saying(text):
    return Watching(VIDEO, lambda episode: ExplainedScore(Score(total=0.5), text))


@pytest.fixture(scope="module")
def served():
    found = {
        "video": Watching(VIDEO, brightness),
        "frame": Watching(FRAME, brightness_of_frames),
        "trend": saying('{"trend": "negative"}'),
        "prose": saying("It went well, I would say."),
        "silent": Watching(VIDEO, lambda episode: failing(("no_answer", "cut off"))),
    }
    with serving(found) as (client, models):
        yield client, models


def test_what_the_model_wrote_is_the_answer(served):
    client, models = served
    reply = client.post("/v1/chat/completions", json=body(grey([51, 102]), max_tokens=16, temperature=0.0))
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "<answer>40.0</answer>"}
    assert answer["guerdon"] == {"task": "close the drawer", "frames": 2, "views": 1, "score": pytest.approx(0.4)}
    assert models["video"].seen[-1].frames[:, 0, 0, 0].tolist() == [51, 102]


def test_a_model_that_writes_nothing_answers_with_its_number(served):
    client, _ = served
    reply = client.post("/v1/chat/completions", json=body(grey([0, 255]), model="frame"))
    assert float(reply.json()["choices"][0]["message"]["content"]) == 1.0


@pytest.mark.parametrize(
    ("levels", "word"), [((10, 200), "positive"), ((200, 10), "negative"), ((100, 105), "unclear")]
)
def test_a_trend_from_values_of_frames(served, levels, word):
    client, models = served
    main, other = grey([levels[0], 50, 60, 70, levels[1]]), grey([0, 0, 0, 0, 0])
    answer = client.post("/v1/chat/completions", json=body([*main, *other], TREND, model="frame")).json()
    assert answer["choices"][0]["message"]["content"] == word
    assert answer["guerdon"]["task"] == "put the cube. on the plate"
    assert (answer["guerdon"]["views"], answer["guerdon"]["frames"]) == (2, 5)
    assert models["frame"].seen[-1].frames[:, 0, 0, 0].tolist() == main[:, 0, 0, 0].tolist()


def test_a_trend_that_the_model_wrote(served):
    client, _ = served
    asked = body(grey([9, 99]), TREND, model="trend")
    assert client.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"] == "negative"


@pytest.mark.parametrize("name", ["video", "prose", "silent"])
def test_what_rlinf_would_read_as_zero_is_an_error(served, name):
    client, _ = served
    reply = client.post("/v1/chat/completions", json=body(grey([9, 99]), TREND, model=name))
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "failed_measurement")


def test_a_failure_is_an_error_without_choices(served):
    client, _ = served
    reply = client.post("/v1/chat/completions", json=body(grey([9]), model="silent"))
    assert reply.status_code == 422
    assert reply.json()["error"]["message"] == "no_answer: cut off"


@cases(
    ("text", "word"),
    [
        ("positive", "positive"), ("Positive.", "positive"), ('{"trend": "UNCLEAR"}', "unclear"),
        ("The trend is negative.", "negative"), ("I think negative", None),
        ("positive, no: negative", None), ("", None), ("{}", None), ("7", None),
        ('{"trend": "positive or negative"}', None), ("positively", None), ("[" * 100_000, None),
    ],
)  # fmt: skip
def test_one_trend_or_none(text, word):
    found = trend(ExplainedScore(Score(total=0.0), text), "stack the cups")
    assert isinstance(found, Failure) if word is None else found == word


PICTURE = "data:image/png;base64," + b64(picture(grey([9])[0]))


def part(url):
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    "url",
    [
        "DATA:IMAGE/PNG;BASE64,", "data:image/png;charset=utf-8;base64,", "data:image/jpeg;base64,", "data:;base64,",
        " data:image/*;name=a.png;base64,\n", "data:application/octet-stream;base64,",
    ],
)  # fmt: skip
def test_data_urls_of_any_usual_form(served, url):
    client, _ = served
    content = [part(url + PICTURE.partition(",")[2]), {"type": "text", "text": "t"}]
    reply = client.post(
        "/v1/chat/completions", json={"model": "video", "messages": [{"role": "user", "content": content}]}
    )
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "content",
    [
        "just text", [], [{"type": "text", "text": "t"}], [part(PICTURE)],
        [part(PICTURE), {"type": "text", "text": " "}],
        [part("http://127.0.0.1:1/a.png"), {"type": "text", "text": "t"}],
        [part("file:///etc/passwd"), {"type": "text", "text": "t"}],
        [part("data:text/html;base64,AAAA"), {"type": "text", "text": "t"}],
        [part("data:image/svg+xml;base64,AAAA"), {"type": "text", "text": "t"}],
        [part("data:image/png;base64,!!!!"), {"type": "text", "text": "t"}],
        [part("data:image/png," + PICTURE.partition(",")[2]), {"type": "text", "text": "t"}],
        [part("data:image/png;base64,AAAA"), {"type": "text", "text": "t"}],
        [part(PICTURE), part(7), {"type": "text", "text": "t"}],
        [part(PICTURE), {"type": "video_url", "video_url": {"url": "x"}}, {"type": "text", "text": "t"}],
        [part(PICTURE), {"type": "text", "text": "t"}, {"type": "text", "text": "u"}],
        [part(PICTURE), {"type": "text", "text": TREND}], [None],
        [part(PICTURE)] * 1025 + [{"type": "text", "text": "t"}],
    ],
)  # fmt: skip
def test_what_is_not_taken(served, content):
    client, _ = served
    reply = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    assert reply.status_code == 422


def test_one_user_turn_whole_answers(served):
    client, _ = served
    good = body(grey([9]))
    turn = good["messages"][0]
    for wrong in ({"messages": []}, {"messages": [turn, turn]}, {"messages": [{**turn, "role": "system"}]}):
        assert client.post("/v1/chat/completions", json={**good, **wrong}).status_code == 422
    for wrong in ({"stream": True}, {"n": 2}, {"views": 2}):
        assert client.post("/v1/chat/completions", json={**good, **wrong}).status_code == 422
    assert client.post("/v1/chat/completions", json={**good, "model": "nobody"}).status_code == 404
