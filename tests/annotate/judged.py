"""Small data of every kind, and people who judge it: for the tests of this folder."""

import asyncio
import json
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import numpy as np

from guerdon import EpisodeWriter
from guerdon.annotate.app import AnnotateLoad, build_app
from guerdon.annotate.session import AnnotateSettings, open_session
from guerdon.types import Episode


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def log_of(path, n=40):
    """A log with a reward between 0 and 1, a second one, and a truth."""
    random = np.random.default_rng(0)
    rows = []
    for k in range(n):
        truth = int(random.random() < 0.5)
        reward = float(np.clip(0.25 + 0.5 * truth + 0.2 * random.normal(), 0, 1))
        rows.append(
            {"prompt": f"What is {k // 4} + {k // 4}?", "response": f"It is {2 * (k // 4) + 1 - truth}, number {k}.",
             "reward": round(reward, 3), "judge_score": float(random.random()), "truth": truth, "step": k // 8}
        )  # fmt: skip
    return lines(path, rows)


def pairs_of(path, n=12):
    rows = [
        {"prompt": f"Question {k}?", "chosen": f"Good answer {k}.", "rejected": f"Bad answer {k}."} for k in range(n)
    ]
    return lines(path, rows)


def steps_of(path, n=6):
    rows = [
        {"id": f"s{k}", "generator": "g", "problem": f"Sum {k}?", "steps": [f"Take {k}.", f"Add {k}.", "Done."],
         "final_answer_correct": k % 2 == 0, "label": -1 if k % 2 == 0 else 1}
        for k in range(n)
    ]  # fmt: skip
    return lines(path, rows)


def episode(number, length=6, **changes):
    random = np.random.default_rng(number)
    success = np.arange(length) >= (length - 2 if number % 2 else length)
    fields = {
        "id": f"e{number}", "task": "close the window", "outcome": bool(number % 2), "success": success,
        "frames": random.integers(0, 256, size=(length, 16, 16, 3), dtype=np.uint8),
        "states": random.normal(size=(length, 3)).astype(np.float32),
        "actions": np.concatenate([np.zeros((1, 2)), random.normal(size=(length - 1, 2))]).astype(np.float32),
        "rewards": np.zeros(length, np.float32),
    }  # fmt: skip
    return Episode(**(fields | changes))


def episodes_of(root, n=4, *, video=False, **changes):
    with EpisodeWriter(root, fps=10, camera="front", video=video) as writer:
        for number in range(n):
            writer.add(episode(number, **changes))
    return root


class Person:
    """Who asks the application of a session in this process."""

    def __init__(self, app, token=None):
        self.app, self.headers = app, {"Authorization": f"Bearer {token}"} if token else {}
        self.keys = 0

    def request(self, method, path, **more):
        async def ask():
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, headers=self.headers | more.pop("headers", {}), **more)

        return asyncio.run(ask())

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def next(self, count=1):
        answer = self.get("/api/next", params={"count": count})
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]

    def post(self, **content):
        self.keys += 1
        body = json.dumps({"key": f"key-{id(self)}-{self.keys}", **content})
        return self.request("POST", "/api/judgements", content=body)

    def judge(self, item, word, **more):
        answer = self.post(item=item, judgement=word, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def judging(data, out, **wanted):
    """A session and its people, the only one with an empty name."""
    with open_session(AnnotateSettings(str(data), Path(out), **wanted)) as session:
        app = build_app(session, AnnotateLoad(), host="127.0.0.1", tokens=session.tokens)
        people = {name: Person(app, token) for token, name in session.tokens.items()} or {"": Person(app)}
        yield session, people


def judge_all(person, word_of, most=1000):
    """Judge until nothing is left; `word_of` gets what the server sends and returns a word or fields of a judgement."""
    seen = []
    while (items := person.next(5)) and len(seen) < most:
        for one in items:
            said = word_of(one)
            said = {"judgement": said} if isinstance(said, str) else said
            answer = person.post(item=one["item"], **said)
            assert answer.status_code == 200, answer.text
            seen.append(one)
    return seen
