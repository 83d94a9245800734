"""Prompts without known answers: success is unknown everywhere, and a gold reward that is shown and never trained on."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from guerdon.errors import ConfigError
from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from guerdon.types import Failure, RewardInfo, Score
from text_rl import letter_study, lines, result, start, interrupted

torch.set_num_threads(1)
GOLD = "test_unverified_prompts:gold"


class Counts:
    """The share of a digit in a response; it fails on responses with the letter `f`."""

    info = RewardInfo("counts", (0.0, 1.0), granularity="total", modality="text", frames_needed=0)

    def __init__(self, digit, fails=""):
        self.digit, self.fails = digit, fails

    def score(self, episodes):
        texts = ["".join(one.texts) for one in episodes]
        return [
            Score(failure=Failure("unreadable")) if self.fails and self.fails in t else Score(total=t.count(self.digit) / 3)
            for t in texts
        ]


def proxy():
    return Counts("0")


def gold(fails=""):
    return Counts("1", fails)


def own(factory, **params):
    return {"model": {"model_type": f"test_unverified_prompts:{factory}", "modality": "text", "params": params},
            "shaping": "raw"}  # fmt: skip


def rewards(truth="gold", **given):
    sources = {"proxy": own("proxy"), **({"gold": own("gold")} if truth == "gold" else {})}
    return {"use_reward_model": True, "sources": sources, **({"truth": truth} if truth else {}), **given}


def prompts(folder, **given):
    """Questions alone."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i + 2:b}".replace("0", "a").replace("1", "b")}) + "\n"
                            for i in range(8)))  # fmt: skip
    return {"type": "prompts", "path": str(path), "val_size": 2, "max_response_length": 3, "train_batch_size": 4,
            "n_samples": 4, "filter_truncated": False, **given}  # fmt: skip


def unverified(folder, name="run", **given):
    study = letter_study(folder, name=name).model_dump(exclude_unset=True) | {"data": prompts(folder)}
    return Study.model_validate(study | given)


def test_success_is_unknown_in_every_file_and_no_verifier_is_a_source(tmp_path):
    study = unverified(tmp_path, reward=rewards(truth=None))
    loop = start(study)
    assert list(loop.sources) == list(loop.parts.terms) == ["proxy"]
    loop.run()
    assert {row["success"] for row in lines(study, "episodes")} == {None}
    for row in lines(study):
        assert row.get("success") is None
        assert row.get("hacking_alarm") is None
        assert "return/verifier" not in row
        assert row["success_known"] == 0
        assert row.get("failure_rate", 0) == 0
    assert "success" not in json.loads((run_folder(study) / "COMPLETE").read_text())["final"]
    film = next((run_folder(study) / "films").glob("*.json"))
    assert {row["outcome"] for row in json.loads(film.read_text())["responses"]} == {None}


def test_a_truth_is_measured_everywhere_and_changes_nothing_that_learns(tmp_path):
    plain = unverified(tmp_path, "plain", reward=rewards(truth=None))
    shown = unverified(tmp_path, "shown", reward=rewards())
    for study in (plain, shown):
        start(study).run()
    weights = [{k: v for k, v in result(one).items() if k.endswith("safetensors")} for one in (plain, shown)]
    assert weights[0] == weights[1]
    assert weights[0]
    for one, other in zip(lines(plain), lines(shown), strict=True):
        if one["kind"] == "train":
            assert other["truth"] == other["return/gold"] is not None
            assert other["return/combined"] == one["return/combined"] == one["return/proxy"]
        else:
            assert 0 <= other["truth"] <= 1
            assert other["truth_known"] == other["episodes"] == 2
        assert other.get("success") is None
    film = next((run_folder(shown) / "films").glob("*.json"))
    assert all(set(row["rewards"]) == {"proxy", "gold"} for row in json.loads(film.read_text())["responses"])


def test_a_run_with_a_truth_that_is_killed_goes_on_to_the_same_bytes(tmp_path):
    whole, cut = (unverified(tmp_path, name, reward=rewards()) for name in ("whole", "cut"))
    start(whole).run()
    interrupted(cut, "update", 3)
    start(cut, resume=True).run()
    assert result(cut) == result(whole)
