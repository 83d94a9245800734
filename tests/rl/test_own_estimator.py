"""An estimator that is not guerdon's is one file: what it needs is said by its factory."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import guerdon
from guerdon.comparison.single_run import RunStage
from guerdon.rl.advantages import Estimate, check_estimator, grpo, small_case
from guerdon.rl.run import run
from guerdon.settings.algorithm import ControlAlgorithmSettings, EstimatorInfo, TextAlgorithmSettings
from rl_clock import clock_study
from tables import cases, refuses

SEEN = []


def make_groups():
    """GRPO, which notes the groups that it was given."""

    def estimate(source, steps):
        SEEN.append(steps.groups_B)
        return Estimate(*grpo(source, steps)[:2])

    return estimate


make_groups.info = EstimatorInfo(groups=True, kl_in="reward")


def make_plain():
    return lambda source, steps: Estimate(source.rewards_B_T, steps.mask_B_T)


def test_a_robots_own_estimator_of_groups_compares_episodes_with_the_same_start(tmp_path):
    SEEN.clear()
    algorithm = {"adv_estimator": f"{__name__}:make_groups", "group_size": 2, "minibatch_size": 8}
    run(clock_study(tmp_path, algorithm=algorithm, env={"num_envs": 4}, runner={"total_steps": 24}))
    assert SEEN
    assert all(np.unique(groups, return_counts=True)[1].tolist() == [2] * (len(groups) // 2) for groups in SEEN)


def test_keys_of_groups_and_critics_follow_what_it_says():
    grouped, plain = f"{__name__}:make_groups", f"{__name__}:make_plain"
    assert ControlAlgorithmSettings(adv_estimator=grouped, group_size=4).needs == make_groups.info
    assert ControlAlgorithmSettings(adv_estimator=plain, value_coef=0.5, rollout_steps=8).needs.critic
    assert TextAlgorithmSettings(adv_estimator=grouped, kl_coef=0.1).kl_in == "reward"
    for name, key in ((grouped, "value_coef"), (grouped, "rollout_steps"), (plain, "group_size")):
        with refuses(key):
            ControlAlgorithmSettings(adv_estimator=name, **{key: 2})


def make_wrong(what: str):
    """Estimators that a run could not use."""
    return {
        "no targets": lambda source, steps: Estimate(source.rewards_B_T, steps.mask_B_T),
        "no estimate": lambda source, steps: source.rewards_B_T,
        "no mask": lambda source, steps: Estimate(source.rewards_B_T, None, source.rewards_B_T),
        "short": lambda source, steps: Estimate(source.rewards_B_T[:, :-1], steps.mask_B_T, source.rewards_B_T),
        "raises": lambda source, steps: source.rewards,
    }[what]


@cases(
    ("what", "said"),
    [
        (
            "no targets",
            "gives no targets_B_T, which the critic .* `info = EstimatorInfo\\(critic=False\\)` on its factory",
        ),
        ("no estimate", "returned an array \\(4, 3\\): it must return an Estimate of advantages_B_T and known_B_T"),
        ("no mask", "gives known_B_T as a NoneType: it must be an array \\(4, 3\\)"),
        ("short", "gives advantages_B_T as an array \\(4, 2\\)"),
        ("raises", "raised on the case of docs/extend.md#estimator: AttributeError"),
    ],
)
def test_an_estimator_that_a_run_could_not_use_is_refused_before_it_starts(what, said):
    name = f"{__name__}:make_wrong"
    settings = ControlAlgorithmSettings(adv_estimator=name, estimator_params={"what": what})
    with refuses("algorithm.adv_estimator", f"the estimator {name} {said}"):
        check_estimator(settings)


def test_a_dry_run_and_a_run_call_the_estimator_first(tmp_path):
    algorithm = {"adv_estimator": f"{__name__}:make_wrong", "estimator_params": {"what": "no targets"}}
    study = clock_study(tmp_path, algorithm=algorithm)
    for refused in (RunStage().check, run):
        with refuses("algorithm.adv_estimator"):
            refused(study)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_example_of_the_docs_does_what_they_say():
    page = (Path(guerdon.__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
    section = page.partition("## Estimator\n")[2].partition("\n## ")[0]
    code = re.search(r"^```python\n(.*?)^```", section, re.S | re.M)[1]
    names = {"np": np, "Callable": Callable}
    exec(code, names)
    factory = names["make_batch_baseline"]
    source, steps = small_case(factory.info)
    found = factory()(source, steps)
    shown = re.findall(r"^\| \d \| .* \| (.*) \|$", section, re.M)
    for row, cells in enumerate(line.split(", ") for line in shown):
        for place, cell in enumerate(cells):
            assert found.known_B_T[row, place] == (cell != "unknown")
            assert found.advantages_B_T[row, place] == pytest.approx(0.0 if cell == "unknown" else float(cell))
    assert len(shown) == len(source.rewards_B_T)
