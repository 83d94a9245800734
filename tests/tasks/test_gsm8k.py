"""GSM8K as published: extractor, verifier, splitters, step ends and file formats agree on every problem.

The data is not part of this repository: GUERDON_GSM8K names the folder with its train.jsonl and test.jsonl.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = os.environ.get("GUERDON_GSM8K")
OWN = [
    {
        "question": "Ann has 3 boxes of 12 pens and gives away 5. How many pens are left?",
        "answer": "She has 3*12=<<3*12=36>>36 pens.\nSo 36-5=<<36-5=31>>31 pens are left.\n#### 31",
    },
    {
        "question": "A house costs $1,200,000 and a tenth of that in tax. What is paid?",
        "answer": "The tax is 1,200,000/10=$<<1200000/10=120000>>120,000.\nThat is $1,320,000.\n#### 1,320,000",
    },
    {
        "question": "What is 3 less than half of 5?",
        "answer": "5/2=<<5/2=2.5>>2.5\n2.5-3=<<2.5-3=-.5>>-.5\n#### -0.5",
    },
]


@pytest.fixture(scope="module")
def gsm8k():
    spec = importlib.util.spec_from_file_location("gsm8k_example", ROOT / "studies" / "gsm8k.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def written(folder, train, test):
    for name, rows in (("train", train), ("test", test)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_problems_in_its_form(gsm8k, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gsm8k.py", str(written(tmp_path, OWN[:2], OWN[2:]))])
    with pytest.raises(SystemExit) as done:
        gsm8k.main()
    assert not done.value.code
    table = capsys.readouterr().out
    assert "| stated answer found in the solution | 3 | 3 |" in table
    assert "| answer accepted in other ways of writing | 12 | 12 |" in table
    assert "| steps that are the lines of the solution | 9 | 9 |" in table
    assert table.count("| 3 | 3 |") == 15


def test_what_disagrees_is_counted_and_shown(gsm8k, tmp_path, monkeypatch, capsys):
    boxed = {**OWN[0], "answer": OWN[0]["answer"].replace("36 pens.", "\\boxed{36} pens.")}  # stated twice
    cut = {**OWN[1], "answer": "It is <<1+1=\n2>>2.\n#### 2"}
    monkeypatch.setattr(sys, "argv", ["gsm8k.py", str(written(tmp_path, OWN, [boxed, cut]))])
    with pytest.raises(SystemExit) as done:
        gsm8k.main()
    assert done.value.code
    table = capsys.readouterr().out
    assert "| stated answer found in the solution | 4 | 5 |" in table
    assert "| solutions cut by newline: nothing lost, no calculation cut | 4 | 5 |" in table
    assert "- stated answer found in the solution: '36' '31'" in table


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="GUERDON_GSM8K does not name a folder")
def test_every_published_problem(gsm8k):
    counts = gsm8k.counts(Path(FOLDER))
    assert counts.rows["stated answer found in the solution"].total == 7473 + 1319
    assert counts.rows["steps that are the lines of the solution"].total == 40331
    assert {name: row.example for name, row in counts.rows.items() if row.good < row.total} == {}
