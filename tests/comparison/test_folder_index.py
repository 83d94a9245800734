"""`guerdon report FOLDER` of a folder that is neither study nor run: an index of what it holds."""

import json
import re
from urllib.parse import unquote

import numpy as np
import pytest
from synthetic_study import rising, write_card, write_run, write_study

from guerdon.auditing.finding import Audit
from guerdon.auditing.page import write_page
from guerdon.auditing.rows import Rows
from guerdon.comparison.folder_index import entries, write_index
from guerdon.comparison.report import write_report
from guerdon.errors import ConfigError


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "work"
    write_study(
        root / "studies" / "one", lambda t, arm, seed: {"A": 0, "B": 1, "C": 0}[arm], tasks=("t",), videos=False
    )
    write_report(root / "studies" / "one")
    write_run(root / "runs" / "tiny:Dot" / "first", success=rising(0.9), complete=False)
    write_card(root / "models" / "progress")
    (root / "labels").mkdir()
    steps = {"right": 7, "wrong": 3}
    card = {"steps": steps, "solutions": {"labelled": 4}, "files": {"seed": {"rows": 4}}}
    (root / "labels" / "card.json").write_text(json.dumps(card))
    rows = Rows("JSONL", ("a.jsonl",), np.zeros(2, np.int64), np.arange(1, 3), np.array([0.0, 1.0]))
    write_page(root / "rollouts.audit.html", rows, Audit(()))
    (root / "other.html").write_text("<title>not ours</title>")
    write_report(root / "studies" / "one", out=root / "copy.html")
    (root / ".hidden").mkdir()
    write_run(root / ".hidden" / "run", success=rising(0.9))
    return root


def test_everything_is_listed_once_with_its_conclusion_and_a_relative_link(folder):
    found = {(one.kind, one.name): one for one in entries(folder)}
    assert sorted(found) == [
        ("Audits", "rollouts.audit.html"), ("Evaluations", "models/progress"), ("Label sets", "labels"),
        ("Runs", "runs/tiny:Dot/first"), ("Studies", "studies/one"),
    ]  # fmt: skip
    said = {kind: one.conclusion for (kind, _), one in found.items()}
    assert said["Studies"].startswith("With ResNet success (B), the policy solved its task in 3 of 3 runs; with 0/1")
    assert said["Runs"].startswith("At the last evaluation, at step 80k, the policy solved its task in 18 of 20")
    assert said["Runs"].endswith("It is not complete.")
    assert said["Evaluations"].startswith("goal pasted: failed (0.980, n 0); AUROC 0.970 [0.940, 0.990], n 400")
    assert said["Label sets"] == "4 solutions, 7 right and 3 wrong steps"
    assert said["Audits"].startswith("2 rows: ")
    page = write_index(folder).read_text()
    links = [unquote(link) for link in re.findall(r'href="([^"#]+)"', page)]
    assert sorted(links) == ["labels/card.json", "models/progress/evaluation.json", "rollouts.audit.html",
                             "studies/one/report.html"]  # fmt: skip
    assert all((folder / link).is_file() for link in links)
    assert f"guerdon report {folder}/runs/tiny:Dot/first" in page
    again = sorted((one.kind, one.name) for one in entries(folder))
    assert again == sorted(found), "the index does not list itself"


@pytest.mark.hostile("pages")
def test_names_cannot_inject_markup_and_broken_files_are_said(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    write_run(tmp_path / evil, success=rising(0.9))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.json").write_text("{}")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "evaluation.json").write_text('{"metrics": {"auroc": ')
    page = write_index(tmp_path).read_text()
    assert "<img" not in page
    assert "&lt;img" in page
    assert "names no arm" in page


def test_a_folder_without_any_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no study"):
        write_index(tmp_path)
    assert not list(tmp_path.iterdir())
