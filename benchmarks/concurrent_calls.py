"""64 calls with one solution each, made at a time from 64 threads, against one call with all 64.

The best batch is the fastest call with all of them, over the numbers of solutions per forward pass; the calls from
threads use the same number. `asyncio` is the calls from coroutines through `in_thread`, as the integrations make them.
Sides alternate, in one process on one core; ratios are taken repetition by repetition. All sides give the same values,
which is checked.

    python benchmarks/concurrent_calls.py --core=1 --repetitions=5
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from harness import Stopwatch, machine_line, pin, ratios, spread, table
from prm_sides import SIZES, episodes, make_scorer

CALLS = 64
MICRO = (8, 16, 32, 64)
KINDS = ("stepwise", "outcome", "verdict", "implicit")


def make_model(kind: str, folder: str) -> Any:
    """A reward model of random weights on a language model; an implicit one has an adapter."""
    from guerdon.models.text.text_card import TextModelCard
    from guerdon.models.text.text_load import model_class
    from guerdon.models.text.verdict import FORM
    from guerdon.policies.language.text_files import load_policy
    from guerdon.settings.text_policy import LoraSettings, TextPolicySettings

    lora = LoraSettings(r=8) if kind == "implicit" else None
    settings = TextPolicySettings(path=folder, bf16=False, use_remove_padding=True, lora=lora)
    card = TextModelCard(kind, FORM if kind == "verdict" else "chat", "ce" if kind == "implicit" else "bce", bf16=False,
                         **({"beta": 0.05, "read": "cumulative"} if kind == "implicit" else {}))  # fmt: skip
    policy = load_policy(settings, seed=0)
    return model_class(kind)(policy, card)


def sides_of(model: Any, items: Sequence[Any]) -> dict[str, Callable[[], list[Any]]]:
    """What is timed, by name."""
    from guerdon.processes.call_queue import in_thread

    def alone(item: Any) -> Any:
        return model.score([item])[0]

    async def gathered() -> list[Any]:
        return list(await asyncio.gather(*(in_thread(alone, item) for item in items)))

    def threads() -> list[Any]:
        return list(pool.map(alone, items))

    pool = ThreadPoolExecutor(CALLS)
    return {
        "one call": lambda: model.score(items),
        "threads": threads,
        "asyncio": lambda: asyncio.run(gathered()),
        "one by one": lambda: [alone(item) for item in items],
    }


def timed(call: Callable[[], list[Any]]) -> tuple[float, float, list[Any]]:
    """Seconds, core-seconds, and what it gives."""
    watch = Stopwatch()
    scores = call()
    spent = watch.read()
    return spent["seconds"], spent["core_seconds"], scores


def compare(model: Any, repetitions: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds and core-seconds of each side, with the best number of solutions per forward pass."""
    items = episodes(CALLS)
    sides = sides_of(model, items)
    reference = [np.atleast_1d(s.total if s.steps is None else s.steps) for s in sides["one by one"]()]
    cost = {}
    for micro in MICRO:
        model.micro_batch_size = micro
        cost[micro] = min(timed(sides["one call"])[1] for _ in range(2))
    model.micro_batch_size = min(cost, key=lambda micro: cost[micro])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, call in sides.items():
            seconds, core, scores = timed(call)
            for score, wanted in zip(scores, reference, strict=True):
                values = np.atleast_1d(score.total if score.steps is None else score.steps)
                np.testing.assert_allclose(values, wanted, atol=1e-5)
            found[name].append((seconds, core))
    return found


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--sizes", default="0.4M,3M")
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    pin([options.core])
    import torch

    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes.split(","):
            path = make_scorer(Path(folder) / size, SIZES[size])
            for kind in options.kinds.split(","):
                found = compare(make_model(kind, path), options.repetitions)
                base = found["one call"]
                row = [f"{kind}, {size}", spread([1000 * s for s, _ in base], 0)]
                for name in ("threads", "asyncio", "one by one"):
                    row += [
                        spread(ratios([t[clock] for t in found[name]], [t[clock] for t in base])) for clock in (0, 1)
                    ]
                rows.append(row)
                print(row, flush=True)
    print(table(
        ["", "one call of 64, ms", "64 threads", "the same, core-seconds", "64 coroutines", "the same, core-seconds",
         "one by one", "the same, core-seconds"], rows,
    ))  # fmt: skip
    print()
    print(machine_line(["torch", "transformers"]))


if __name__ == "__main__":
    main()
