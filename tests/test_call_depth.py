"""How many functions of guerdon stand between a command and the loss."""

import sys
from pathlib import Path

import call_depth

MOST = 12


def test_a_reader_reaches_the_loss_through_few_functions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    Path("study.yaml").write_text(call_depth.TEXT)
    for name, words in call_depth.RUNS.items():
        frames = call_depth.frames_to_the_loss(words)
        assert 0 < len(frames) - 1 <= MOST, (name, frames)
