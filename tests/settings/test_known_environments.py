"""The table of known environments: what `guerdon run ID` begins with, and what the user's words leave of it."""

import json
import runpy
from collections import Counter
from pathlib import Path

import pytest

from guerdon.config.loading import to_yaml
from guerdon.settings.known_environments import OTHERS, known_rows, row_of
from guerdon.settings.study import read_study_file
from tables import refuses

ROOT = Path(__file__).parent.parent.parent


def test_every_row_is_used_as_a_whole(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = [row for row in known_rows() if row.env_id != OTHERS]
    assert len({row.env_id for row in rows}) >= 40
    assert max(Counter((row.env_id, row.algorithm) for row in rows).values()) == 1
    for row in rows:
        study = read_study_file(Path(row.env_id), [f"algorithm.type={row.algorithm}"])
        for key, value in row.settings.items():
            section, name = key.split(".")
            found = getattr(getattr(study, section), name)
            assert (list(found) if isinstance(found, tuple) else found) == value, (row.env_id, key)


def test_an_id_begins_with_its_row_and_the_users_words_win(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    study = read_study_file(Path("CartPole-v1"), ["algorithm.gamma=0.9", "policy={type: mlp, hidden: [32]}"])
    assert (study.algorithm.rollout_steps, study.algorithm.gae_lambda) == (32, 0.8)
    assert (study.algorithm.gamma, study.policy.hidden, study.policy.normalize_observations) == (0.9, (32,), True)
    said = capsys.readouterr().err
    assert "[settings] CartPole-v1, PPO, RL Baselines3 Zoo's" in said
    assert "algorithm.gae_lambda=0.8" in said
    assert "gamma=" not in said
    assert "policy." not in said
    dqn = read_study_file(Path("CartPole-v1"), ["algorithm={type: dqn, batch_size: 32}"])
    assert (dqn.algorithm.type, dqn.algorithm.batch_size, dqn.policy.hidden) == ("dqn", 32, (256, 256))


def test_settings_that_do_not_go_with_the_users_words_are_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    study = read_study_file(Path("CartPole-v1"), ["algorithm.adv_estimator=grpo"])
    assert (study.algorithm.adv_estimator, study.algorithm.minibatch_size) == ("grpo", 256)
    assert "gae_lambda" not in capsys.readouterr().err
    study = read_study_file(Path("FetchReach-v4"), ["algorithm.num_epochs=3"])  # of control, and its row is of sac
    assert study.algorithm.num_epochs == 3
    assert "FetchReach-v4: those of the table are not used" in capsys.readouterr().err
    with refuses("algorithm.gama"):
        read_study_file(Path("CartPole-v1"), ["algorithm.gama=0.9"])


def test_other_environments_get_relu_with_sac_and_nothing_else():
    assert row_of("Nobody-v0", None) is None
    assert row_of("my_games:Nobody-v0", "sac").settings["policy.activation"] == "relu"
    assert row_of("Nobody-v0", "control") is None
    assert row_of("ale_py:ALE/Pong-v5", None).settings["env.atari"] is True
    assert row_of("other:CartPole-v1", None) is None


def test_a_run_that_began_without_the_row_goes_on_without_it(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    study = read_study_file(Path("CartPole-v1"))
    without = study.model_validate(
        {"env": {"type": "gymnasium", "task": "CartPole-v1", "native_reward": "dense"}, "work_dir": study.work_dir}
    )
    folder = without.runner.logger.folder
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(without))
    capsys.readouterr()
    assert read_study_file(Path("CartPole-v1"), resume=True) == without
    assert "[settings]" not in capsys.readouterr().err
    assert read_study_file(Path("CartPole-v1")).algorithm == study.algorithm


def test_the_table_of_the_documentation_and_what_was_measured():
    script = ROOT / "benchmarks" / "known_environments.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(script.parent))
        shown = runpy.run_path(str(script))["markdown"]()
    assert shown in (ROOT / "docs" / "environments.md").read_text()
    measured = [json.loads(line) for line in script.with_suffix(".jsonl").read_text().splitlines()]
    found = {(one["id"], one["algorithm"], one["seed"]): one["return"] for one in measured}
    said = {
        (row.env_id, row.algorithm, seed): one for row in known_rows() for seed, one in enumerate(row.returns)
    }  # fmt: skip
    assert said == pytest.approx(found, abs=0.05)
