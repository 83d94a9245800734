"""Names of other trainers: each is refused with guerdon's key, and the keys exist."""

import importlib.util
from pathlib import Path

import pytest

from guerdon.config.loading import load, validate
from guerdon.settings.other_trainers import OTHER_NAMES, hint_for
from guerdon.settings.study import Study
from tables import cases, refuses

ROOT = Path(__file__).parents[2]
TEXT = {"policy": {"type": "text", "tiny": {}}, "data": {"type": "generated"}}


@pytest.fixture(scope="module")
def knobs():
    spec = importlib.util.spec_from_file_location("make_knobs", ROOT / "docs" / "make_knobs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_key_of_the_table_exists(knobs):
    keys = {key for key, *_ in knobs.settings_rows()}
    named = {key for one in OTHER_NAMES.values() for key in one.key.split(", ") if key}
    known = {key for key in named if any(k == key or k.startswith(f"{key}.") for k in keys)}
    assert named - known - {"reward.model"} == set()  # short for the one of reward.sources.<name>
    assert not [name for name, one in OTHER_NAMES.items() if not one.key and not one.convert]


@cases(
    ("key", "said"),
    [
        ("data.rollout_n", "rollout_n of verl is data.n_samples here"),
        ("generation.max_new_tokens", "max_new_tokens of TRL, transformers is data.max_response_length here"),
        ("algorithm.epsilon_high", "epsilon_high of TRL is algorithm.clip_range_high here"),
        ("algorithm.ppo_mini_batch_size", "times data.n_samples: guerdon counts responses, verl prompts"),
        ("runner.save_steps", "runner.checkpoint_every here: times data.train_batch_size x data.n_samples"),
        ("runner.logging_steps", "logging_steps of TRL, OpenRLHF: every update is logged"),
    ],
)
def test_a_name_is_refused_with_the_key_of_the_same_meaning(key, said):
    section, name = key.split(".")
    given = {**TEXT, section: {**TEXT.get(section, {}), name: 8}}
    with refuses(key) as caught:
        validate(Study, given, origin="study")
    assert said in str(caught.value)


def test_keys_inside_a_section_of_another_trainer_are_named(tmp_path):
    given = {"rollout": {"n": 8, "name": "vllm", "temperature": 0.7}, "actor": {"clip_ratio": 0.2, "ppo_epochs": 2}}
    hint = hint_for("actor_rollout_ref", given)
    assert hint.startswith("rollout.n of verl is data.n_samples here; clip_ratio of verl is algorithm.clip_range here")
    (tmp_path / "study.yaml").write_text("policy: {type: text, tiny: {}}\ndata: {type: generated}\n")
    with refuses("actor_rollout_ref", r"rollout\.n of verl is data\.n_samples here"):
        load(Study, tmp_path / "study.yaml", ["actor_rollout_ref.rollout.n=8"])


@pytest.mark.parametrize("given", [{"algorithm.gamma": 0.9}, {"algorithm": {"gamma": 0.9}}])
def test_a_section_that_is_written_in_an_arm_belongs_under_config(given):
    with refuses(
        f"compare.arms.B.{next(iter(given))}", r"unknown key; what an arm changes .* is under compare\.arms\.B\.config"
    ):
        validate(Study, {"compare": {"baseline": "A", "arms": {"A": {}, "B": given}}}, origin="study")


def test_other_unknown_keys_and_other_sections_keep_their_hint():
    assert hint_for("data.n_smaples", 8) == hint_for("train.x.lr", 1) == hint_for("algorithm.unheard_of", 1) == ""
    with refuses("data.n_smaples", r"did you mean data\.n_samples"):
        validate(Study, {**TEXT, "data": {"n_smaples": 8}}, origin="study")
