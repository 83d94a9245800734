"""Every layout through every command that reads it: what a model was given, and what the command made of it.

Rows are made from plain values (`layout_rows`), and what is expected is made from the same values, never by the reader.
In the usual suite a command is called in this process and trains nothing; the slow tests run it as a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import recorded
from layout_meanings import (
    BY_NAME,
    CHOICES,
    CODE,
    LAYOUTS,
    NO_COLUMN_ASKS,
    TRUTHS,
    asked,
    commands_of,
    refusal,
    scored,
    taught,
)

from forked import forked
from guerdon import cli
from guerdon.reading.containers import file_rows
from tables import sample

# Commands.

TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 2048,
        "alphabet": "".join(map(chr, range(32, 127))) + "\n"}  # fmt: skip
POLICY = {"type": "text", "tiny": TINY, "bf16": False}
MODEL = {"model_type": "recorded:judge", "modality": "text"}


def training(layout, path):
    kind = "stepwise" if layout.kind == "steps" else "preference"
    return {"policy": POLICY, "train": {"rm": {
        "type": kind, "data_path": path, "save_dir": "rm", "max_steps": 1, "batch_size": 2, "bf16": False,
        "val_split": 0, **({"attributes": {"helpfulness": 1.0}} if layout.name == "HelpSteer2" else {})}}}  # fmt: skip


def prompting(layout, path):
    data = {"type": "prompts", "path": path, "filter_truncated": False}
    if layout.kind == "answered":
        data = {"type": "files", "train_files": path}
    data |= {"val_size": 0, "max_response_length": 8}
    return {"policy": POLICY, "data": data, "reward": {"use_reward_model": True, "sources": {"rm": {"model": MODEL}}}}


def searching(layout, path):
    verifier = "code" if layout.name in CODE else "exact"
    data = {"type": "files", "train_files": "none", "verifier": verifier, "max_response_length": 8}
    how = {"save_dir": "found", "questions": path, "aggregation": "last", "n": 1, "model": MODEL, "separator": "\n"}
    return {"policy": POLICY, "data": data, "search": how}


def labelling(layout, path):
    how = {"save_dir": "data", "labeler": "recorded:labeler"}
    if layout.kind == "steps":
        return {"policy": POLICY, "label": {**how, "solutions": {"data_path": path, "min_steps": 1}}}
    data = {"type": "files", "train_files": path, "val_size": 0, "max_response_length": 512}
    how |= {"mining": None, "num_rollouts": 1, "splitter": "newline", "solutions": {"min_steps": 1}}
    return {"policy": POLICY, "data": data, "label": how}


PROMPT = 4  # values that are written of a prompt; of what a model is given there are three
MEASURED = ["evaluate.reps=100", "evaluate.attacks=null"]
STUDIES = {"train": training, "run": prompting, "search": searching, "label": labelling}


def words(command, layout, path):
    """The words of a command on a file."""
    model = "recorded:step_judge" if layout.kind == "steps" else "recorded:judge"
    if command in STUDIES:
        Path("study.yaml").write_text(json.dumps(STUDIES[command](layout, path)))
    return {
        "read": ["read", path, "--json"],
        "audit": ["audit", path, "--json"],
        "score": ["score", path, "--model", model, "-o", f"scored{layout.case.container}"],
        "evaluate": ["evaluate", "--model", model, "--data", path, "-o", "card", *MEASURED],
        "run": ["run", "study.yaml", "--dry-run"],
    }.get(command, [command, "study.yaml"])


class Said:
    """What a command printed, and what was written down."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err
        lines = recorded.GIVEN.read_text(encoding="utf-8").splitlines() if recorded.GIVEN.exists() else []
        self.given = [json.loads(line) for line in lines]

    @property
    def json(self):
        """The one line of JSON that it printed."""
        (line,) = [line for line in self.out.splitlines() if line.startswith("{")]
        return json.loads(line)


def check_read(layout, said):
    found = said.json
    assert found["unclear"] == {}
    named = list(found["commands"])
    read_by = [one for one in commands_of(layout) if one != "read" and refusal(layout, one) is None]
    assert sorted(named) == sorted(read_by)
    assert sorted([*named, *found["refused"]]) == sorted(set(CHECKS) - {"read"})
    assert found["used"] == found["rows"]


def check_audit(layout, said):
    truths = layout.name in TRUTHS
    if layout.kind == "labels":  # CJE, whose reward is the judge's
        rows = [[prompt, response, 0.5, None] for prompt, response, _ in layout.values]
    else:
        rows = [[*values, truth if truths else None] for *values, truth in layout.values]
    if layout.name == "ragas":
        rows = [[f"c\n\n{prompt}", *rest] for prompt, *rest in rows]
    given = said.given[::2] if layout.name == "Atropos" else said.given
    assert given == rows
    assert said.json["rows"] == len(said.given)


def check_score(layout, said):
    assert said.given == scored(layout)
    assert "rows read" in said.err
    written_down = rewards_of(layout)
    if written_down and layout.kind != "steps":
        judged = [recorded.JUDGED.get((turns[-1][1], text), 0.5) for turns, text, _ in said.given]
        assert written_down == judged


