from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from episode_samples import assert_equal, sample

from guerdon.episodes.index import index_files
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter

pytestmark = pytest.mark.hostile("kills")

CHILD = """
import itertools, sys
sys.path.insert(0, sys.argv[2])
from episode_samples import sample
from guerdon.episodes.write import EpisodeWriter
with EpisodeWriter(sys.argv[1], flush_every=2) as writer:
    for number in itertools.count():
        writer.add(sample(number))
"""


@pytest.mark.parametrize("flushes", [1, 4])
def test_a_killed_writer_loses_only_unflushed_episodes(tmp_path, flushes):
    root = tmp_path / "episodes"
    here = str(Path(__file__).parent)
    with subprocess.Popen([sys.executable, "-c", CHILD, str(root), here]) as child:
        deadline = time.monotonic() + 60
        try:
            while len(index_files(root)) < flushes:
                assert time.monotonic() < deadline, "the child wrote nothing in a minute"
                try:
                    code = child.wait(timeout=0.01)
                except subprocess.TimeoutExpired:
                    continue
                pytest.fail(f"the child left with {code}")
        finally:
            child.kill()
    assert child.returncode == -9

    survivors = list(read_episodes(root))
    assert len(survivors) >= 2 * flushes
    assert len(survivors) % 2 == 0
    for number, episode in enumerate(survivors):
        assert_equal(episode, sample(number))

    with EpisodeWriter(root) as writer:
        writer.add(sample(len(survivors)))
    again = list(read_episodes(root))
    assert len(again) == len(survivors) + 1
    assert_equal(again[-1], sample(len(survivors)))
    assert not list(root.rglob("*.partial"))
