"""Parts that users bring: found by name, their params checked, and every mistake said in one line."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

import guerdon.config.registry
from guerdon import doctor
from guerdon.cli import app
from guerdon.config.loading import load
from guerdon.config.registry import Registry
from guerdon.errors import ConfigError
from guerdon.models.load import load_reward_model
from guerdon.settings.study import Study
from guerdon.types import RewardInfo
from tables import cases, refuses

MODULE = """
from pydantic import BaseModel
class Mine:
    info = __import__("guerdon.types").types.RewardInfo(name="mine", range=(0.0, 1.0))
    def __init__(self, gain: float = 1.0, *, device=None): self.gain, self.device = gain, device
    def score(self, episodes): return []
class Params(BaseModel, extra="forbid"):
    gain: float
def whole(params: Params): return Mine(params.gain)
def number(): return 3
def fails(): raise OSError("no weights\\nhere")
def free(**options): return Mine(**options)
value = 3
"""
THINGS = Registry("thing", "guerdon.things", {"plain": "builtins:dict"}, ("device",))


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "parts_of_mine.py").write_text(MODULE)
    (tmp_path / "broken_part.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("parts_of_mine", None)


def test_a_factory_gets_its_params_and_what_it_names_of_what_is_offered():
    made = THINGS.build("parts_of_mine:Mine", {"gain": "2"}, object, device="cpu", other=1)
    assert (made.gain, made.device) == (2.0, "cpu")
    assert THINGS.build("parts_of_mine:whole", {"gain": 3}, object, device="cpu").gain == 3.0
    assert THINGS.build("parts_of_mine:free", {"gain": 3}, object).gain == 3
    assert THINGS.factory("plain") is dict
    assert THINGS.build("plain", {"gain": 3}, dict, device="cpu") == {"gain": 3}  # written in C: it names no parameters


def test_what_one_call_changes_in_its_arguments_no_other_sees():
    make = THINGS.maker("plain", {"names": ["a"]}, dict)
    one, other = make(), make()
    one["names"].append("b")
    assert other == {"names": ["a"]}


@pytest.mark.hostile("parts")
@cases(
    ("name", "params", "line"),
    [
        ("plan", {}, "unknown thing 'plan': choose one of plain, or write package.module:factory; did you mean "
         "'plain'?"),
        ("nowhere.parts:make", {}, "the thing nowhere.parts:make: there is no module nowhere; install its package, or "
         "start guerdon in the folder that holds it"),
        ("broken_part:make", {}, "the thing broken_part:make: the module broken_part cannot be imported: "
         "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("parts_of_mine:Min", {}, "the thing parts_of_mine:Min: there is no Min in parts_of_mine; did you mean Mine?"),
        ("parts_of_mine:value", {}, "the thing parts_of_mine:value is a int and cannot be called: name a factory"),
        ("parts_of_mine:Mine", {"gian": 2}, "the thing parts_of_mine:Mine: params.gian = 2: unknown key; did you mean "
         "params.gain?"),
        ("parts_of_mine:Mine", {"gain": "much"}, "the thing parts_of_mine:Mine: params.gain is 'much'; allowed: "
         "number"),
        ("parts_of_mine:Mine", {"device": "cpu"}, "the thing parts_of_mine:Mine: params.device = 'cpu': unknown key; "
         "known keys here: gain"),
        ("parts_of_mine:number", {"gain": 1}, "the thing parts_of_mine:number: params.gain = 1: unknown key; there "
         "are no keys here; remove it"),
        ("parts_of_mine:whole", {}, "the thing parts_of_mine:whole: params.gain is missing and has no default"),
        ("parts_of_mine:number", {}, "the thing parts_of_mine:number returned a int, which is not a RewardInfo: "
         "docs/extend.md shows what it must have"),
        ("parts_of_mine:fails", {}, "the thing parts_of_mine:fails raised: OSError: no weights here"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line(name, params, line):
    with pytest.raises(ConfigError) as caught:
        THINGS.build(name, params, RewardInfo)
    assert str(caught.value) == line


def test_installed_packages_register_names(monkeypatch):
    found = [
        EntryPoint("mine", "parts_of_mine:Mine", "guerdon.things"), EntryPoint("plain", "x:y", "guerdon.things"),
    ]  # fmt: skip
    monkeypatch.setattr(
        guerdon.config.registry, "entry_points", lambda group: found if group == "guerdon.things" else []
    )
    assert THINGS.registered() == {"mine": found[0]}  # a name of guerdon's own stays its own
    assert THINGS.build("mine", {}, object).gain == 1.0
    with pytest.raises(ConfigError, match="choose one of plain, mine, or write"):
        THINGS.factory("yours")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder on the path with an installed package, one of whose parts works."""
    (tmp_path / "far_parts").mkdir()
    (tmp_path / "far_parts" / "__init__.py").touch()
    (tmp_path / "far_parts" / "rewards.py").write_text("def make(gain: float = 1.0): ...\n")
    (tmp_path / "far_parts" / "worlds.py").write_text("import no_such_simulator\n")
    info = tmp_path / "far_parts-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: far-parts\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(
        "[guerdon.reward_models]\nglow = far_parts.rewards:make\nconstant = far_parts.rewards:make\n"
        "[guerdon.worlds]\npond = far_parts.worlds:Pond\n"
        "[guerdon.judges]\nowl = far_parts.judges:Owl\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "far_parts"]:
        del sys.modules[name]


