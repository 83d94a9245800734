"""`import guerdon`: its names, what they import, and the example on the page of each."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import guerdon
from called import called
from guerdon.api import AuditResult
from guerdon.auditing.audited import Audited
from guerdon.errors import ConfigError, DataError, MissingDependencyError
from guerdon.pages.table import ResultTable
from guerdon.settings.study import Study
from tables import refuses

PAGES = Path(__file__).parent.parent / "docs" / "python"
STARTED_ELSEWHERE = {"integrations", "__main__"}  # of other libraries, or programs


def code_of(name):
    """The example on a page."""
    return re.search(r"^```python\n(.*?)^```", (PAGES / f"{name}.md").read_text(), re.S | re.M)[1]


def test_no_name_is_that_of_a_module():
    names = [one.name for one in pkgutil.walk_packages(guerdon.__path__, "guerdon.")]
    for name in names:
        if not STARTED_ELSEWHERE & set(name.split(".")):
            importlib.import_module(name)
    assert len(guerdon.__all__) <= 18
    assert not [name for name in guerdon.__all__ if f"guerdon.{name}" in names]
    assert not [name for name in guerdon.__all__ if type(getattr(guerdon, name)).__name__ == "module"]


def test_each_name_has_a_page_and_no_page_is_left_over():
    assert {path.stem for path in PAGES.glob("*.md")} - {"index"} == set(guerdon.__all__)


def test_importing_it_loads_nothing_heavy():
    code = "import sys, guerdon; dir(guerdon); print([m for m in sys.modules if m.startswith('guerdon') or m in "
    code += "('numpy', 'torch', 'scipy', 'pydantic', 'pyarrow')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['guerdon']"


def test_an_unknown_name_is_an_error_that_lists_the_names():
    with pytest.raises(AttributeError, match="load_reward_model"):
        guerdon.train_everything  # noqa: B018


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with the data set that the pages share."""
    made = tmp_path_factory.mktemp("pages")
    before = Path.cwd()
    os.chdir(made)
    try:
        exec(compile(code_of("EpisodeWriter"), "EpisodeWriter", "exec"), {})
        yield made
    finally:
        os.chdir(before)


PRINTED = {  # what a page says that its example prints, where that is not in its comments
    "evaluate": "evaluation.json", "run": "report.html", "compare": "0/1 for success", "audit": "audit of 40 rows",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(guerdon.__all__) - {"RewardClient", "EpisodeWriter"}))
