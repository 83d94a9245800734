"""What the server answers: judgements, tokens, foreign pages, hostile requests and texts, a full disk, pictures."""

import io
import json

import numpy as np
import pytest
from judged import episode, episodes_of, judge_all, judging, lines, log_of, pairs_of, steps_of
from PIL import Image

from guerdon import EpisodeWriter
from guerdon.annotate.judgements import HELD_S
from guerdon.errors import DataError

HOSTILE = [
    "<script>alert(1)</script>",
    "</textarea><img src=x onerror=alert(1)>",
    "\ud800",
    "a\u202eb",
    "\x00",
    "{{7*7}}",
]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return log_of(tmp_path_factory.mktemp("data") / "log.jsonl")


def test_a_judgement_its_repetition_and_taking_it_back(log, tmp_path):
    with judging(log, tmp_path, overlap=0.0) as (session, people):
        person = people[""]
        first, second = person.next(2)
        content = {"key": "page-0001", "item": first["item"], "judgement": "right", "note": "clear", "seconds": 1.5}
        for _ in range(2):
            answer = person.request("POST", "/api/judgements", json=content)
            assert (answer.status_code, answer.json()) == (200, {"stored": first["item"], "done": 1, "left": 39})
        other = person.request("POST", "/api/judgements", json={**content, "judgement": "wrong"})
        assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
        again = person.post(item=first["item"], judgement="wrong")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "already_judged")
        never = next(ask.id for ask in session.judgements.asks if ask.id not in (first["item"], second["item"]))
        assert person.post(item=never, judgement="right").json()["error"]["code"] == "not_handed"
        assert person.post(item="nothing", judgement="right").status_code == 404
        undone = person.post(undo=None).json()
        assert undone["undone"] == {
            **first,
            "note": "clear",
            "judgement": "right",
            "row": None,
            "step": None,
            "scores": None,
        }
        assert person.next(1)[0]["item"] == first["item"]
        assert person.post(undo=None).json()["undone"] is None
        assert person.post(undo="page-0001").status_code == 404
    rows = [json.loads(line) for line in (tmp_path / "judgements.jsonl").read_text().splitlines()]
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"judgement": "rihgt"}, "did you mean 'right'"),
        ({"judgement": "good"}, "there are right, wrong, cannot_tell, skip"),
        ({"judgement": "right", "sceonds": 1}, "did you mean 'seconds'"),
        ({"judgement": "right", "seconds": -1}, "seconds must be a number"),
        ({"judgement": "right", "row": 1}, "this judgement has no row"),
        ({"judgement": "right", "note": "x" * 4001}, "at most 4000 characters"),
        ({"judgement": "right", "key": "a b"}, "key must be 8 to 80"),
        ({"undo": 3}, "undo must be the key"),
    ],
)
def test_a_wrong_field_is_refused(content, said, log, tmp_path):
    with judging(log, tmp_path) as (_, people):
        item = {} if "undo" in content else {"item": people[""].next(1)[0]["item"]}
        answer = people[""].request("POST", "/api/judgements", json={"key": "page-0001", **item, **content})
        assert answer.status_code == 422
        assert said in answer.json()["error"]["message"]


def test_bodies_counts_routes_and_headers(log, tmp_path):
    with judging(log, tmp_path) as (_, people):
        person = people[""]
        page = person.get("/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        assert b"<script>" not in page.content
        for path, status in (("/api/next?count=0", 422), ("/api/next?count=99", 422), ("/nothing", 404)):
            answer = person.get(path)
            assert (answer.status_code, answer.headers["x-content-type-options"]) == (status, "nosniff")
        large = person.request("POST", "/api/judgements", content=b" " * 65_537)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
        for body in (b"{", b"[]", b"\xff"):
            assert person.request("POST", "/api/judgements", content=body).status_code == 422
        assert person.request("DELETE", "/api/next").status_code == 405


def test_a_guideline_and_the_reference_are_shown_and_each_row_says_so(tmp_path):
    data = lines(tmp_path / "log.jsonl", [{"prompt": "1 + 1?", "response": "2", "reward": 1.0, "ground_truth": "two"}])
    (tmp_path / "guideline.txt").write_text("Judge the <b>last</b> line.")
    with judging(data, tmp_path / "plain") as (_, people):
        assert "two" not in json.dumps(people[""].next(1))
    with judging(data, tmp_path / "out", reference=True, guideline=tmp_path / "guideline.txt") as (_, people):
        setup, (one,) = people[""].get("/api/setup").json(), people[""].next(1)
        people[""].judge(one["item"], "right")
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "judgements.jsonl").read_text().splitlines()]
    assert (one["show"]["reference"], row["reference_shown"], setup["shows_reference"]) == ("two", True, True)
    assert setup["guideline"] == {"text": "Judge the <b>last</b> line.", "hash": row["guideline"]}


