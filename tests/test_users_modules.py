"""The folder where a command is started: parts of the user are found there, and nothing else is imported from it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from child import environment
from guerdon.config import modules, registry
from guerdon.errors import ConfigError
from tables import first, sample
from test_process import TINY

PROBED = (  # what installed libraries look for, and modules of Python that processes import first
    "apex", "bitsandbytes", "bottleneck", "brotli", "brotlicffi", "cchardet", "chardet", "cupy", "flash_attn", "flax",
    "h2", "IPython", "jax", "json", "lz4", "numexpr", "orjson", "pickle", "random", "selectors", "simplejson",
    "socket", "socks", "struct", "tensorflow", "torch_xla", "torchvision", "triton", "ujson", "xformers", "zstandard",
)  # fmt: skip
HERE = Path(__file__).parent
PART = """\
from helper import WORDS
from length_model import Length

def make():
    return Length()
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with modules that say that they were imported, and a part of the user."""
    for name in PROBED:
        (tmp_path / f"{name}.py").write_text(f"open('imported', 'a').write('{name} ')\nraise ImportError('{name}')\n")
    (tmp_path / "my_rewards.py").write_text(PART)
    (tmp_path / "helper.py").write_text("WORDS = ()\n")
    (tmp_path / "numpy.py").write_text("raise SystemExit('not the installed package')\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "p", "response": "four"}))
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return tmp_path


def guerdon_in(folder, *words, flags=(), **variables):
    """The installed command, which does not put the working directory on Python's path."""
    start = [sys.executable, *flags, "-c", "import sys; del sys.path[0]; from guerdon.cli import main; main()"]
    if "-P" in flags or "PYTHONSAFEPATH" in variables:
        start = [sys.executable, *flags, "-c", "from guerdon.cli import main; main()"]
    done = subprocess.run(
        [*start, *words], cwd=folder, env=environment(HERE, **variables), capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def imported(folder):
    """The modules of the folder that were imported; they are forgotten."""
    marks = folder / "imported"
    names = sorted(set(marks.read_text().split())) if marks.exists() else []
    marks.unlink(missing_ok=True)
    return names


SCORE = ("score", "rows.jsonl", "--output", "out.jsonl", "--model")


@pytest.mark.hostile("modules")
@pytest.mark.parametrize("variables", sample([{}, {"PYTHONSAFEPATH": "1"}], {}))
def test_scoring_imports_nothing_from_a_folder_that_somebody_else_wrote(folder, variables):
    (folder / "config.json").write_text('{"model_type": "llama"}')
    status, said = guerdon_in(folder, *SCORE, ".", **variables)
    assert status == 2, said
    assert imported(folder) == []


@pytest.mark.slow
@pytest.mark.hostile("modules")
@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": "1"}])
def test_the_doctor_imports_nothing_from_a_folder_that_somebody_else_wrote(folder, variables):
    guerdon_in(folder, "doctor", **variables)
    assert imported(folder) == []


@pytest.mark.slow
@pytest.mark.hostile("modules")
def test_jobs_of_a_study_import_nothing_from_the_folder(folder):
    arms = "compare={arms: {A: {label: native}}, seeds: [0], baseline: A}"
    status, said = guerdon_in(folder, "compare", "tiny.yaml", arms)
    assert status == 0, said
    assert imported(folder) == []


@pytest.mark.hostile("modules")
def test_a_part_of_the_user_is_found_there_behind_installed_packages(folder):
    status, said = guerdon_in(folder, *SCORE, "my_rewards:make")
    assert status == 0, said
    assert json.loads((folder / "out.jsonl").read_text())["reward"] == 4.0


@pytest.mark.hostile("modules")
@pytest.mark.parametrize(("flags", "variables"), first([(("-P",), {}), ((), {"PYTHONSAFEPATH": "1"})], 1, several=True))
def test_a_part_is_not_found_there_with_minus_p(folder, flags, variables):
    status, said = guerdon_in(folder, *SCORE, "my_rewards:make", flags=flags, **variables)
    assert (status, said.count("\n")) == (2, 1), said
    assert "there is no module my_rewards" in said


@pytest.mark.hostile("modules")
@pytest.mark.parametrize("variables", sample([{}, {"PYTHONSAFEPATH": "1"}], {}))
def test_simulators_in_processes_find_a_world_of_the_user_and_import_nothing_else(folder, variables):
    (folder / "my_world.py").write_text((HERE / "tiny_world.py").read_text().replace("tiny_world", "my_world"))
    task = [] if variables else ["env.task=my_world:Dot-v1"]  # with it, the folder is searched for nothing
    status, said = guerdon_in(folder, "run", "tiny.yaml", *task, "env.vectorization=async", **variables)
    assert status == 0, said
    assert imported(folder) == []


@pytest.mark.hostile("modules")
def test_the_folder_is_searched_only_inside_the_block_and_by_its_thread(tmp_path, monkeypatch):
    (tmp_path / "only_while_resolved.py").write_text("")
    monkeypatch.setenv(modules.MODULES_FOLDER, str(tmp_path))
    before = list(sys.meta_path)
    with modules.users_modules():
        assert sys.meta_path[:-1] == before
        assert sys.meta_path[-1].find_spec("only_while_resolved") is not None
        assert sys.meta_path[-1].find_spec("not_there") is None
    assert sys.meta_path == before
    monkeypatch.delenv(modules.MODULES_FOLDER)
    with pytest.raises(ConfigError, match="no module only_while_resolved"):
        registry.Registry("part", "guerdon.parts", {}).factory("only_while_resolved:make")


@pytest.mark.hostile("modules")
def test_guerdon_started_as_a_module_finds_parts_behind_installed_packages(folder):
    words = [*SCORE, "my_rewards:make"]
    for name in PROBED:  # Python itself imports these before any line of guerdon runs
        (folder / f"{name}.py").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "guerdon", *words],
        cwd=folder, env=environment(HERE), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
