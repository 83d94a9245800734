"""A task set of verifiers: products, each answered once; the answer is rewarded if it has the product."""

import json
from pathlib import Path

import verifiers.v1 as vf

ROWS = Path(__file__).parent / "products.jsonl"


class ProductData(vf.TaskData):
    """A question with its answer."""

    answer: str


class ProductTask(vf.Task[ProductData]):
    """The reward of an answer."""

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        """1 if the last reply has the product."""
        return float(self.data.answer in (trace.last_reply or ""))


class ProductTaskset(vf.Taskset[ProductTask, vf.TasksetConfig]):
    """A task for each row, named by its question."""

    def load(self) -> list[ProductTask]:
        """All tasks."""
        rows = map(json.loads, ROWS.read_text().splitlines())
        return [
            ProductTask(
                ProductData(name=row["question"], prompt=row["question"], answer=row["answer"]), self.config.task
            )
            for row in rows
        ]


__all__ = ["ProductTaskset"]