def test_only_pages_of_this_machine_ask_without_a_token(log, tmp_path):
    with judging(log, tmp_path) as (_, people):
        for path in ("/", "/api/next", "/api/summary"):
            foreign = people[""].get(path, headers={"host": "evil.example"})
            assert foreign.status_code == 403, path
            assert people[""].get(path, headers={"origin": "http://evil.example"}).status_code == 403
            assert people[""].get(path, headers={"host": "localhost:18081"}).status_code == 200


def test_each_person_has_a_token_that_stays(log, tmp_path):
    with judging(log, tmp_path, people=("ann", "bo"), overlap=1.0) as (session, people):
        tokens, ann = dict(session.tokens), people["ann"]
        assert ann.get("/api/setup").json()["person"] == "ann"
        for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
            assert ann.get("/api/next", headers=headers).status_code == 401
        assert ann.get("/", headers={"Authorization": ""}).status_code == 200
        item = ann.next(1)[0]["item"]
        ann.judge(item, "right")
        assert people["bo"].post(item=item, judgement="right").json()["error"]["code"] == "not_handed"
    assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0
    with judging(log, tmp_path, people=("ann", "bo", "cy")) as (session, people):
        assert {token: session.tokens[token] for token in tokens} == tokens
        assert len(session.tokens) == 3


def test_nobody_sees_what_others_said(log, tmp_path):
    with judging(log, tmp_path, people=("ann", "bo"), overlap=1.0) as (_, people):
        judge_all(people["ann"], lambda one: {"judgement": "wrong", "note": "a secret note"})
        sent = json.dumps(people["bo"].next(50)) + people["bo"].get("/api/summary").text
        assert "secret" not in sent
        assert "wrong" not in sent
        assert not any(one["title"] == "Agreement" for one in people["bo"].get("/api/summary").json()["tables"])


def test_an_absent_person_blocks_nobody(log, tmp_path):
    with judging(log, tmp_path, people=("ann", "bo"), overlap=0.0) as (session, people):
        held = [one["item"] for one in people["ann"].next(50)]
        assert len(held) == 40
        assert people["bo"].next(50) == []
        session.judgements.clock = lambda: 1e12
        assert len(people["bo"].next(50)) == 40
        assert HELD_S == 600


