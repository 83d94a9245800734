"""Every command that the documents print is run by a test, or a comment before it says why not.

The comment is `<!-- Not run here: WHY -->`, a paragraph of its own that pages do not show.

What counts as run: commands of guerdon with `--dry-run`, which reads all options and files; targets of make that exist,
shown by `make --dry-run`; scripts that a test file runs. Options and files of commands that are not run are checked as
far as they exist here.
"""

import argparse
import functools
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from click import ClickException
from typer.main import get_command
from typer.testing import CliRunner

from guerdon.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)])
STUDIES = sorted([*(ROOT / "studies").glob("*.yaml"), *(ROOT / "configs").glob("*.yaml")])
VERBS = {command.name or command.callback.__name__ for command in app.registered_commands}
DRY = VERBS - {"annotate", "audit", "doctor", "import", "play", "report"}  # have --dry-run
PROGRAM = re.compile(
    r"(?:\$ )?(?:\w+=\S+ )*(?:guerdon|make|python3?|pip|ray|torchrun|pytest|git|curl|apt-get|kubectl|docker"
    r"|lerobot-\w+|ssh|cd|export|source|\.) (?![a-z]+ [a-z]+ [a-z]+ )|(?:make|pytest)$"
)
FENCE = re.compile(r"^ *```+(.*)$")
SHELL = ("", "sh", "bash", "console", "shell")

SHOWN = {  # the file that a page speaks of: one of the same kind
    ("docs/cluster.md", "compare"): "studies/demo.yaml",
    ("docs/cluster.md", "label"): "configs/prm_label.yaml",
    ("docs/cluster.md", "run"): "studies/vlm_reward.yaml",
    ("docs/cluster.md", "train"): "configs/prm_demo.yaml",
    ("docs/distributed.md", "run"): "configs/prm_demo.yaml",
    ("docs/distributed.md", "train"): "configs/prm_demo.yaml",
    ("docs/recipes/cluster.md", "run"): "studies/demo.yaml",
}
RUN_BY = {  # what tests run as it is
    "guerdon doctor": "tests/test_doctor.py",
    "guerdon report runs/CartPole-v1": "tests/test_cli.py",
    "guerdon audit rollouts/": "tests/auditing/test_audit_command.py",
    "python examples/notebooks/run.py --check": "tests/examples/test_notebooks.py",
    "python examples/openenv_rubric.py": "tests/integrations/test_text_examples.py",
    "python examples/nemo_gym_server.py": "tests/integrations/test_text_examples.py",
    "python studies/gate_report.py": "tests/evaluation/test_gate_report.py",
    "python studies/gate_report.py mine.parquet --picture gate.svg": "tests/evaluation/test_gate_report.py",
    "python studies/gate_text.py": "tests/examples/test_gate_text.py",
    "python studies/gate_preferences.py prepare": "tests/examples/test_gate_preferences.py",
    "python studies/gate_preferences.py rows": "tests/examples/test_gate_preferences.py",
    "python studies/preference_pairs.py runs/preference": "tests/comparison/test_preference_study.py",
    "python studies/preference_pairs.py runs/preference_smollm2 --words": "tests/comparison/test_preference_study.py",
    "python benchmarks/gpu_check.py --tiny": "tests/test_gpu_check.py",
    "python studies/preference_table.py runs/preference": "tests/comparison/test_report_gold.py",
    "python studies/off_policy_table.py studies/off_policy.csv": "tests/comparison/test_off_policy_table.py",
    "python studies/off_policy_table.py studies/off_policy_falling.csv --differences=FA,LA,CA": (
        "tests/comparison/test_off_policy_table.py"
    ),
    "python studies/unsteady_ends.py studies/unsteady_ends.csv": "tests/examples/test_unsteady_ends.py",
    "python studies/text_game.py": "tests/examples/test_text_game.py",
    "python studies/gate.py prepare": "tests/examples/test_gate_study.py",
    "python studies/gate.py table runs/gate/gate.jsonl ... --out gate.parquet": "tests/examples/test_gate_study.py",
    "python examples/trl_grpo.py": "tests/integrations/test_trl.py",
    "python examples/verifiers_rewards.py": "tests/integrations/test_text_examples.py",
}
FILLED_IN = {
    "$task": "door-close",
    "[...]": "[door-close]",
    "my_package:MyRobot-v0": "Pendulum-v1",
    "questions=questions.jsonl": "questions=tests/questions.jsonl",
    "mine.parquet": "src/guerdon/evaluation/gate/gate.parquet",
    ".venv-agents/langgraph/bin/python": sys.executable,
}  # by a reader
MADE = {  # instead of files that a script makes before
    "configs/preference.yaml": ("data.path=tests/questions.jsonl", "data.val_size=1", "data.train_batch_size=1"),
    "studies/agent_demo.yaml": (
        "data.train_files=tests/solved_questions.jsonl", "data.val_files=null", "data.val_size=1",
        "data.train_batch_size=1",
    ),
    "studies/agent_start.yaml": (
        "data.train_files=tests/solved_questions.jsonl", "data.val_files=null", "data.val_size=1",
    ),
    "studies/text_game.yaml": ("data.path=tests/questions.jsonl", "data.val_size=1", "data.train_batch_size=1"),
    "studies/text_game_start.yaml": ("data.train_files=tests/solved_questions.jsonl",),
    "studies/preference_smollm2.yaml": (
        "data.path=tests/questions.jsonl", "data.val_size=1", "data.train_batch_size=1"
    ),
}  # fmt: skip
LONG = (  # planning them takes seconds each; quick tests plan every study (tests/test_docs.py)
    "studies/backbones.yaml", "studies/few_demonstrations.yaml", "studies/gate.yaml", "studies/gate_preferences.yaml",
    "studies/gate_text.yaml", "studies/metaworld.yaml", "studies/off_policy.yaml", "studies/prime.yaml",
    "studies/prime_long.yaml", "studies/ten_tasks.yaml", "configs/prime_math.yaml", "configs/prm_rewards.yaml",
    "configs/prm_demo.yaml policy=sft",
)  # fmt: skip
README = {  # the page is kept short: why these are not run
    "python3 -m venv .venv": "make env, with which the checks begin, does the same",
    '.venv/bin/pip install -c constraints.txt -e ".[gymnasium,metaworld,video,text,serve,dev]"': "as above",
    ". .venv/bin/activate": "as above",
    "pytest": "it is the tests",
    "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri": "it changes the system",
}


