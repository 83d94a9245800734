"""Resets and steps every LIBERO task and writes the table of docs/libero.md.

    python docs/make_libero.py                      all 130 tasks, a process for each suite (20 minutes on a core)
    python docs/make_libero.py libero_goal 3        one task, printed

Each row holds what must not change silently: the hash of the task's initial states, the hash of the simulator after
initial state 0 has settled (protocol `lerobot`), the hash of the picture there; and the speed.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).with_name("libero.md")
BEGIN, END = "<!-- tasks: written by make_libero.py -->\n", "<!-- end of tasks -->\n"
HEAD = (
    "| suite | task | in words | initial states | their hash | start | picture | steps/s | pictures/s |\n"
    "| --- | ---: | --- | ---: | --- | --- | --- | ---: | ---: |\n"
)
STEPS, PICTURES = 40, 10


def digest(array: np.ndarray) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def measure(suite: str, number: int) -> dict[str, Any]:
    """The row of a task. Speeds are per core-second of this process."""
    from guerdon.worlds.libero import LiberoEye, LiberoVectorEnv
    from guerdon.worlds.libero_files import init_states, libero_task
    from guerdon.worlds.mujoco_state import physics_of

    task = libero_task(suite, str(number))
    states = init_states(task)
    env = LiberoVectorEnv([task])
    eye = LiberoEye(env)
    env.reset(seed=[0])
    start = digest(physics_of(env.model_of(0)[1], env._copies[0].data))
    picture = eye.render([eye.look(0)])[0]
    rng = np.random.default_rng(0)
    env.step(np.zeros((1, 7)))
    began = time.process_time()
    for _ in range(STEPS):
        observations, *_ = env.step(rng.uniform(-1, 1, (1, 7)))
    steps = STEPS / (time.process_time() - began)
    assert np.isfinite(observations).all()
    began = time.process_time()
    eye.render([eye.look(0)] * PICTURES)
    pictures = PICTURES / (time.process_time() - began)
    eye.close()
    env.close()
    return {
        "suite": suite, "task": number, "words": task.language, "count": len(states), "states": digest(states),
        "start": start, "picture": digest(picture), "steps": round(steps), "pictures": round(pictures),
        "spread": int(picture.std()),
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    names = ("suite", "task", "words", "count", "states", "start", "picture", "steps", "pictures")
    return "| " + " | ".join(str(row[name]) for name in names) + " |\n"


def rows_of_page() -> list[dict[str, Any]]:
    """The rows of docs/libero.md."""
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    names = ("suite", "task", "words", "count", "states", "start", "picture", "steps", "pictures")
    cells = [[cell.strip() for cell in row.strip("|\n ").split("|")] for row in table.removeprefix(HEAD).splitlines()]
    return [dict(zip(names, row, strict=True)) for row in cells]


def main() -> None:
    """Measure one task, those of a suite, or all."""
    import gc

    from guerdon.settings.world import SUITES

    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))  # noqa: T201
        return
    if len(sys.argv) == 2:
        for number in range(SUITES[sys.argv[1]]):
            print(json.dumps(measure(sys.argv[1], number)), flush=True)  # noqa: T201
            gc.collect()
        return
    found: list[str] = []
    for suite in SUITES:
        command = [sys.executable, __file__, suite]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
        found += [line(json.loads(row)) for row in done.stdout.splitlines() if row.startswith("{")]
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + HEAD + "".join(found) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