def rewards_of(layout):
    """The rewards in new columns of the copy, in order; none where they stand inside a record."""
    ending = layout.case.container
    found = []
    for (_, old), (_, new) in zip(file_rows(Path(f"rows{ending}")), file_rows(Path(f"scored{ending}")), strict=True):
        cells = [new[key] for key in new if key not in old and not key.endswith("failure")]
        listed = [json.loads(cell) if isinstance(cell, str) and cell[:1] == "[" else cell for cell in cells]  # of CSV
        flat = [value for cell in listed for value in (cell if isinstance(cell, list) else [cell])]
        found += [float(value) for value in flat if value is not None]
    return found


def check_evaluate(layout, said):
    record = json.loads(Path("card/evaluation.json").read_text())
    if layout.kind == "pairs":
        known = [v for *_, v in layout.values if v in ("first", "second")]
        measured = record["pairs"]["overall"]["measured"]
        assert (measured["estimate"], measured["n"]) == (1.0, len(known))
        assert sum(record["pairs"]["left_out"].values()) == len(layout.values) - len(known)
        first = [[asked(layout, p), text, None] for p, a, b, v in layout.values if v in ("first", "second")
                 for text in ((a, b) if v == "first" else (b, a))]  # fmt: skip
        assert said.given[: len(first)] == first
    elif layout.kind == "labels":
        labels = record["labels"]
        known = [good for *_, good in layout.values if good is not None]
        assert (labels["rows"], labels["labelled"]) == (len(layout.values), len(known))
        assert labels["metrics"]["auroc"]["estimate"] == 1.0
    else:
        assert said.given


def check_train(layout, said):
    assert said.given == taught(layout)


def check_prompts(layout, said):
    """Whether each row was asked, with its options where it has such, and a model was given nothing else."""
    null_asks_nothing = layout.name in NO_COLUMN_ASKS[:3]
    wanted = [asked(layout, *one) for one in layout.values if one[-1] is not None or not null_asks_nothing]
    given = [[_first_line(turn) for turn in row[0]] if layout.name in CHOICES else row[0] for row in said.given]
    prompts = [turns for turns, row in zip(given, said.given, strict=True) if len(row) == PROMPT]
    assert prompts == wanted
    assert all(turns in wanted for turns in given)


def _first_line(turn):
    role, text = turn
    return [role, text.partition("\n")[0]]


def check_label(layout, said):
    if layout.kind != "steps":
        check_prompts(layout, said)
    elif said.given:  # of a dry run nothing is labelled
        found = [[turns, [step.strip() for step in steps]] for turns, steps, _ in said.given]
        assert found == [[asked(layout, question), steps] for question, steps, _ in layout.values]


CHECKS = {"read": check_read, "audit": check_audit, "score": check_score, "evaluate": check_evaluate,
          "train": check_train, "run": check_prompts, "search": check_prompts, "label": check_label}  # fmt: skip
CALLS = [(str(layout), command) for layout in LAYOUTS for command in commands_of(layout)]


def checked(layout, command, said):
    """Whether a command understood what the rows mean, or refused them as it should."""
    why = refusal(layout, command)
    if why is not None:
        assert said.status == 2
        assert why in said.err.splitlines()[-1]
        return
    assert said.status == 0, said.err
    CHECKS[command](layout, said)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_this_process(monkeypatch, capsys, given):
    monkeypatch.setattr(sys, "argv", ["guerdon", *given])
    with recorded.recording(), pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr()
    return Said(left.value.code or 0, said.out, said.err)


def usual(calls):
    """A few calls in which each layout occurs, and each command with each kind of layout."""
    found, layouts, pairs = [], set(), set()
    for name, command in calls:
        pair = (BY_NAME[name].kind, command)
        if pair not in pairs:
            found.append((name, command))
            layouts.add(name)
            pairs.add(pair)
    for k, (name, commands) in enumerate(COMMANDS.items()):
        if name not in layouts:
            found.append((name, commands[k % len(commands)]))
    return found


COMMANDS = {str(layout): commands_of(layout) for layout in LAYOUTS}


@pytest.mark.parametrize(("name", "command"), sample(CALLS, *usual(CALLS), several=True))
def test_a_command_is_given_what_a_layout_means(here, monkeypatch, capsys, name, command):
    layout = BY_NAME[name]
    given = words(command, layout, layout.file(Path()))
    dry = ["--dry-run"] if command in ("train", "search", "label") else []  # trains and writes nothing
    checked(layout, command, in_this_process(monkeypatch, capsys, [*given, *dry]))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "command"), CALLS)
def test_a_process_is_given_what_a_layout_means(here, name, command):
    layout = BY_NAME[name]
    done = forked(*words(command, layout, layout.file(Path())), folder=here, before=recorded.record)
    checked(layout, command, Said(done.status, done.said, done.said))


FIRST = {layout.kind: layout for layout in reversed(LAYOUTS)}.values()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "command"), [(str(one), command) for one in FIRST for command in commands_of(one)])
def test_a_new_interpreter_is_given_the_same(here, name, command):
    layout = BY_NAME[name]
    program = [sys.executable, str(Path(recorded.__file__)), *words(command, layout, layout.file(Path()))]
    paths = os.pathsep.join([str(Path(recorded.__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        program, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, timeout=300, check=False
    )
    checked(layout, command, Said(done.returncode, done.stdout, done.stderr))