def test_help_shows_the_names_of_installed_parts_and_which_are_broken(installed):
    def shown(*verb):
        result = CliRunner().invoke(app, [*verb, "--help"])
        assert result.exit_code == 0
        lines = re.sub(r"\n {5,}", " ", re.sub(r"-\n {5,}", "-", result.output.partition("Parts by name")[2]))
        return dict(re.findall(r"^  (\w+(?: \w+)?)  +(.*)$", lines, re.M))

    everything = shown("run") | shown("label")
    kinds = [
        "reward model",
        "world",
        "policy",
        "estimator",
        "policy loss",
        "verifier",
        "packaged model",
        "labeler",
        "judge",
    ]
    assert list(everything) == kinds
    assert not shown()  # the first page stays short and quick
    assert everything["reward model"].startswith("resnet, ")
    assert everything["reward model"].endswith(", glow (of far-parts 2.1)")  # `constant` stays the built-in's
    assert everything["world"] == "metaworld, libero, maniskill, gymnasium, pond (of far-parts 2.1)"  # its import fails
    assert everything["judge"] == "anthropic, openai, local, owl (of far-parts 2.1; broken: no module far_parts.judges)"
    assert shown("label")["judge"] == everything["judge"]
    assert list(shown("collect")) == ["world"]
    assert list(shown("serve")) == ["reward model", "packaged model"]
    assert shown("doctor") == {}
    assert not [name for name in sys.modules if name.startswith("far_parts")]


def test_the_doctor_imports_installed_parts(installed):
    checks = {check.name: check for check in doctor.check_parts()}
    assert list(checks) == ["reward model constant", "reward model glow", "world pond", "judge owl"]
    hidden = checks["reward model constant"]
    assert (hidden.status, hidden.detail) == (
        "warn", "of far-parts 2.1 is never used: a part of guerdon has the same name",
    )  # fmt: skip
    assert "far_parts.rewards:make" in hidden.fix
    assert (checks["reward model glow"].status, checks["reward model glow"].detail) == (
        "ok", "far_parts.rewards:make of far-parts 2.1",
    )  # fmt: skip
    assert checks["world pond"].status == checks["judge owl"].status == "warn"
    assert "no_such_simulator" in checks["world pond"].detail
    assert "there is no module far_parts.judges" in checks["judge owl"].detail
    assert "far-parts 2.1" in checks["judge owl"].fix


def test_mistakes_in_a_study_have_file_and_line(tmp_path):
    def said(model, key):
        (tmp_path / "study.yaml").write_text(f"reward:\n  use_reward_model: true\n  model:\n    {model}\n")
        with refuses(key) as caught:
            load(Study, tmp_path / "study.yaml")
        return str(caught.value).removeprefix(str(tmp_path))

    assert said("model_type: parts_of_mine:Min", "reward.model.model_type").startswith(
        "/study.yaml:4: reward.model.model_type is 'parts_of_mine:Min': the reward model parts_of_mine:Min: there is no"
    )
    assert said("{model_type: parts_of_mine:Mine, params: {gian: 1}}", "reward.model.params.gian").startswith(
        "/study.yaml:3: reward.model does not fit together: the reward model parts_of_mine:Mine: params.gian = 1: "
    )
    assert said("{model_type: parts_of_mine:Mine, gain: 1}", "reward.model.gain").startswith(
        "/study.yaml:4: reward.model.gain = 1: unknown key"
    )


def test_a_reward_model_of_ones_own_is_loaded_like_any_other():
    assert load_reward_model("parts_of_mine:Mine", params={"gain": 2}).gain == 2.0
    with pytest.raises(ConfigError, match="judges image, as its info says, and not text"):
        load_reward_model("parts_of_mine:Mine", modality="text")


def test_names_need_no_heavy_imports():
    code = "import sys, guerdon.settings.study as s; sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_any_name_may_be_an_argument():
    def make(copy: int, schema: str = "x"):
        return copy, schema

    model, whole = guerdon.config.registry._params_model(make, ())
    assert not whole
    assert model.model_validate({"copy": 2}).model_dump(by_alias=True) == {"copy": 2, "schema": "x"}