def test_a_full_disk_keeps_what_was_there(log, tmp_path, monkeypatch):
    with judging(log, tmp_path) as (session, people):
        (one,) = people[""].next(1)

        def full(row):
            raise DataError("No space left on device")

        monkeypatch.setattr(session.judgements._log, "append", full)
        content = {"key": "page-0001", "item": one["item"], "judgement": "right"}
        answer = people[""].request("POST", "/api/judgements", json=content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
        monkeypatch.undo()
        assert people[""].request("POST", "/api/judgements", json=content).json()["done"] == 1


def hostile_data(kind, path):
    text = " ".join(HOSTILE)
    if kind == "pairs":
        return lines(path, [{"prompt": text, "chosen": f"1 {text}", "rejected": f"2 {text}"}] * 2)
    if kind == "steps":
        row = {"id": "1", "generator": "g", "problem": text, "steps": [text, text], "label": -1}
        return lines(path, [{**row, "final_answer_correct": True}] * 2)
    return lines(path, [{"prompt": text, "response": text, "reward": 1.0, "ground_truth": text}] * 2)


@pytest.mark.parametrize("kind", ["responses", "pairs", "steps"])
def test_hostile_texts_are_sent_as_they_are(kind, tmp_path):
    with judging(hostile_data(kind, tmp_path / "d.jsonl"), tmp_path / "out") as (_, people):
        (one,) = people[""].next(1)
        show, text = one["show"], " ".join(HOSTILE)
        said = {"responses": ["response"], "pairs": ["first", "second"], "steps": ["steps"]}[kind]
        assert show["prompt"] == text
        for name in said:
            assert text.strip() in "".join(show[name])
        note = people[""].judge(one["item"], "cannot_tell", note=text)
        assert note["done"] == 1


def test_pairs_are_swapped_and_judged_as_they_are_shown(tmp_path):
    with judging(pairs_of(tmp_path / "pairs.jsonl"), tmp_path / "out", overlap=0.0) as (session, people):
        seen = judge_all(people[""], lambda one: "first" if one["show"]["first"].startswith("Good") else "second")
        values = [those[0].value for those in session.judgements.given]
        assert {one["show"]["first"][:4] for one in seen} == {"Good", "Bad "}
        assert values == [1.0] * 12
    rows = [json.loads(line) for line in (tmp_path / "out" / "judgements.jsonl").read_text().splitlines()]
    assert {row["swapped"] for row in rows} == {True, False}


def test_steps_need_the_first_wrong_one(tmp_path):
    with judging(steps_of(tmp_path / "bench.jsonl"), tmp_path / "out", overlap=0.0) as (session, people):
        (one,) = people[""].next(1)
        for step, status in ((None, 422), (3, 422), (-1, 422), (True, 422), (1, 200)):
            assert people[""].post(item=one["item"], judgement="wrong", step=step).status_code == status
        assert session.judgements.given[0][0].value == 1.0


def shades(rows):
    """Frames whose brightness is their row."""
    return np.stack([np.full((24, 32, 3), 4 * row, np.uint8) for row in range(rows)])


@pytest.mark.parametrize("video", [False, True], ids=["png", "mp4"])
def test_pictures_are_the_rows_that_training_reads(video, tmp_path):
    rows = 60
    fields = {"frames": shades(rows), "views": {"wrist": shades(rows)[:, ::-1]}}
    with EpisodeWriter(tmp_path / "data", fps=30, camera="front", video=video) as writer:
        writer.add(episode(0, rows, **fields))
        writer.add(episode(1, rows, **fields))
    with judging(tmp_path / "data", tmp_path / "out", overlap=0.0) as (_, people):
        person = people[""]
        one = person.next(2)[1]
        assert one["show"]["cameras"] == ["front", "wrist"]
        for row in (41, 0, 59, 12):
            for camera in one["show"]["cameras"]:
                answer = person.get(f"/api/frames/{one['item']}/{camera}/{row}")
                assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
                shown = np.asarray(Image.open(io.BytesIO(answer.content))).mean()
                assert abs(shown - 4 * row) < 2, (row, camera)
        for path in (f"{one['item']}/front/60", f"{one['item']}/back/0", "nothing/front/0"):
            assert person.get(f"/api/frames/{path}").status_code == 404
        assert person.post(item=one["item"], judgement="success", row=60).status_code == 422
        assert person.judge(one["item"], "success", row=59)["done"] == 1


def test_a_film_that_cannot_be_decoded_says_why_and_can_be_discarded(tmp_path):
    root = episodes_of(tmp_path / "data", 1, video=True)
    (film,) = root.rglob("*.mp4")
    film.write_bytes(film.read_bytes()[:200])
    with judging(root, tmp_path / "out", overlap=0.0) as (_, people):
        (one,) = people[""].next(1)
        assert one["show"]["problem"] is None
        answer = people[""].get(f"/api/frames/{one['item']}/front/0")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "undecodable")
        assert "cannot be decoded" in answer.json()["error"]["message"]
        assert "cannot be decoded" in people[""].next(1)[0]["show"]["problem"]
        assert people[""].judge(one["item"], "discard")["done"] == 1
