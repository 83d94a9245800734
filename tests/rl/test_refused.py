"""What a run says, and what it leaves, before it begins."""

import pytest

from guerdon.errors import GuerdonError
from guerdon.rl.run import run, run_folder
from rl_clock import clock_study, reader_reward, start


def test_a_run_that_cannot_begin_is_no_run(tmp_path):
    model = {"model_type": "resnet", "checkpoint_path": str(tmp_path / "nowhere")}
    study = clock_study(tmp_path, reward={"use_reward_model": True, "model": model})
    with pytest.raises(GuerdonError, match="nowhere"):
        run(study)
    assert (run_folder(study) / "FAILED.json").is_file()
    assert not (run_folder(study) / "run.json").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"combine_mode": "replace", "reward_weight": 0.5}, True),
        ({"combine_mode": "replace"}, False),
        ({"combine_mode": "add", "reward_weight": 0.5}, False),
    ],
)
def test_a_weight_that_changes_nothing_is_said(given, said, tmp_path):
    loop = start(clock_study(tmp_path, reward=reader_reward(**given)))
    loop.close()
    assert any("reward_weight 0.5 changes nothing" in note for note in loop.parts.notes) == said