@dataclass(frozen=True)
class Block:
    """Commands of a page.

    Attributes:
        page: its path.
        line: number of its first line.
        marked: whether a comment before it says that, and why, it is not run.
        commands: one each, without prompts and comments.
    """

    page: str
    line: int
    marked: bool
    commands: tuple[str, ...]


def blocks(page):
    """The blocks of a page that have commands."""
    lines, shown = page.read_text(encoding="utf-8").split("\n"), []
    start, language, body = None, None, []
    for number, line in enumerate([*lines, ""]):
        fence = FENCE.match(line)
        if language is not None:  # in a fenced block
            if fence:
                shown.append((start, body if language in SHELL else []))
                start, language, body = None, None, []
            else:
                body.append(line)
        elif fence:
            start, language, body = number, fence[1].strip(), []
        elif start is None and line.startswith("    ") and not lines[number - 1].strip():
            start, body = number, [line]
        elif start is not None and line.startswith("    "):
            body.append(line)
        elif start is not None:
            shown.append((start, body))
            start, body = None, []
    for first, found in shown:
        if any(PROGRAM.match(line.strip()) for line in found):
            yield Block(str(page.relative_to(ROOT)), first + 1, marked(lines[:first]), tuple(commands(found)))


def marked(before):
    """Whether the paragraph that ends these lines is a comment which says why what follows is not run."""
    text = "\n".join(before).rstrip().rpartition("\n\n")[2]
    return bool(re.fullmatch(r"<!-- Not run here: \S.* -->", text.strip(), re.S))


def commands(lines):
    """One string per command: continued lines are joined, prompts and explanations are dropped."""
    whole = ""
    for line in lines:
        text = re.split(r"\s{2,}|\s+#\s", line.strip().removeprefix("$ "))[0]
        whole = f"{whole.removesuffix(chr(92)).strip()} {text}".strip()
        if not whole or whole.startswith("#"):
            whole = ""
            continue
        if whole.endswith(chr(92)) or whole.count("'") % 2:
            continue
        yield from re.split(r" (?:&&|&) ", whole)
        whole = ""


