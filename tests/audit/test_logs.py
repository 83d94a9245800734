"""Logs as rows."""

import json
from pathlib import Path

from guerdon.audit.logs import read_log


def test_plain_columns_are_read(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    rows = [{"prompt": f"p{k // 2}", "response": "x" * k, "reward": k / 4, "acc": k % 2, "step": k // 4} for k in range(8)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_log(file)
    assert found.reward_N.tolist() == [k / 4 for k in range(8)]
    assert found.truth_N is not None and found.truth_N.tolist() == [0, 1] * 4
    assert found.group_N is not None and found.group_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.texts is not None and found.texts.responses[3] == "xxx"
