"""The side of `make gpu-check` that verl runs: its reward, its configuration, and what is read of its log."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
MAIN = """
import json, os, sys
given = dict(key.split("=", 1) for key in sys.argv[1:])
assert os.path.isfile(given["data.train_files"])
with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as file:
    for step in range(int(given["trainer.total_training_steps"])):
        numbers = {"perf/time_per_step": 10.0 if step == 0 else 2.0, "response_length/mean": 3.0}
        file.write(json.dumps({"step": step + 1, "data": numbers}) + "\\n")
"""


@pytest.fixture
def side(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import verl_side

    yield verl_side
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]  # they may be those of a stand-in
    if verl_side._problems.cache_info().currsize:
        verl_side._problems()[1].close()
        verl_side._problems.cache_clear()


def test_the_reward_is_the_verifiers(side):
    prompt = side._problems()[0][3]
    assert side.compute_score("chain", prompt.solution, "3") == 1.0
    assert side.compute_score("chain", side._problems()[0][4].solution, "3") == 0.0


def test_steps_after_the_warm_up_count(side, monkeypatch, tmp_path):
    """verl generates on a GPU only: a stand-in of its trainer writes the log."""
    for name, text in {
        "trainer/main_ppo.py": MAIN,
        "trainer/ppo/utils.py": "need_critic = need_reference_policy = None",
        "utils/config.py": "validate_config = None",
    }.items():
        file = tmp_path / "verl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for folder in (*file.relative_to(tmp_path).parents,)[:-1]:
            (tmp_path / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(side, "find_spec", lambda name: name)
    size = side.Size(16, 1, 1, 1, 16, None, 2, 4, 8, 1, 3)
    found = side.run_verl("nowhere", size)
    assert found == {"seconds": 6.0, "samples": 24, "tokens": 24.0, "updates": 3}


@pytest.mark.usefixtures("no_gpu")
def test_verl_takes_the_configuration(side):
    pytest.importorskip("verl", reason="needs verl, in an environment of its own")
    with pytest.raises(RuntimeError, match="verl takes the configuration"):
        side.run_verl("nowhere", side.SIZES["0.4M"])