def heads():
    """The commands in the first comments of studies."""
    for path in STUDIES:
        found = re.findall(r"^#\s+((?:guerdon|make|python) .*)$", path.read_text(encoding="utf-8"), re.M)
        lines = [line for line in found if re.match(r"(guerdon [a-z]+ \S*\.yaml|make [a-z-]+$|python \S+\.py)", line)]
        if lines:
            yield Block(str(path.relative_to(ROOT)), 1, False, tuple(commands(lines)))


BLOCKS = [*(block for page in PAGES for block in blocks(page)), *heads()]


def by_length(commands):
    """The parameters of a test of each command; those that take long, or whose like the page has, are slow."""
    slow, found, planned = pytest.mark.slow, [], set()
    for page, command in commands:
        like = (page, *command.split()[:2])
        again = like in planned and command.startswith("guerdon")
        planned.add(like)
        found.append(pytest.param(page, command, marks=[slow] if again or any(one in command for one in LONG) else []))
    return found


UNMARKED = sorted({(block.page, command) for block in BLOCKS if not block.marked for command in block.commands})
MARKED = sorted({(block.page, command) for block in BLOCKS if block.marked for command in block.commands})


def words_of(command):
    """The program of a command without its folder, and its words, those of files included, without variables before."""
    words = shlex.split(re.sub(r"\$\(cat (\S+)\)", lambda found: (ROOT / found[1]).read_text(), command))
    while re.match(r"\w+=", words[0]):
        words = words[1:]
    return [words[0] if words[0] == "." else Path(words[0]).name, *words[1:]]


def dry_run(page, verb, words):
    """The command with `--dry-run`; a file that the page does not show is replaced by one of the same kind."""
    words = [SHOWN.get((page, verb), word) if word == "study.yaml" else word for word in words]
    for name, given in FILLED_IN.items():
        words = [word.replace(name, given) for word in words]
    words += [given for word in words for given in MADE.get(word, ())]
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    status, said = ended((verb, *(word for word in words if word != "--dry-run")), os.getcwd(), str(variables))
    missing = re.search(r"the package (\S+) is not installed: pip install", said)
    if missing:
        pytest.skip(f"needs the package {missing[1]}")
    assert status == 0, said


@functools.cache
def ended(words, folder, variables):
    """Exit status and messages of a command's dry run, once for the same command in the same place."""
    done = CliRunner().invoke(app, [*words, "--dry-run"])
    return done.exit_code, f"{done.output} {done.exception}"


