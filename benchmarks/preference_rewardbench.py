"""RewardBench 0.1.4 for `preference_training.py`, in an environment of its own: it needs no guerdon.

    python benchmarks/preference_rewardbench.py --model=M --rows=rows.jsonl --out=FOLDER --batch=8

Its own command's function runs on the rows; the time is that of its loop over batches. Prints one line of JSON behind
a mark.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "measured: "


def main() -> None:
    """One measurement, printed on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "rows", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    if options.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})
    import torch
    from transformers import BatchEncoding

    torch.set_num_threads(1)
    on = BatchEncoding.to
    BatchEncoding.to = lambda self, device, **keys: on(self, "cpu", **keys)  # its pipeline names a GPU
    from rewardbench import rewardbench as command

    spent: dict[str, float] = {}

    def timed(batches: Any, **_: Any) -> Iterator[Any]:
        wall, core = time.perf_counter(), time.process_time()
        yield from batches
        spent.update(seconds=time.perf_counter() - wall, core_seconds=time.process_time() - core)

    command.tqdm = timed
    os.chdir(options.out)
    command.rewardbench(
        command.Args(
            dataset=options.rows, model=options.model, load_json=True, not_quantized=True, torch_dtype="float32",
            batch_size=options.batch, max_length=2048, output_dir="results/",
        )
    )  # fmt: skip
    written = next(Path(options.out).rglob("*_outputs.jsonl"), None) or Path(f"results/{options.model}_outputs.jsonl")
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    values = [value for row in rows for value in (row["scores_chosen"], row["scores_rejected"])]
    print(MARK + json.dumps({**spent, "pairs": len(rows), "values": values}))


if __name__ == "__main__":
    main()
