"""The example of docs/adapters.md does what the page says, on a tiny model of the same kind."""

import re
from pathlib import Path

import pytest
from adapter_models import Qwen

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")


def test_the_example_prints_a_value_per_step(tmp_path, capsys):
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
    Qwen(tmp_path / "prm")
    names = {}
    exec(compile(block.replace("Qwen/Qwen2.5-Math-PRM-7B", str(tmp_path / "prm")), "docs/adapters.md", "exec"), names)
    printed = capsys.readouterr().out.strip().strip("[]").split()
    assert len(printed) == 2
    assert [float(value) for value in printed] == pytest.approx(
        names["model"].score([names["solution"]])[0].steps.tolist(), abs=1e-6
    )
    assert all(0 < float(value) < 1 for value in printed)
