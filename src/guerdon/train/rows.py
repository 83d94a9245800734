"""A data set of indices, for trainers that make their batches themselves. This module does not know of what.

Trainer(train_dataset=Rows(np.arange(100)), data_collator=lambda rows: {"rows": torch.tensor(rows)})
"""

from __future__ import annotations

from torch.utils.data import Dataset

from guerdon.types import IntArray


class Rows(Dataset[int]):
    """The indices, one by one."""

    def __init__(self, rows: IntArray) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> int:
        return int(self._rows[i])
