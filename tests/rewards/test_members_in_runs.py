"""Preference models with members in a run: the spread in its metrics, the lower bound as its reward."""

import sys
from pathlib import Path

import pytest
import torch

from guerdon.config.loading import validate
from guerdon.models.load import load_reward_model
from guerdon.models.text.sequence_classifier import PreferenceModel
from guerdon.models.text.text_card import TextModelCard
from guerdon.settings.study import Study
from guerdon.types import Episode
from text_rl import letter_study, lines, start

sys.path.append(str(Path(__file__).parents[1] / "models"))
from tiny_text_policies import tiny_policy

from tables import refuses

torch.set_num_threads(1)
MEMBERS = dict.fromkeys(("m0", "m1", "m2"), 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A preference model with three members, trained for their mean, and one without members."""
    root = tmp_path_factory.mktemp("members")
    for name, more in {"rm": {"outputs": MEMBERS, "combine": "mean"}, "one": {}}.items():
        card = TextModelCard("preference", "conversation", "bradley_terry", **more)
        PreferenceModel(tiny_policy(), card).write(root / name)
    return root


def of(folder, name="rm", **given):
    return {"model_type": "text", "checkpoint_path": str(folder / name), "device": "cpu", **given}


def run_of(root, folder, name, **given):
    section = {"use_reward_model": True, "sources": {"rm": {"model": of(folder, **given), "shaping": "raw"}}}
    study = letter_study(root, name=name, reward=section, runner={"total_steps": 32})
    start(study).run()
    return lines(study, "episodes"), [row for row in lines(study) if row["kind"] == "train"]


def test_a_run_logs_the_spread_and_is_paid_the_lower_bound(tmp_path, folder):
    mean, rows = run_of(tmp_path, folder, "mean")
    spread = rows[0]["reward_model/rm/spread"]
    assert spread > 0
    for deviations, name in ((1.0, "one"), (2.5, "more")):
        given = {} if deviations == 1.0 else {"deviations": deviations}
        lower, others = run_of(tmp_path, folder, name, member_reward="lower_bound", **given)
        assert others[0]["reward_model/rm/spread"] == pytest.approx(spread), "the first responses are the same"
        first = slice(0, 16)  # an update
        gaps = [a["return/rm"] - b["return/rm"] for a, b in zip(mean[first], lower[first], strict=True)]
        assert sum(gaps) / 16 == pytest.approx(deviations * spread, rel=1e-4)
        assert min(gaps) >= 0
    kept, _ = run_of(tmp_path, folder, "kept", member_reward="mean")
    assert [row["return/rm"] for row in kept] == [row["return/rm"] for row in mean]


def test_a_served_or_python_model_takes_the_same_keys(folder):
    episode = Episode(id="a", task="2+2?", texts=("4",))
    mean, lower = (
        load_reward_model("text", folder / "rm", device="cpu", **given).score([episode])[0]
        for given in ({}, {"member_reward": "lower_bound", "deviations": 2.0})
    )
    assert lower.spread == mean.spread > 0
    assert lower.total == pytest.approx(mean.total - 2 * mean.spread)


def test_what_would_do_nothing_is_refused(tmp_path, folder):
    with refuses("member_reward", "which has no members"):
        load_reward_model("text", folder / "one", device="cpu", member_reward="lower_bound")
    source = {"model": of(folder, deviations=2.0), "shaping": "raw"}
    given = letter_study(tmp_path).model_dump(exclude_unset=True)
    with refuses("reward.sources.rm.model.deviations"):
        validate(Study, given | {"reward": {"use_reward_model": True, "sources": {"rm": source}}}, origin="study")
