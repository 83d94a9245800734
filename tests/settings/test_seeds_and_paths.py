"""One rule for every seed, for absurd sizes, and for paths that would become folders with odd names."""

import os
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from guerdon.compute.generators import small_seed
from guerdon.config.loading import load, validate
from guerdon.errors import ConfigError
from guerdon.settings.base import Settings
from guerdon.settings.study import Study
from tables import cases, refuses

TINY = ["env={type: gymnasium, task: 'tiny_world:Dot-v1'}", "policy={type: mlp, hidden: [8]}"]


def read(*overrides):
    return load(Study, None, [*TINY, *overrides])


def every_form(form=Settings):
    return {form}.union(*(every_form(below) for below in form.__subclasses__()))


def test_every_seed_has_the_rule():
    """No key of any section that is called a seed takes another number."""
    seeds = [
        (name, field)
        for form in every_form()
        for name, field in form.model_fields.items()
        if form.__module__.startswith("guerdon.settings") and name.endswith(("seed", "seeds"))
    ]
    assert len(seeds) > 8
    for name, field in seeds:
        takes = TypeAdapter(Annotated[(field.annotation, *field.metadata, name)])
        several = name.endswith("seeds")
        takes.validate_python([2**64 - 1] if several else 2**64 - 1)
        for wrong in (-1, 2**64):
            with pytest.raises(ValidationError):
                takes.validate_python([wrong] if several else wrong)


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**63, 2**64 - 1])
def test_seeds_of_64_bits_are_taken(seed):
    assert read(f"runner.seed={seed}").runner.seed == seed


@pytest.mark.hostile("configuration")
@cases("seed", ["-1", str(2**64), "1.5", "true", ".inf", ".nan", "1e308", "[1]", "null_", "9" * 400])
def test_other_seeds_are_one_line(seed):
    with refuses("runner.seed") as refused:
        read(f"runner.seed={seed}")
    assert "\n" not in str(refused.value)


def test_a_seed_for_32_bits_is_itself_where_it_fits():
    assert [small_seed(seed) for seed in (0, 5, 2**32 - 1)] == [0, 5, 2**32 - 1]
    large = [small_seed(seed) for seed in (2**32, 2**32 + 5, 2**64 - 1)]
    assert all(0 <= seed < 2**32 for seed in large)
    assert len({*large, 0, 5}) == 5  # not the seed modulo 2^32


@pytest.mark.hostile("configuration")
@cases(
    "override",
    [
        "env.num_envs=" + "9" * 400, "env.num_envs=true", "policy.hidden=[true]", "env.num_envs=1e308",
        "env.num_envs=9223372036854775807", "algorithm.learning_rate=" + "9" * 400,
        'name="a\\0b"', 'work_dir="\\ud800"',
        ".".join("a" * 3000) + "=1", "runner." + "x" * 300 + "=1", "name=" + "[" * 400 + "]" * 400,
        "name=${" + ".".join("a" * 3000) + "}", "runner.threads=100000", "env.frame_size=1000000",
    ],
)  # fmt: skip
def test_absurd_values_are_refused(override):
    with pytest.raises(ConfigError):
        read(override)


@pytest.mark.hostile("configuration")
@cases(
    "path", ["~nobody/x", "~nobody", "~+/x", "$HOME/x", "$HOME", "runs/$USER", "%USERPROFILE%\\x", "a/~/b", "${HOME}/x"]
)
@cases("key", ["work_dir", "runner.logger.log_path", "runner.resume_dir"])
def test_a_path_that_would_become_an_odd_folder_is_refused(key, path):
    with refuses(key, "expand"):
        read(f"{key}='{path}'")


@cases("path", ["runs/a$", "runs/50%", "a~b", "file~", "./~x", "runs/%20", "a$1", "$$"])
def test_odd_names_that_are_meant_stay(path):
    assert read(f"work_dir='{path}'").work_dir == path


@pytest.mark.parametrize("text", ["$x$ is here", "~50 steps", "$HOME is where", "push ~user", "100% of", "$5/box"])
def test_texts_are_no_paths(text):
    assert read(f"env.task_text='{text}'").env.task_text == text


@pytest.mark.hostile("configuration")
def test_the_home_folder_is_expanded_or_refused(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    assert read("work_dir=~/y").work_dir == "/home/x/y"
    assert read("work_dir='~'").work_dir == "/home/x"
    for home in ("", "relative"):
        monkeypatch.setenv("HOME", home)
        with refuses("work_dir", "no home folder"):
            read("work_dir=~/y")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # of a user without an entry
    with refuses("work_dir"):
        read("work_dir=~/y")


LEADING_OUT = ("..", ".", "", "/absolute", "a/../../x", "a//b", "a/", "a\nb")
BELOW = ("run", "a/b/seed0", "...", "a..b", "étude ☃", "ALE/Pong-v5", "module:Name-v0")


def named(name):
    """Configurations with a name that becomes a folder, and the key that is wrong where the name is."""
    arms = {"arms": {"A": {"label": "a"}}, "seeds": [0], "baseline": "A"}
    robot = {"env": {"type": "gymnasium", "task": "tiny_world:Dot-v1"}}
    model = {"model_type": "constant", "value": 1.0}
    yield "runner.logger.experiment_name", robot | {"runner": {"logger": {"experiment_name": name}}}
    yield "env.task", {"env": {"type": "own_worlds:make", "task": name}}
    yield f"compare.arms.{name}", robot | {"compare": arms | {"arms": {name: {"label": "a"}}, "baseline": name}}
    yield "compare.tasks", robot | {"compare": arms | {"tasks": [name]}}
    yield "compare.tasks", robot | {"compare": arms | {"tasks": {name: {}}}}
    yield f"reward.sources.{name}", robot | {"reward": {"use_reward_model": True, "sources": {name: {"model": model}}}}
    yield (
        f"evaluate.remote.{name}",
        robot | {"evaluate": {"data_path": "d", "remote": {name: {"endpoint": "http://h"}}}},
    )
    yield f"train.{name}", robot | {"train": {name: {"type": "resnet", "save_dir": "s", "data_path": "d"}}}


@pytest.mark.hostile("configuration")
@cases("name", LEADING_OUT)
def test_no_name_leads_out_of_its_folder(name):
    for key, given in named(name):
        with refuses(key, "not the name of a folder inside another one"):
            validate(Study, given, origin="f.yaml")


@cases("name", BELOW)
def test_names_of_folders_in_each_other_are_taken(name):
    for key, given in named(name):
        if key != "env.task":  # a factory of one's own must be there
            validate(Study, given, origin="f.yaml")
