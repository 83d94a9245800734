"""Writes the data of the notebooks: `python examples/notebooks/data.py [runs/quickstart]`.

`log.jsonl` is the log of a run whose reward also pays responses that are cut off; `pairs.jsonl` and `held_out.jsonl` are
judgements that prefer polite answers. Of a folder of `guerdon quickstart` a part is kept: six episodes without their
pictures, and what the curves need of the metrics.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from guerdon import EpisodeWriter, read_episodes

DATA = Path(__file__).parent / "data"
KEPT = ("kind", "step", "success", "return/success", "return/progress")
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


def rounded(value: Any) -> Any:
    """Four digits of a number are enough for a curve."""
    return round(value, 4) if isinstance(value, float) else value


def quickstart(folder: Path) -> None:
    """Keep a part of a finished quickstart, in folders of the same names."""
    kept = DATA / "quickstart"
    shutil.rmtree(kept, ignore_errors=True)
    episodes = list(read_episodes(folder / "data"))
    with EpisodeWriter(kept / "data", fps=30) as writer:
        for episode in (*episodes[:3], *episodes[-3:]):
            writer.add(replace(episode, frames=None))
    for path in sorted(folder.glob("runs/*/*/*/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lines = [json.dumps({key: rounded(row[key]) for key in KEPT if row.get(key) is not None}) for row in rows]
        copy = kept / path.relative_to(folder)
        copy.parent.mkdir(parents=True)
        copy.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    if len(sys.argv) > 1:
        quickstart(Path(sys.argv[1]))
    write("log.jsonl", log())
    write("pairs.jsonl", pairs(160, 1))
    write("held_out.jsonl", pairs(60, 2))
