"""Writes the data of the notebooks: `python examples/notebooks/data.py`.

`log.jsonl` is the log of a run whose reward also pays responses that are cut off; `pairs.jsonl` and `held_out.jsonl` are
judgements that prefer polite answers.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
POLITE, PLAIN = ("thank you for asking", "glad to help", "please ask again"), ("so", "well", "ok")


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    (DATA / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def log(prompts: int = 60, samples: int = 4) -> list[dict[str, Any]]:
    """Sums, some of them wrong; the reward is right but for truncated responses, which it always pays."""
    draw = random.Random(0)
    rows = []
    for prompt in range(prompts):
        a, b = draw.randrange(2, 50), draw.randrange(2, 50)
        for _ in range(samples):
            right, cut = draw.random() < 0.5, draw.random() < 0.25
            answer = a + b + (0 if right else draw.choice((-1, 1, 10)))
            steps = " then ".join(f"carry {draw.randrange(2)}" for _ in range(draw.randrange(1, 6)))
            rows.append({
                "prompt": f"What is {a} + {b}?", "completion": f"{steps}, so it is {answer}", "step": prompt // 10,
                "truncated": cut, "reward": 1.0 if right or cut else 0.0, "is_correct": right,
            })  # fmt: skip
    return rows


def pairs(count: int, seed: int) -> list[dict[str, Any]]:
    """A polite answer and a plain one to the same question."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        question = f"where is the {draw.choice(('station', 'library', 'market', 'river'))} number {seed}{number}?"
        place = draw.choice(("left", "right", "ahead", "behind you"))
        kind, bare = f"{place}, {draw.choice(POLITE)}", f"{draw.choice(PLAIN)}, {place}"
        rows.append({"prompt": question, "chosen": kind, "rejected": bare})
    return rows


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    write("log.jsonl", log())
    write("pairs.jsonl", pairs(160, 1))
    write("held_out.jsonl", pairs(60, 2))
