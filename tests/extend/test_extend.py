"""The code of docs/extend.md as an installed wheel: its parts are used in runs that are killed and resumed."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import guerdon
from child import environment

PAGE = (Path(guerdon.__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.S | re.M)
TOKENS, CHUNKS = (shlex.split(words) for words in re.findall(r"`guerdon run robot.yaml (.*)`", PAGE))
WITH_LOSS = re.findall(r"    guerdon run (\w+).yaml (.*clipped_reinforce.*)", PAGE)
PATIENCE = 200  # seconds; a machine under load is slow
QUESTIONS = [{"question": f"{a}+{b}=?", "answer": str(a + b)} for a in range(3) for b in range(3)]


def studies():
    """The studies of the page by their file names."""
    blocks = [text for language, text in BLOCKS if language == "yaml"]
    return {re.match(r"# (\S+)", text)[1]: text for text in blocks}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder where the package of the page is installed, from a wheel."""
    root = tmp_path_factory.mktemp("package")
    (root / "source" / "my_parts").mkdir(parents=True)
    (root / "source" / "my_parts" / "__init__.py").touch()
    code = "\n".join(text for language, text in BLOCKS if language == "python")
    (root / "source" / "my_parts" / "parts.py").write_text(code)
    (root / "source" / "pyproject.toml").write_text(next(text for language, text in BLOCKS if language == "toml"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    offline = ["--no-deps", "--no-index"]
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", root, root / "source"], check=True)
    (wheel,) = root.glob("my_parts-1.0-*.whl")
    subprocess.run([*pip, "install", *offline, "--target", root / "site", wheel], check=True)
    return root / "site"


@pytest.fixture
def here(tmp_path, installed):
    """A working directory with the studies of the page and their data; what runs there imports the package."""
    for name, text in studies().items():
        (tmp_path / name).write_text(text)
    lines = [json.dumps(row) for row in QUESTIONS]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    steps = ["so it is", "so it is"]
    rows = [
        {"prompt": q["question"], "completions": [q["answer"], *steps[i % 2 :]], "labels": [True] * (3 - i % 2)}
        for i, q in enumerate(QUESTIONS)
    ]
    (tmp_path / "solutions.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def run(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "guerdon", *arguments], cwd=tmp_path, env=environment(installed),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    run.folder = tmp_path
    return run


def finished(process):
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output.decode()
    return output.decode()


def left(folder):
    """What a run leaves, without times."""
    files = {name: (folder / f"{name}.jsonl").read_bytes() for name in ("metrics", "episodes", "failures")}
    complete = json.loads((folder / "COMPLETE").read_text())
    del complete["wall_time"]
    weights = {path.name: path.read_bytes() for path in sorted((folder / "policy").glob("*.safetensors"))}
    assert weights
    return files | weights | {"complete": complete}


def kill(process, folder):
    """SIGKILL once there is a checkpoint."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None and not list(folder.glob("checkpoints/step_*")):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL, output.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changed"),
    [("robot", ()), ("robot", TOKENS), ("robot", CHUNKS), ("text", ())],
    ids=["robot", "tokens", "chunks", "text"],
)
def test_a_run_with_parts_of_ones_own_is_killed_and_resumed_byte_for_byte(here, name, changed):
    folder = here.folder / "runs" / name
    kill(here("run", f"{name}.yaml", *changed), folder)
    finished(here("run", f"{name}.yaml", *changed, "--resume"))
    finished(here("run", f"{name}.yaml", *changed, "runner.logger.experiment_name=whole"))
    assert left(folder) == left(here.folder / "runs" / "whole")


NARROW = "algorithm.clip_range=0.0001"  # small steps leave it, too


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), WITH_LOSS, ids=[name for name, _ in WITH_LOSS])
def test_cispo_of_ones_own_gives_the_run_of_the_built_in_one(here, name, options):
    changed, found = [*shlex.split(options), NARROW], []
    for loss in ("my_parts.parts:clipped_reinforce", "cispo"):
        folder = here.folder / "runs" / loss.rpartition(":")[2]
        logger = f"runner.logger.experiment_name={folder.name}"
        finished(here("run", f"{name}.yaml", *changed, f"algorithm.loss={loss}", logger))
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        weights = [row.pop("policy_loss/weight") for row in rows if "policy_loss/weight" in row]
        assert bool(weights) == (loss != "cispo")
        assert any(row.get("clip_fraction") for row in rows), "the ratio never left the range: nothing was compared"
        found.append({**left(folder), "metrics": rows})
    assert found[0] == found[1]


@pytest.mark.slow
def test_jobs_of_a_study_find_parts_by_registered_names_and_in_the_working_directory(here):
    """Arms run in processes that a server forks; `local.py` lies beside the study, the rest is installed."""
    text = studies()["robot.yaml"].replace("my_parts.parts:Dot", "dot").replace("my_parts.parts:make_", "local:")
    (here.folder / "local.py").write_text("from my_parts.parts import make_brightness as brightness\n")
    arms = "A: {label: slow}, B: {label: fast, config: {env: {params: {speed: 0.2}}}}"
    compared = f"work_dir: work\ncompare: {{baseline: A, seeds: [0], arms: {{{arms}}}}}\n"
    (here.folder / "study.yaml").write_text(f"{text}\n{compared}")
    said = finished(here("compare", "study.yaml"))
    assert "report: work/report.html" in said
    listed = finished(here("compare", "study.yaml", "--dry-run"))
    assert "type: dot" in listed


@pytest.mark.slow
def test_solutions_are_labelled_by_a_judge_and_by_a_labeler_of_ones_own(here):
    lines = (here.folder / "solutions.jsonl").read_text().splitlines()
    three = [line for line in lines if len(json.loads(line)["completions"]) == 3]
    finished(here("label", "label.yaml", "label.max_failure_rate=1"))
    card = json.loads(next(here.folder.glob("labels/*/card.json")).read_text())
    assert card["judge"] == "my_parts.parts:AgreeableJudge"
    assert card["solutions"]["failed"] == {"missing_steps": len(three)}
    study = studies()["label.yaml"].replace('judge: {api: "my_parts.parts:AgreeableJudge", params: {steps: 2}}', "")
    (here.folder / "label.yaml").write_text(study)
    finished(here("label", "label.yaml", "label.save_dir=own", "label.labeler=my_parts.parts:NoRepetition"))
    rows = [json.loads(line) for line in next(here.folder.glob("own/*/records.jsonl")).read_text().splitlines()]
    assert [row["step_labels"] for row in rows] == [[1.0, 1.0, 0.0], [1.0, 1.0]] * 4 + [[1.0, 1.0, 0.0]]
