"""Films are decoded in processes with limits: what a film does to its decoder is its own reason alone."""

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
from judged import episode, episodes_of
from PIL import Image

from guerdon.annotate.pictures import EpisodePictures
from guerdon.episodes.index import load_index
from guerdon.episodes.layout import load_info
from guerdon.errors import DataError

PROGRAM = """
import os
from guerdon.processes.subprocess_worker import answer_requests

def answer(request):
    {}

answer_requests(answer, alarm=60, processor=0.2)
"""


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    root = episodes_of(tmp_path_factory.mktemp("films") / "data", 2, video=True, length=40)
    return root, load_index(root, load_info(root))[0]


@pytest.mark.parametrize(
    ("done", "reason"),
    [("os._exit(1)", "the decoding process died"), ("while True: pass", "not decoded within 10 s of processor time")],
)
def test_a_decoder_that_dies_or_hangs_is_replaced(films, tmp_path, monkeypatch, done, reason):
    (tmp_path / "bad_decoder.py").write_text(PROGRAM.format(done))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    root, (first, second) = films
    pictures = EpisodePictures(root, program="bad_decoder")
    for entry in (first, second):
        with pytest.raises(DataError, match=reason):
            asyncio.run(pictures.picture(entry, "front", 3))
    pictures.close()


def test_rows_that_are_asked_for_at_once_are_those_rows(films):
    root, (first, second) = films
    pictures = EpisodePictures(root)
    pictures.start()

    async def ask():
        rows = (pictures.picture(one, "front", row) for one in (first, second) for row in range(40))
        return await asyncio.gather(*rows)

    found = [np.asarray(Image.open(io.BytesIO(one)), float) for one in asyncio.run(ask())]
    truth = [frame for number in range(2) for frame in episode(number, 40).frames]
    for place, shown in enumerate(found):
        distances = [np.abs(frame - shown).mean() for frame in truth]
        assert np.argmin(distances) == place
    assert asyncio.run(pictures.picture(first, "front", 40)) is None
    assert asyncio.run(pictures.picture(first, "back", 0)) is None
    pictures.close()


@pytest.mark.skipif(not Path("/proc/self/limits").is_file(), reason="needs /proc")
def test_the_memory_of_a_decoder_is_limited(films):
    root, (first, _) = films
    pictures = EpisodePictures(root)
    assert asyncio.run(pictures.picture(first, "front", 0))
    (worker,) = pictures._pool._running
    limits = Path(f"/proc/{worker.process.pid}/limits").read_text().splitlines()
    (memory,) = [line.split()[3] for line in limits if line.startswith("Max address space")]
    assert 1 << 30 < int(memory) < 8 << 30
    pictures.close()