def test_the_example_on_each_page_prints_what_it_says(name, folder, capsys):
    code = code_of(name)
    exec(compile(code, name, "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out
    said = re.findall(r"^(?:print\(.*\)|[^#\n]*)  # (.+)$", code, re.M)
    for line in [*said, *([PRINTED[name]] if name in PRINTED else [])]:
        if not line.startswith(("of the example", "guerdon ")):
            assert line in printed, printed


def test_the_client_on_its_page_asks_a_server(capsys):
    sys.path.insert(0, str(Path(__file__).parent / "serve"))
    from chaos import chaos_server, worth

    with chaos_server() as server:
        code = code_of("RewardClient").replace("http://127.0.0.1:18080", server.url)
        exec(compile(code, "RewardClient", "exec"), {})
    assert capsys.readouterr().out == f"[{worth('8')}]\n"


def test_what_ends_a_cell_is_short(folder):
    episode = next(guerdon.read_episodes("episodes"))
    frames = np.zeros((346, 64, 64, 3), np.uint8)
    pictures = guerdon.Episode("0", "close " * 50, frames=frames, views={"wrist": frames})
    solution = guerdon.Solution("0", "why? " * 100, ("because " * 100,))
    study = guerdon.load_study("CartPole-v1")
    for shown in (episode, pictures, solution, guerdon.Score.from_values(np.zeros(1000)), study):
        assert len(repr(shown)) < 200
        assert "\n" not in repr(shown)
    assert "frames 64x64x3" in repr(pictures)


def test_a_verb_takes_a_study_that_is_loaded(folder):
    Path("one.yaml").write_text(
        "work_dir: one\nenv: {type: gymnasium, task: MountainCarContinuous-v0}\n"
        "runner: {total_steps: 64, eval_every: 64, eval_episodes: 1}\nalgorithm: {rollout_steps: 32}\n"
    )
    study = guerdon.load_study("one.yaml", "runner.seed=3")
    done = guerdon.run(study)
    assert done.folder.is_dir()
    assert {row["kind"] for row in done.metrics} == {"train", "eval"}
    with pytest.raises(ConfigError, match="load_study"):
        guerdon.run(study, "runner.seed=4")
    with refuses("compare", "no compare section"):
        guerdon.compare(study)


def test_a_misspelt_name_gets_the_nearest_one(folder):
    with pytest.raises(ConfigError, match="did you mean 'progress'"):
        guerdon.load_reward_model("progres")


def test_scores_of_a_file_need_a_copy_and_those_of_episodes_none(folder):
    model = guerdon.load_reward_model("constant", value=0.5)
    with pytest.raises(ConfigError, match="output="):
        guerdon.score(model, "rows.jsonl")
    with pytest.raises(ConfigError, match="episodes"):
        guerdon.score(model, [], output="copy")
    with pytest.raises(ConfigError, match="columns is for the rows of a file"):
        guerdon.score(model, [], columns={"response": "answer"})


class Late:
    """Never answers in time."""

    info = guerdon.RewardInfo(name="late", range=(0.0, 1.0), modality="state", frames_needed=0)

    def score(self, episodes):
        return [guerdon.Score(failure=guerdon.Failure("timeout", "after 3 s")) for _ in episodes]


def test_a_model_that_is_named_scores_episodes_and_one_that_fails_says_why(folder):
    first, *_ = guerdon.read_episodes("episodes", limit=1)
    assert guerdon.score("constant", [first], value=0.25).table["steps"] == [[0.25] * 6]
    late = guerdon.score(Late(), [first])
    assert (late.table["reward"], late.table["steps"]) == ([None], [None])
    assert late.table["failure"] == ["timeout: after 3 s"]
    assert late.summary == "scored 1 episodes, 1 failed"


def test_arms_need_the_file_of_their_study():
    with pytest.raises(ConfigError, match="compare needs the study's file"):
        guerdon.compare(Study())


def test_an_audit_of_several_runs_is_not_taken_for_one(tmp_path):
    runs = (Audited(None, None, None, tmp_path), Audited(None, None, None, tmp_path))
    with pytest.raises(DataError, match="the log holds 2 runs"):
        AuditResult(runs, tmp_path).audit  # noqa: B018


class Rows:
    """A value above 1 for each row, and no total."""

    info = guerdon.RewardInfo(name="rows", range=(0.0, 3.0), modality="state", frames_needed=0)

    def score(self, episodes):
        return [guerdon.Score(steps=np.full(len(one), 3.0, np.float32)) for one in episodes]


def test_rows_of_a_robot_are_not_made_one_reward(folder):
    found = guerdon.score(Rows(), guerdon.read_episodes("episodes", limit=2))
    assert found.table["reward"] == [None, None]
    assert found.table["failure"] == [None, None]
    assert found.table["steps"] == [[3.0] * 6] * 2
    with pytest.raises(ConfigError, match="value would do nothing"):
        guerdon.score(Rows(), [], value=1)


class Length:
    """Longer responses are better."""

    info = guerdon.RewardInfo(name="length", range=(0.0, 1.0), granularity="total", modality="text")

    def score(self, episodes):
        return [guerdon.Score(total=min(1.0, len("".join(one.texts)) / 100)) for one in episodes]


def test_a_model_of_texts_is_evaluated_and_scores_a_file(folder):
    rows = [{"prompt": f"{n}?", "chosen": "x" * (n + 20), "rejected": "y" * n} for n in range(1, 12)]
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = guerdon.evaluate(Length(), "pairs.jsonl", "evaluate.reps=100")
    assert not found.files
    accuracy = next(row for row in found.figures if row["figure"] == "pairs.overall.measured")
    assert accuracy["estimate"] == 1.0
    scored = guerdon.score(Length(), "pairs.jsonl", output="scored.jsonl")
    assert scored.table["reward_chosen"][0] == pytest.approx(0.21)
    assert scored.path == Path("scored.jsonl")


def test_turns_of_conversations_are_scored_as_by_the_command(folder):
    said = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, "abcdef", strict=False)]
    Path("talk.jsonl").write_text(json.dumps({"messages": said}))
    scored = guerdon.score(Length(), "talk.jsonl", output="turns.jsonl", turns=True)
    assert scored.table["rewards"] == [[0.01, 0.01]]
    called("score", "talk.jsonl", "--model", "test_front_door:Length", "-o", "same.jsonl", "--turns", folder=".")
    assert Path("same.jsonl").read_text() == Path("turns.jsonl").read_text()
    Path("known.jsonl").write_text(json.dumps({"messages": said, "step_labels": [0, 1]}))
    found = guerdon.evaluate(Length(), "known.jsonl", "evaluate.reps=100", turns=True)
    assert found.record["turns"]["metrics"]["auroc"]["estimate"] == 0.5  # both turns are as long
    with pytest.raises(ConfigError, match="turns is for the conversations of a file"):
        guerdon.score(Length(), [], turns=True)


def test_a_judge_marks_a_sample_of_an_audit(folder):
    rows = [{"prompt": f"{n}?", "response": "x" * n, "reward": n % 3} for n in range(30)]
    Path("marked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = guerdon.audit("marked.jsonl", judge="test_front_door:Length", sample=20)
    assert len(found.runs[0].rows) == 30
    assert found.rows.columns[:3] == ("finding", "row", "file")
    assert "agreement" not in found.audit.unchecked
    with pytest.raises(ConfigError, match="max_usd"):
        guerdon.audit("marked.jsonl", max_usd=1)
    with pytest.raises(ConfigError, match="one second reward"):
        guerdon.audit("marked.jsonl", judge="test_front_door:Length", second="marked.jsonl")


def test_a_table_as_a_frame_has_its_columns_in_order():
    pytest.importorskip("pandas")
    frame = ResultTable([{"b": 0.5, "a": 1}, {"a": 2}]).to_pandas()
    assert list(frame.columns) == ["b", "a"]
    assert (frame["a"].tolist(), frame["b"].isna().tolist()) == ([1, 2], [False, True])


def test_a_table_is_pandas_where_it_is_installed_and_arrow_otherwise(monkeypatch):
    table = ResultTable([{"a": 1, "b": 0.5}, {"a": 2}])
    assert table.to_arrow().to_pydict() == {"a": [1, 2], "b": [0.5, None]}
    assert str(table).splitlines() == ["a  b", "1  0.5", "2  –"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="to_arrow"):
        table.to_pandas()
    assert len(str(ResultTable([{"a": n} for n in range(50)])).splitlines()) == 22
    assert (str(ResultTable([])), len(ResultTable([]))) == ("(an empty table)", 0)
    assert table["b"] == [0.5, None]
    with pytest.raises(KeyError, match="c: the table has the columns a, b"):
        table["c"]
