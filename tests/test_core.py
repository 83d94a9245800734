"""guerdon without the extra `train`: its packages are there, and cannot be imported."""

import json
import sys
from pathlib import Path

import pytest

from child import environment

sys.path += [str(Path(__file__).parent / name) for name in ("serve", "labels")]
from judge_server import judge_server
from processes import start_server

from core_commands import check, said, written
from guerdon.errors import TRAIN

BLOCKS = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {TRAIN}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from importlib import metadata
version = metadata.version
def known(name):
    if name in {TRAIN}:
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = known
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Variables of an environment in which the packages of the extra are not found."""
    folder = tmp_path_factory.mktemp("blocked")
    (folder / "sitecustomize.py").write_text(BLOCKS)
    return environment(folder)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    running = start_server(tmp_path_factory.mktemp("server"))
    yield running
    assert running.stop() == 0


@pytest.mark.slow
def test_every_command_works_or_names_the_extra(core, tmp_path):
    """As `make test-core` in an environment without the extra, which `.ci/run` does each time."""
    check(tmp_path, core)


@pytest.mark.slow
def test_a_server_scores_and_evaluates_without_it(core, tmp_path, served):
    written(tmp_path)
    address = f"{served.url}/v1/rewards?model=toy"
    status, printed, _ = said(f"score log.jsonl --model {address} -o scored.jsonl", tmp_path, core)
    assert status == 0, printed
    rows = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert [row["guerdon_failure"] for row in rows] == [None] * 30
    status, printed, _ = said(f"evaluate --model {address} --data pairs.jsonl -o card", tmp_path, core)
    assert status == 0, printed
    assert json.loads((tmp_path / "card" / "evaluation.json").read_text())["pairs"]["overall"]["measured"]["n"] == 5


def test_a_judge_scores_without_it(core, tmp_path):
    written(tmp_path)
    (tmp_path / "rubric.toml").write_text('[[criteria]]\nname = "short"\ntext = "It is short."\n')
    reply = json.dumps({"short": {"reason": "one number", "choice": "yes"}})
    with judge_server(lambda text: reply) as server:
        keys = f"judge.api=openai judge.model=m judge.base_url={server.url}/v1"
        prices = "judge.usd_per_million_in=0 judge.usd_per_million_out=0"
        words = f"score log.jsonl --model rubric.toml -o scored.jsonl {keys} {prices}"
        status, printed, _ = said(words, tmp_path, core)
    assert status == 0, printed
    rows = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert [row["guerdon_reward"] for row in rows] == [1.0] * 30