def dry_serve(page, words, folder):
    """`guerdon serve --dry-run` with the file that the page shows; the models that it names need not be here."""
    shown = re.search(r"^```yaml\n# serve.yaml\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)
    if shown:
        (folder / "serve.yaml").write_text(shown[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("guerdon.serve.backends.refuse_all", lambda settings: None)
        dry_run(page, "serve", words)


def under_torchrun(words):
    """What torchrun starts, its own options read by its own parser."""
    from torch.distributed.run import get_args_parser

    found = get_args_parser().parse_args(words)
    assert found.module
    assert found.training_script == "guerdon"
    return found.training_script_args


def options_are_read(words):
    """A script's options, by its own parser, which then stops; scripts without options get none."""
    if "argparse" not in (ROOT / words[0]).read_text(encoding="utf-8"):
        assert len(words) == 1
        return

    def and_stop(parse):
        def parse_and_stop(parser, *args):
            parse(parser, *args)
            raise Parsed

        return parse_and_stop

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / Path(words[0]).parent))
        for name in ("parse_args", "parse_intermixed_args"):
            patch.setattr(argparse.ArgumentParser, name, and_stop(getattr(argparse.ArgumentParser, name)))
        patch.setattr(sys, "argv", words)
        try:
            with pytest.raises(Parsed):
                runpy.run_path(words[0], run_name="__main__")
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            if package == "guerdon" or find_spec(package) is not None:
                raise
            pytest.skip(f"the script needs {package}")


class Parsed(Exception):
    """The options of a script were read."""


@pytest.mark.parametrize(("page", "command"), by_length(UNMARKED))
def test_a_command_runs_or_its_page_says_why_not(page, command, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    run_by = RUN_BY.get(" ".join(words_of(command)))
    if run_by is not None:
        assert Path(command.split()[1]).stem in (ROOT / run_by).read_text(encoding="utf-8")
        return
    if page == "README.md" and command in README:
        return
    for name, value in re.findall(r"^(\w+)=(\S+) ", command):
        monkeypatch.setenv(name, value)
    program, *words = words_of(command)
    if program == "torchrun":
        program, words = "guerdon", under_torchrun(words)
    if program == "guerdon" and words[0] == "serve":
        dry_serve(page, words[1:], tmp_path)
    elif program == "guerdon" and words[0] in DRY:
        dry_run(page, words[0], words[1:])
    elif program in (".", "cd"):
        pass  # a step before the commands after it
    elif program == "make":
        subprocess.run([program, *words, "--dry-run"], check=True, capture_output=True)
    else:
        raise AssertionError(f"{page}: no test runs `{command}`; write before it: <!-- Not run here: WHY -->")


def test_options_of_all_commands_are_read(monkeypatch):
    """Of those whose dry run is slow, too."""
    monkeypatch.chdir(ROOT)
    misses = []
    for page, command in UNMARKED:
        program, *words = words_of(command)
        if program == "guerdon":
            try:
                get_command(app).commands[words[0]].make_context(words[0], words[1:])
            except (ClickException, KeyError) as error:
                misses.append(f"{page}: {command}: {error!r}")
    assert not misses, "\n".join(misses)


@pytest.mark.parametrize(("page", "command"), by_length(MARKED))
def test_commands_that_are_not_run_have_these_options(page, command, monkeypatch):
    """As far as that can be seen here: options of guerdon and of scripts, extras, files of tests, targets."""
    monkeypatch.chdir(ROOT)
    program, *words = words_of(command)
    if program == "torchrun":
        program, words = "guerdon", under_torchrun(words)
    if program == "guerdon" and words[0] in DRY and ((page, words[0]) in SHOWN or Path(words[1]).is_file()):
        dry_run(page, words[0], words[1:])
    elif program == "guerdon":
        get_command(app).commands[words[0]].make_context(words[0], words[1:])
    elif program == "python" and words[0].endswith(".py"):
        options_are_read(words)
    elif program == "make":
        subprocess.run([program, *words, "--dry-run"], check=True, capture_output=True)
    elif program == "pytest":
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        named = re.findall(r"(?:guerdon|\.)\[([\w,-]+)\]", command)
        assert {name for group in named for name in group.split(",")} <= set(extras)


def test_there_are_commands_to_check():
    shown = [words_of(command) for _, command in UNMARKED + MARKED]
    assert {words[1] for words in shown if words[0] == "guerdon"} == VERBS
    assert sum(words[0] == "python" for words in shown) > 5
    assert sum(words[0] == "make" for words in shown) > 5
    assert sum(words[0] == "torchrun" for words in shown) > 1
    assert {block.page for block in BLOCKS} >= {"README.md", "docs/cluster.md", "docs/recipes/prime.md"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Text:\n\n    guerdon doctor   # says more\n", [("guerdon doctor", False)]),
        (
            "Text.\n\n<!-- Not run here: it needs more\nmachines. -->\n\n    guerdon doctor\n",
            [("guerdon doctor", True)],
        ),
        ("Text.\n\nNot run here: it needs more machines.\n\n    guerdon doctor\n", [("guerdon doctor", False)]),
        ("<!-- Not run here: slow. -->\n\nText:\n\n```sh\n$ ray \\\n  stop\n```\n", [("ray stop", False)]),
        ("- Item\n\n      cd a && guerdon run b.yaml\n", [("cd a", False), ("guerdon run b.yaml", False)]),
        ("```yaml\nmake: all\n```\n\n    other text\n", []),
    ],
)
def test_commands_are_found_in_pages(text, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(text)
    found = [(command, block.marked) for block in blocks(tmp_path / "page.md") for command in block.commands]
    assert found == wanted


def test_make_soak_takes_time_and_seed():
    for words, expected in ((["MINUTES=2.5", "SEED=7"], "--minutes 2.5 --seed 7"), ([], "--minutes 20 --seed 0")):
        said = subprocess.run(
            ["make", "--dry-run", "soak", *words], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert f"tests/engines/soak.py runs/soak {expected}\n" in said.stdout


def test_no_page_shows_why_a_command_is_not_run():
    """The reason is a comment; what a reader must know before typing is a sentence of its own."""
    shown = {
        str(page.relative_to(ROOT)): found for page in PAGES
        if (found := re.findall(r"(?<!<!-- )Not run here: .*", page.read_text(encoding="utf-8")))
    }  # fmt: skip
    assert shown == {}
