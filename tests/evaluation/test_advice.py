"""What to train with, by what a study has and what it reached."""

import json

import jinja2
import pytest
from test_swap import demonstrations, wandering

from guerdon.comparison.report import advice_of
from guerdon.comparison.results import RunRecord
from guerdon.episodes.write import EpisodeWriter
from guerdon.evaluation.gate import advice as words
from guerdon.evaluation.gate.advice import Facts, advice, facts_of, setting_of
from guerdon.pages import formats as fmt
from guerdon.pages.formats import TEXT
from guerdon.settings.study import Study
from guerdon.worlds.build import reports_success


def cloned(facts):
    return f"{words.CLONE.format(demonstrations=facts)} {words.NOT_CLONED}"


CASES = {
    "both": (Facts(True, 20), [cloned("20 demonstrations"), words.BOTH, words.ZERO_ONE, words.NOT_ALONE]),
    "no success in the run": (Facts(False, 1), [cloned("1 demonstration"), words.BLIND, words.BLIND_END]),
    "no demonstrations": (Facts(True, 0), [words.NO_DEMONSTRATIONS]),
    "neither": (Facts(False, 0), [words.NEITHER]),
    "success not known": (
        Facts(None, None),
        [cloned("demonstrations"), words.UNKNOWN.format(known=words.BOTH, unknown=words.BLIND)],
    ),
    "success not known, no demonstrations": (
        Facts(None, 0), [words.UNKNOWN.format(known=words.NO_DEMONSTRATIONS, unknown=words.NEITHER)],
    ),
    "about neither": (Facts(True, 0, learned=False), []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_advice_is_by_what_the_study_has(case):
    facts, expected = CASES[case]
    assert advice(facts) == expected


def test_the_clones_figure_is_in_the_line_about_it():
    assert advice(Facts(True, 20, clone=(0.58, 24)))[0].endswith("Here the clone succeeded in 58% of 24 episodes.")


def test_the_studys_own_figures():
    several = {words.NATIVE: [0.9, 0.86], words.LEARNED: [0.7, 0.8], words.FALLING: [0.96], words.ADDED: []}
    assert advice(Facts(True, 20, settings=several))[-1] == (
        "In this study, true success at the end of training: 0/1 0.88 (2 runs), the learned reward alone 0.75 (2 "
        "runs), both, the learned one with a falling weight 0.96 (1 run)."
    )
    alone = {words.ADDED: [0.25]}
    assert advice(Facts(True, 20, settings=alone))[-1] == (
        "In this run (both), true success at its last evaluation: 0.25."
    )


SOURCE = {"model": {"model_type": "resnet"}, "reward_weight_schedule": "constant"}
SETTINGS = [
    ({}, words.NATIVE),
    ({"env": {"native_reward": "dense"}}, words.DENSE),
    ({"reward": {"use_reward_model": True, "combine_mode": "replace", "sources": {"near": SOURCE}}}, words.LEARNED),
    ({"reward": {"use_reward_model": True, "combine_mode": "add", "sources": {"near": SOURCE}}}, words.ADDED),
    (
        {
            "reward": {
                "use_reward_model": True, "combine_mode": "weighted", "env_reward_weight": 0.5,
                "sources": {"near": {**SOURCE, "reward_weight_schedule": "success"}},
            }
        },
        words.FALLING,
    ),
    (
        {
            "reward": {
                "use_reward_model": True, "combine_mode": "weighted", "env_reward_weight": 0.0,
                "sources": {"near": SOURCE},
            }
        },
        words.LEARNED,
    ),
    ({"algorithm": {"bc_weight": 0.4}}, f"{words.NATIVE}, with cloning"),
    ({"algorithm": {"bc_weight": 0.0}, "policy": {"checkpoint": None}}, words.NATIVE),
    ({"policy": {"checkpoint": "runs/clone"}, "bc": {"save_dir": "runs/clone"}}, f"{words.NATIVE}, with cloning"),
    ({"policy": {"checkpoint": "runs/a/policy"}, "bc": {"save_dir": "b"}}, f"{words.NATIVE}, from another policy"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), SETTINGS)
def test_a_run_is_named_by_what_it_was_trained_with(config, expected):
    assert setting_of(config) == expected


def write(folder, episodes):
    with EpisodeWriter(folder) as writer:
        for episode in episodes:
            writer.add(episode)
    return str(folder)


def test_facts_are_read_from_the_folders_that_a_study_names(tmp_path):
    shown = write(tmp_path / "shown", [*demonstrations(5), *wandering(3)])
    others = write(tmp_path / "others", wandering(3))
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "metrics.json").write_text(json.dumps({"success": 0.25, "eval_episodes": 8}))

    def found(*configs):
        return facts_of(configs, success=True)

    assert found({"algorithm": {"demonstrations": shown}}).demonstrations == 5
    assert found({"collect": {"save_dir": others}}, {"bc": {"data_path": shown}}).demonstrations == 5
    assert found({"collect": {"save_dir": others}}).demonstrations == 0
    assert found({"collect": {"save_dir": str(tmp_path / "later")}}).demonstrations == 0
    assert found({"algorithm": {"demonstrations": str(tmp_path / "later")}}).demonstrations is None
    for data in (shown, [others, shown]):  # what a reward model is trained on
        assert found({"train": {"near": {"data_path": data}, "judge": {"data_path": None}}}).demonstrations == 5
    replayed = {"reward": {"use_reward_model": True, "sources": {"near": {"model": {"replay_path": shown}}}}}
    assert (found(replayed).demonstrations, found(replayed).learned) == (5, True)
    assert found({"bc": {"save_dir": str(clone)}}, {"policy": {"checkpoint": str(clone)}}).clone == (0.25, 8)
    assert found({"bc": {"save_dir": str(tmp_path)}}).clone is None
    (clone / "training.json").write_text("{}")  # of `guerdon train`
    assert setting_of({"policy": {"checkpoint": str(clone)}}) == f"{words.NATIVE}, with cloning"
    (tmp_path / "others" / "meta" / "info.json").write_text("{")
    assert found({"collect": {"save_dir": others}}).demonstrations is None


def record(arm, config, success, *, unit="environment steps"):
    evals = ({"kind": "eval", "step": 10, "success": success, "success_known": 4, "episodes": 4},)
    text = json.dumps(config) if config else ""
    return RunRecord("go", arm, 0, None, "complete", evals=evals, config_text=text, unit=unit)


def test_a_report_speaks_of_its_own_runs(tmp_path):
    shown = write(tmp_path / "shown", demonstrations(5))
    native = {"algorithm": {"demonstrations": shown}}
    learned = {**native, "reward": {"use_reward_model": True, "combine_mode": "replace", "sources": {"near": SOURCE}}}
    found = advice_of([record("A", native, 1.0), record("L", learned, 0.5)])
    assert found[1:4] == [words.BOTH, words.ZERO_ONE, words.NOT_ALONE]
    assert found[4].endswith("0/1 1.00 (1 run), the learned reward alone 0.50 (1 run).")
    assert len(found) == 5, "figures of two runs are no conclusion"
    assert words.BLIND in advice_of([record("L", learned, None)])
    assert advice_of([record("A", {"algorithm": {"type": "ppo"}}, 1.0)]) == []
    assert advice_of([record("A", learned, 1.0, unit=TEXT)]) == []
    assert advice_of([record("A", {}, 1.0)]) == []


def test_which_environments_report_success():
    def asked(**env):
        return reports_success(Study.model_validate({"env": env}).env)

    assert asked(type="metaworld", task="reach") is True
    assert asked(type="gymnasium", task="HalfCheetah-v5", native_reward="dense") is False
    assert asked(type="gymnasium", task="HalfCheetah-v5", native_reward="dense", success_key="far") is True
    assert asked(type="gymnasium", task="corridor:guerdon-tests/Corridor-v0") is None


def test_a_page_shows_commands_as_code_and_data_as_text():
    page = jinja2.Environment(loader=jinja2.FileSystemLoader(fmt.TEMPLATES), autoescape=True)
    page.filters.update({name: one for name, one in vars(fmt).items() if callable(one)})
    shown = page.get_template("parts.html.j2").module.advice_list(["Set `bc`, <b>then</b> `run`."])
    assert "<li>Set <code>bc</code>, &lt;b&gt;then&lt;/b&gt; <code>run</code>.</li>" in shown
