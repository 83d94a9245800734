"""A model's folder is data: no code of it runs, no pickle is read, nothing outside is opened, templates are bounded."""

import json
import os
import pickle
import shutil
import struct
import sys
import zipfile
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_models import tiny_policy
from transformers import (
    AutoModelForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from guerdon import cli
from guerdon.compute.finite import load_weights, save_weights
from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.network import hub
from guerdon.policies.batches.tokens import prompt_ids
from guerdon.policies.language.text_files import load_policy, outline, read_model, save_policy
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.policies.pretrained import adapter_files, chat_template
from guerdon.policies.pretrained.chat_template import check_templates
from guerdon.policies.pretrained.pickled import import_model
from guerdon.policies.pretrained.reading import map_pretrained, read_pretrained, read_tokenizer, refuse_undescribed
from guerdon.reading.chats import ChatError
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings
from guerdon.types import Episode
from tables import cases, first, sample

EVIL = "from pathlib import Path\nPath({marker!r}).write_text('ran')\n"
CLASSES = {
    "modeling_evil.py": "from transformers import LlamaForCausalLM\nclass Evil(LlamaForCausalLM): ...\n",
    "configuration_evil.py": "from transformers import LlamaConfig as C\nclass EvilConfig(C):\n    model_type = 'evil'",
    "tokenization_evil.py": "from transformers import PreTrainedTokenizerFast as P\nclass EvilTokenizer(P): ...\n",
}


@pytest.fixture
def model(tmp_path):
    """The folder of a small language model, written by transformers and not sealed."""
    policy = tiny_policy()
    folder = tmp_path / "model"
    policy.base.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def says_yes(monkeypatch):
    """Whoever asks on standard input whether code may run is told yes."""
    monkeypatch.setattr(sys, "stdin", StringIO("y\n" * 50))


def edited(file, **changes):
    said = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in (said | changes).items() if value is not None}))


def with_code(folder, marker, **config):
    """Give a folder code of its own, which writes the marker when it is imported."""
    for name, code in CLASSES.items():
        (folder / name).write_text(EVIL.format(marker=str(marker)) + code)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(
        EVIL.format(marker=str(marker)) + "def generate(*a, **k): ...\n"
    )
    classes = {"AutoConfig": "configuration_evil.EvilConfig"}
    for kind in ("AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModel"):
        classes[kind] = "modeling_evil.Evil"
    edited(folder / "config.json", auto_map=classes, **config)
    edited(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "tokenization_evil.EvilTokenizer"]})


@pytest.mark.hostile("models")
def test_code_beside_a_model_that_transformers_has_is_not_looked_at(model, tmp_path, says_yes):
    plain, ids = read_model(str(model))[0].state_dict(), read_tokenizer(str(model)).encode("1 + 1")
    with_code(model, tmp_path / "marker")
    found, tokenizer = read_model(str(model))
    assert type(found).__module__.startswith("transformers.")
    assert all(torch.equal(weight, plain[name]) for name, weight in found.state_dict().items())
    assert tokenizer.encode("1 + 1") == ids
    assert not (tmp_path / "marker").exists()


@pytest.mark.hostile("models")
def test_a_model_that_only_its_own_code_can_build_is_refused(model, tmp_path, says_yes):
    with_code(model, tmp_path / "marker", model_type="evil")
    for read in (read_model, SequenceClassifier, lambda path: read_pretrained(AutoModelForCausalLM, path, "the model")):
        with pytest.raises(CheckpointError, match=r"(code|evil)") as error:
            read(str(model))
        assert "trust_remote_code" not in str(error.value)
    assert not (tmp_path / "marker").exists()


@pytest.mark.hostile("models")
def test_a_class_that_transformers_lacks_for_a_kind_it_has_is_refused(model, tmp_path, says_yes):
    from transformers import AutoModelForImageTextToText

    with_code(model, tmp_path / "marker")
    config = json.loads((model / "config.json").read_text())
    edited(model / "config.json", auto_map=config["auto_map"] | {"AutoModelForImageTextToText": "modeling_evil.Evil"})
    with pytest.raises(CheckpointError, match="guerdon does not run code of a model's folder"):
        read_pretrained(AutoModelForImageTextToText, str(model), "the model")
    assert not (tmp_path / "marker").exists()


TASK = {"family": "chain", "steps": 2, "ops": "+"}
DATA = {"task": TASK, "train_size": 4, "val_size": 2, "max_response_length": 16, "filter_accuracy": False}


@pytest.mark.hostile("models")
@pytest.mark.parametrize("verb", ["train", "label", "run", "search", "evaluate", "serve"])
@pytest.mark.parametrize("known", [False, True])
def test_no_command_runs_the_code_of_a_model(model, tmp_path, monkeypatch, capsys, says_yes, verb, known):
    marker = tmp_path / "marker"
    with_code(model, marker, model_type="llama" if known else "evil")
    if known:  # so that the command ends while it reads the model
        (model / "model.safetensors").unlink()
    if verb in ("serve", "search", "evaluate"):
        edited(model / "config.json", architectures=["LlamaForSequenceClassification"])
    monkeypatch.chdir(model)  # its modules could be imported from here
    policy = {"type": "text", "path": str(model), "bf16": False}
    study = {"data": DATA, "policy": policy}
    if verb == "train":
        study["sft"] = {"save_dir": str(tmp_path / "out"), "policy": policy, "max_steps": 1, "val_split": 0}
        words = ["train", "study.yaml", "policy=sft"]
    elif verb == "label":
        study["label"] = {"save_dir": str(tmp_path / "out"), "labeler": "exact", "num_samples": 1, "mining": None}
        words = ["label", "study.yaml"]
    elif verb == "run":
        study["work_dir"] = str(tmp_path / "out")
        words = ["run", "study.yaml"]
    elif verb == "search":
        judge = {"model_type": "text", "checkpoint_path": str(model)}
        study["policy"] = {"type": "text", "tiny": {}, "bf16": False}
        study["search"] = {"model": judge, "aggregation": "last", "save_dir": str(tmp_path / "out")}
        words = ["search", "study.yaml"]
    elif verb == "evaluate":
        study["policy"] = {"type": "text", "tiny": {}, "bf16": False}
        study["evaluate"] = {"models": {"evil": {"path": str(model)}}, "aggregation": "min", "save_dir": "out"}
        words = ["evaluate", "study.yaml"]
    else:
        words = ["serve", "--backend", "text", "--model-path", str(model), "--port", "0", "--processes", "none"]
    Path("study.yaml").write_text(yaml.safe_dump(study))
    monkeypatch.setattr(sys, "argv", ["guerdon", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr().err
    assert left.value.code == 2, said
    *before, last = said.strip().splitlines()
    assert len(before) == (verb == "serve")  # its address
    assert f"{str(model)!r} cannot be read" in last
    assert not marker.exists()


@pytest.mark.hostile("models")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_pickled_weights_are_refused_with_the_command_that_imports_them(model, name):
    (model / "model.safetensors").rename(model / name)
    with pytest.raises(CheckpointError, match=f"{name} is a pickle.*guerdon import {model} NEW_FOLDER"):
        read_model(str(model))


@pytest.mark.hostile("models")
def test_pickles_beside_safetensors_are_not_opened(model):
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (model / name).write_bytes(b"no pickle at all")
    read_model(str(model))


def test_an_import_gives_the_same_model(model, tmp_path):
    weights = load_file(model / "model.safetensors")
    names = sorted(weights)
    parts = [{n: weights[n] for n in names[::2]}, {n: weights[n] for n in names[1::2]}]
    for i, part in enumerate(parts, start=1):
        torch.save(part, model / f"pytorch_model-{i:05}-of-00002.bin")
    index = {n: f"pytorch_model-{i:05}-of-00002.bin" for i, part in enumerate(parts, start=1) for n in part}
    (model / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    expected = read_model(str(model))[0].state_dict()
    (model / "model.safetensors").unlink()
    (model / "modeling_evil.py").write_text("raise RuntimeError")
    written = import_model(model, tmp_path / "new")
    assert written == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    found, tokenizer = read_model(str(tmp_path / "new"))
    assert all(torch.equal(weight, expected[name]) for name, weight in found.state_dict().items())
    assert tokenizer.encode("1") == read_tokenizer(str(model)).encode("1")
    assert not list((tmp_path / "new").glob("*.py")) + list((tmp_path / "new").glob("*.bin"))


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (Path(self.marker),)


@pytest.mark.hostile("models")
def test_an_import_runs_no_code_of_a_pickle_and_writes_nothing(model, tmp_path):
    torch.save({"a": Evil(str(tmp_path / "marker"))}, model / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="cannot be read as weights alone"):
        import_model(model, tmp_path / "new")
    torch.save({"a": [1, 2]}, model / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="other things than weights"):
        import_model(model, tmp_path / "new")
    torch.save({"a": torch.tensor([np.nan])}, model / "pytorch_model.bin")
    with pytest.raises(Exception, match="not finite"):
        import_model(model, tmp_path / "new")
    assert not (tmp_path / "marker").exists()
    assert not (tmp_path / "new").exists()
    (model / "pytorch_model.bin").unlink()
    with pytest.raises(ConfigError, match="reads safetensors without an import"):
        import_model(model, tmp_path / "new")
    with pytest.raises(ConfigError, match="exists already"):
        import_model(model, model)


REPEATED = {
    "one number": (lambda: torch.zeros(1).expand(10**11), r"\d+ bytes, and its tensors 400,000,000,000 \('a' 400,"),
    "rows that overlap": (lambda: torch.zeros(20_000).as_strided((10_000, 10_000), (1, 1)), "its tensors 400,000,000 "),
    "no numbers": (lambda: torch.empty(10**11, device="meta"), "other things than weights by name"),
    "few numbers": (lambda: torch.eye(2).to_sparse(), "other things than weights by name"),
}


@pytest.mark.hostile("models")
@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("zipped", [True, False])
def test_an_import_copies_no_more_than_a_file_holds(model, tmp_path, name, zipped):
    make, words = REPEATED[name]
    torch.save({"a": make()}, model / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=words) as error:
        import_model(model, tmp_path / "new")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.hostile("models")
def test_an_import_of_one_tensor_under_many_names(model, tmp_path):
    shared = torch.arange(2_000_000.0)
    torch.save({f"w{i}": shared for i in range(200)}, model / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="its tensors 1,600,000,000 "):
        import_model(model, tmp_path / "new")
    torch.save({f"w{i}": shared for i in range(4)} | {"p": torch.arange(9).expand(1, -1)}, model / "pytorch_model.bin")
    import_model(model, tmp_path / "new")
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert len(found) == 5
    assert torch.equal(found["w3"], shared)
    assert found["p"].shape == (1, 9)


@pytest.mark.hostile("models")
def test_an_import_of_compressed_parts(model, tmp_path):
    file = model / "pytorch_model.bin"
    torch.save({"a": torch.zeros(1_000_000)}, file)
    with zipfile.ZipFile(file) as parts, zipfile.ZipFile(model / "small", "w", zipfile.ZIP_DEFLATED) as small:
        for part in parts.infolist():
            small.writestr(part.filename, parts.read(part.filename))
    (model / "small").replace(file)
    with pytest.raises(CheckpointError, match=r"its parts 4,0\d{2},\d{3}: they are compressed"):
        import_model(model, tmp_path / "new")


def adapter_of(tmp_path, base):
    policy = tiny_policy(lora=LoraSettings(r=2), lively=False)
    folder = save_policy(policy, tmp_path / "adapter")
    (folder / "COMPLETE").unlink()
    shutil.rmtree(folder / "base")
    shutil.copytree(base, folder / "base")
    return folder


@pytest.mark.hostile("models")
def test_adapters(model, tmp_path):
    adapter = adapter_of(tmp_path, model)
    read_model(str(adapter))
    config = adapter / "adapter_config.json"
    kept = config.read_text()
    for origin, words in ((".." + "/model", "leads out"), (f"{model}/../model", "leads out"), (None, "does not say")):
        edited(config, base_model_name_or_path=origin)
        with pytest.raises(CheckpointError, match=words):
            read_model(str(adapter))
    edited(config, base_model_name_or_path=str(model))
    read_model(str(adapter))
    for change in ({"peft_type": "XLORA"}, {"peft_type": "PROMPT_TUNING"}, {"megatron_config": {"a": 1}}):
        config.write_text(kept)
        edited(config, **change)
        with pytest.raises(CheckpointError, match="files or modules of other folders"):
            read_model(str(adapter))
    config.write_text(kept)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model.bin is a pickle.*guerdon import"):
        read_model(str(adapter))


def test_imported_adapters(model, tmp_path):
    adapter = adapter_of(tmp_path, model)
    expected = read_model(str(adapter))[0].state_dict()
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    assert import_model(adapter, tmp_path / "new") == ["adapter_model.safetensors"]
    found = read_model(str(tmp_path / "new"))[0].state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


# links and indexes


@pytest.mark.hostile("models")
def test_a_link_out_of_the_folder_is_refused(model, tmp_path):
    outside = tmp_path / "weights.safetensors"
    (model / "model.safetensors").rename(outside)
    for target in (outside, "../weights.safetensors"):
        (model / "model.safetensors").symlink_to(target)
        with pytest.raises(CheckpointError, match=r"model.safetensors is a link to .* outside of the folder"):
            read_model(str(model))
        (model / "model.safetensors").unlink()
    outside.rename(model / "model.safetensors")
    (tmp_path / "secret.json").write_text("{}")
    (model / "added").mkdir()
    (model / "added" / "a.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(CheckpointError, match=r"added/a.json is a link"):
        read_tokenizer(str(model))
    (model / "added" / "a.json").unlink()
    (model / "extra").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="extra is a link"):
        read_model(str(model))


def test_weights_of_guerdons_own_folders_are_no_links_out_of_them(tmp_path):
    save_weights({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model.safetensors").symlink_to("../a.safetensors")
    with pytest.raises(CheckpointError, match="outside of the folder"):
        load_weights(tmp_path / "own" / "model.safetensors")
    assert load_weights(tmp_path / "a.safetensors")["a"].tolist() == [1, 1]


def test_links_inside_the_folder_and_to_the_folder_are_read(model, tmp_path):
    (model / "model.safetensors").rename(model / "weights.bytes")
    (model / "model.safetensors").symlink_to("weights.bytes")
    (tmp_path / "latest").symlink_to(model)
    read_model(str(tmp_path / "latest"))


def snapshot(model, cache):
    """The folder as the hub's cache keeps it: links into the blobs of the model."""
    home = cache / "models--org--small"
    (home / "blobs").mkdir(parents=True)
    folder = home / "snapshots" / "0123abc"
    folder.mkdir(parents=True)
    for i, file in enumerate(sorted(model.iterdir())):
        shutil.copyfile(file, home / "blobs" / f"{i:040}")
        (folder / file.name).symlink_to(f"../../blobs/{i:040}")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0123abc")
    return folder


def test_the_cache_of_the_hub_is_read(model, tmp_path, monkeypatch):
    folder = snapshot(model, tmp_path / "hub")
    read_model(str(folder))
    (folder / "notes.json").symlink_to(model / "config.json")
    with pytest.raises(CheckpointError, match=r"notes.json is a link"):
        read_model(str(folder))
    (folder / "notes.json").unlink()
    other = tmp_path / "hub" / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    (other / "0").write_text("{}")
    (folder / "notes.json").symlink_to("../../../models--org--other/blobs/0")
    with pytest.raises(CheckpointError, match=r"notes.json is a link"):
        read_model(str(folder))


@pytest.mark.hostile("models")
def test_blobs_are_allowed_in_the_cache_only(model, tmp_path):
    (tmp_path / "blobs").mkdir()
    (model / "model.safetensors").rename(tmp_path / "blobs" / "0")
    deep = tmp_path / "snapshots" / "1"
    shutil.copytree(model, deep)
    (deep / "model.safetensors").symlink_to("../../blobs/0")
    with pytest.raises(CheckpointError, match="outside of the folder"):
        read_model(str(deep))


@pytest.mark.hostile("models")
def test_indexes(model, tmp_path):
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    shard = "model-00001-of-00001.safetensors"

    def index(name):
        said = {"metadata": {}, "weight_map": dict.fromkeys(weights, shard) | {min(weights): name}}
        (model / "model.safetensors.index.json").write_text(json.dumps(said))

    save_file(weights, model / shard, metadata={"format": "pt"})
    index(shard)
    read_model(str(model))
    save_file(weights, tmp_path / "out.safetensors", metadata={"format": "pt"})
    outside = [
        "../out.safetensors",
        str(tmp_path / "out.safetensors"),
        "a/../../out.safetensors",
        "..\\out.safetensors",
    ]
    for name in (*outside, "model.bin", "", None, 3):
        index(name)
        with pytest.raises(CheckpointError, match=r"index.json names .* no safetensors file inside the folder"):
            read_model(str(model))
    for text in ("[1]", '{"weight_map": [1]}', "{", '{"weight_map": null}'):
        (model / "model.safetensors.index.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"index\.json"):
            read_model(str(model))


# chat templates


HOSTILE = {
    "loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes more than"),
    "loops for a system message": (
        "{% if messages[0].role == 'system' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
        "{% endfor %}{% endif %}", "takes more than",
    ),
    "a constant": ("{{ 'a' * 10**9 }}", "MiB of memory"),
    "a large text": ("{{ messages[0].content * 10**9 }}", "MiB of memory"),
    "output": ("{% for i in range(99999) %}{{ messages[0].content * 9 }}{% endfor %}", "writes more than"),
    "a width": ("{{ '%2000000000d' % 3 }}", "MiB of memory"),
    "a list": ("{% set x = [0] * 10**9 %}", "MiB of memory"),
    "a power": ("{% set n = messages | length + 8 %}{% set x = n ** (n ** n) %}", "takes more than|MiB"),
}  # fmt: skip


@pytest.mark.hostile("models")
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("nested", [False, True])
def test_attention_code_on_the_hub_is_refused_by_name(model, key, nested):
    named = {key: "somebody/kernels@main:flash"}
    edited(model / "config.json", **({"text_config": named} if nested else named))
    with pytest.raises(CheckpointError, match=rf"{key} in config\.json names code on the hub, 'somebody/kernels@main"):
        read_model(str(model))


def test_an_attention_of_transformers_own_is_read(model):
    edited(model / "config.json", attn_implementation="eager")
    assert read_model(str(model))[0] is not None


@pytest.mark.hostile("models")
@pytest.mark.parametrize("name", sample(HOSTILE, "loops", "a constant"))
def test_hostile_templates_are_refused_in_one_line(name, monkeypatch):
    template, words = HOSTILE[name]
    monkeypatch.setattr(chat_template, "SECONDS", 0.3 if words == "takes more than" else 1.5)
    with pytest.raises(CheckpointError, match=words) as error:
        check_templates({"default": "{{ messages }}", "tools": template}, "a/b")
    assert "the chat template 'tools' of 'a/b'" in str(error.value)
    assert "\n" not in str(error.value)


LONG = "{% set long = messages[0].content if messages[0].content is string else '' %}"
GROWING = {
    "loops": (LONG + "{% for c in long %}{% for d in long %}{% endfor %}{% endfor %}", "takes more than"),
    "output": (LONG + "{% for c in long %}{{ long }}{% endfor %}", "writes more than"),
    "a part": (LONG + "{% set x %}{% for c in long %}{{ long }}{% endfor %}{% endset %}", "writes more than"),
    "texts": (
        "{% set ns = namespace(x='xx') %}{% for m in messages %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "MiB of memory",
    ),
    "a product": (LONG + "{% set x = long * (long | length) %}", "MiB of memory"),
}  # fmt: skip


@pytest.mark.hostile("models")
@pytest.mark.parametrize("name", first(GROWING, 2))
def test_templates_that_grow_with_a_conversation_are_refused_in_one_line(name, monkeypatch):
    template, words = GROWING[name]
    monkeypatch.setattr(chat_template, "SECONDS", 0.3 if words == "takes more than" else 1.5)
    with pytest.raises(CheckpointError, match=rf"{words}.* for 100,000 characters in one message, or in") as error:
        check_templates({"tools": template}, "a/b")
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.hostile("models")
def test_what_a_template_may_write_is_limited(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 60)  # on a slow processor, too, the output ends it
    tokenizer = byte_tokenizer()
    long = [{"role": "user", "content": "x" * 300_000}]
    assert len(prompt_ids(tokenizer, long)) == 300_003
    said = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for more in ("{% for c in messages[0].content %}{{ messages[0].content }}{% endfor %}",
                 "{% macro f() %}{% for c in messages[0].content %}xxxxxxxxxxxx{% for d in 'x' * 99 %}x{% endfor %}"
                 "{% endfor %}{% endmacro %}{{ f() }}"):  # fmt: skip
        tokenizer.chat_template = said + more
        with pytest.raises(ChatError, match=r"writes more than 7,\d{3},\d{3} characters"):
            prompt_ids(tokenizer, long)
        assert len(prompt_ids(tokenizer, [{"role": "user", "content": "x"}]))
    monkeypatch.setattr(chat_template, "SECONDS", 0.1)
    monkeypatch.setattr(chat_template, "MOST", 10**9)
    tokenizer.chat_template = (
        said + "{% for c in messages[0].content %}{% for d in messages[0].content %}x" + "{% endfor %}" * 2
    )
    with pytest.raises(ChatError, match=r"takes more than 0.1 s"):
        prompt_ids(tokenizer, long)


def test_usual_templates_pass_and_are_rendered_once(monkeypatch):
    good = {
        "plain": "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}",
        "strict": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages }}",
        "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "control": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m | tojson }}{% endfor %}",
        "date": "{{ strftime_now('%Y') }}" + "x" * 50_000,
        "rag": "{{ raise_exception('no documents') }}",
    }
    check_templates(good, "here")
    monkeypatch.setattr(chat_template, "SubprocessPool", None)
    check_templates(dict(good), "there")
    check_templates({}, "nowhere")


UNUSABLE = {
    "no end": ("{% for m in messages %}{{ m.content }}", "is not valid Jinja, line 1"),
    "no expression": ("{{ messages }}\n{% for %}", "is not valid Jinja, line 2: Expected"),
    "an unknown filter": ("{{ messages | shorten }}", "is not valid Jinja, line 1: No filter named 'shorten'"),
    "a refusal": ("{{ raise_exception('not today') }}", "raises for a single message of a user: .*not today"),
    "a second turn": ("{{ messages[0].content }}{{ messages[1].content }}", "raises for a single message of a user"),
    "nothing of the user": ("{% for m in messages %}<{{ m.role }}>{% endfor %}", "leaves out a user's message"),
}


@pytest.mark.hostile("models")
@pytest.mark.parametrize("name", UNUSABLE)
def test_templates_that_cannot_write_a_question_are_refused_at_load(name, model):
    template, words = UNUSABLE[name]
    (model / "chat_template.jinja").write_text(template)
    for read in (read_model, read_tokenizer):
        with pytest.raises(CheckpointError, match=words) as error:
            read(str(model))
        assert "correct chat_template.jinja" in str(error.value)
        assert "\n" not in str(error.value)


SHORT = "for a conversation of three short messages at most"
SAID = "{% for m in messages %}{{ m.content }}{% endfor %}"
RENDERED = [
    (SAID, {}, ""),
    (SAID, {"long": True}, ""),
    ("{{ messages[0].content * 10**6 }}", {}, f"writes more than 1,000,000 characters {SHORT}"),
    ("{{ messages[0].content * 40 }}", {}, ""),
    ("{{ messages[0].content * 40 }}", {"long": True}, "writes more than 3,000,000 characters for 100,000 characters"),
    ("{{ 'a' * 10**18 }}", {}, f"needs more than 512 MiB of memory {SHORT}"),
    ("{{ messages }}\n{% for %}", {}, "is not valid Jinja, line 2: Expected an expression"),
    ("{{ raise_exception('no') }}", {}, "raises for a single message of a user: "),
    ("{{ raise_exception('no') }}", {"needed": False}, ""),
    ("{{ messages | length }}", {}, "leaves out a user's message"),
    ("{{ messages | length }}", {"needed": False}, ""),
    ("{{ messages | length }}", {"long": True}, ""),
    ("{{ messages[0].content[0].text + '' }}", {}, ""),
]


@cases("template, asked, begins", RENDERED)
def test_what_the_process_of_templates_says_of_one(template, asked, begins):
    said = chat_template._render({"template": template, "needed": True, "long": False} | asked).get("problem", "")
    assert said.startswith(begins)
    assert bool(said) == bool(begins)


def test_a_template_without_time_left_is_stopped_while_it_writes(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", -1)
    said = chat_template._render({"template": SAID, "needed": True, "long": False})
    assert said == {"problem": f"takes more than -1 s {SHORT}"}


def test_a_named_template_is_checked_as_those_of_folders():
    with pytest.raises(CheckpointError, match=r"is not valid Jinja, line 1: .*correct policy\.chat_template"):
        tiny_policy(chat_template="{{ messages[0].content }")


@pytest.mark.parametrize("template", [
    "{% for m in messages %}{% for part in m.content %}{{ part.text | upper }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{{ raise_exception('no') }}{% endif %}"
    "{% endfor %}",
    "{{ messages | tojson }}",
])  # fmt: skip
def test_templates_for_texts_or_for_parts_pass(template):
    check_templates({"default": template}, "here")


@pytest.mark.hostile("models")
def test_a_template_that_drops_a_text_is_refused_with_the_conversation():
    tokenizer = tiny_policy().tokenizer
    tokenizer.chat_template = (
        "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    )
    with pytest.raises(ChatError, match=r"leaves out message 1 \(role user\)"):
        prompt_ids(tokenizer, [{"role": "user", "content": "1 + 1"}])


@pytest.mark.hostile("models")
@pytest.mark.parametrize("where", ["tokenizer_config.json", "chat_template.jinja", "additional"])
def test_every_reader_of_tokenizers_checks_their_templates(model, where):
    bad = "{{ messages[0].content * 10**6 }}"
    (model / "chat_template.jinja").unlink(missing_ok=True)
    if where == "tokenizer_config.json":
        edited(model / where, chat_template=bad)
    elif where == "chat_template.jinja":
        (model / where).write_text(bad)
    else:
        (model / "chat_template.jinja").write_text("{{ messages }}")
        (model / "additional_chat_templates").mkdir()
        (model / "additional_chat_templates" / "tools.jinja").write_text(bad)
    edited(model / "config.json", architectures=["LlamaForSequenceClassification"], num_labels=1)
    weights = load_file(model / "model.safetensors")
    save_file(weights | {"score.weight": torch.ones(1, 32)}, model / "model.safetensors", metadata={"format": "pt"})
    for read in (read_model, read_tokenizer, SequenceClassifier):
        with pytest.raises(CheckpointError, match=r"chat template .* writes more than"):
            read(str(model))


def test_a_classifier_reads_its_tokenizer_as_every_other_model(model, tmp_path):
    tokenizer = read_tokenizer(str(model))
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2, num_labels=1, pad_token_id=0)  # fmt: skip
    folder = tmp_path / "classifier"
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = SequenceClassifier(str(folder))
    assert found.tokenizer.encode("1 + 1 = 2") == tokenizer.encode("1 + 1 = 2")
    with_code(folder, tmp_path / "marker")
    again = SequenceClassifier(str(folder)).score([Episode(id="1", task="1+1=?", texts=("2",))])
    assert again[0].total == found.score([Episode(id="1", task="1+1=?", texts=("2",))])[0].total
    assert not (tmp_path / "marker").exists()


# damaged and incomplete folders


def _cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def _header(length):
    return lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")


def _without_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()


TENFOLD = {"type": "Replace", "pattern": {"String": "1"}, "content": "1" * 10}
DAMAGES = {
    "truncated weights": (_cut, r"not fully covered; download the folder again"),
    "a header of 2^63 bytes": (_header(2**63), r"header too large; download the folder again"),
    "a negative header": (_header(2**64 - 1), r"header too large; download the folder again"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"no file named .*; download the folder again"),
    "no tokenizer": (_without_tokenizer, r"there is no tokenizer\.json in the folder; copy the files of the tokenizer"),
    "a cut tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), r"; download the folder again"),
    "no configuration": (lambda f: (f / "config.json").unlink(), r"no config\.json; name the folder of a model"),
    "a cut configuration": (lambda f: (f / "config.json").write_text("{"), r"config\.json: JSONDecode.*; download"),
    "layers without end": (lambda f: edited(f / "config.json", num_hidden_layers=10**7), r"10,000,000, more than"),
    "labels without end": (lambda f: edited(f / "config.json", num_labels=10**9), r"num_labels in .* is 1,000,000,000"),
    "experts without end": (lambda f: edited(f / "config.json", num_experts=10**9), r"num_experts in .*, more than"),
    "stages without end": (lambda f: edited(f / "config.json", depths=[3, 10**9]), r"depths in .* is 1,000,000,000"),
    "added tokens without end": (
        lambda f: edited(f / "tokenizer_config.json", extra_ids=10**9), r"extra_ids in tokenizer_config\.json is 1",
    ),
    "rules that multiply": (
        lambda f: edited(f / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [TENFOLD] * 12}),
        r"its normalizer can make 1,000,000,000,000 characters of one; correct it in tokenizer\.json",
    ),
    "weights of more layers": (
        lambda f: edited(f / "config.json", num_hidden_layers=1), r"of more layers than config\.json .*\.1\.",
    ),
    "a list": (lambda f: (f / "generation_config.json").write_text("[1]"), r"generation_config\.json is not a map"),
    "other shapes": (lambda f: edited(f / "config.json", hidden_size=64), r"other shapes than config\.json says; down"),
    "an end that is not an id": (
        lambda f: edited(f / "generation_config.json", eos_token_id=[2, 10**12]),
        r"eos_token_id in generation_config\.json is .*below \d+; correct it",
    ),
    "an end that is not a number": (
        lambda f: edited(f / "generation_config.json", eos_token_id="</s>"), r"eos_token_id in generation_config\.json",
    ),
    "a template that is not text": (
        lambda f: (edited(f / "tokenizer_config.json", chat_template=5), (f / "chat_template.jinja").unlink()),
        r"chat_template is '5', which is neither a string",
    ),
}  # fmt: skip


@pytest.mark.hostile("models")
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused_with_what_to_do_next(name, model):
    damage, words = DAMAGES[name]
    damage(model)
    with pytest.raises(CheckpointError, match=words) as error:
        read_model(str(model))
    assert str(model) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_holds_no_whole_model_is_refused_by_what_it_lacks(tmp_path):
    """Before anything is loaded."""

    def check():
        hub.check_model(ConfigError, "the model", str(tmp_path))

    with pytest.raises(ConfigError, match=r"the folder has no config\.json; name the folder of a model"):
        check()
    (tmp_path / "config.json").write_text("{}")
    check()
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json: .*; download the folder again"):
        check()
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"it is an adapter \(adapter_config\.json\); merge it into its model"):
        check()


@pytest.mark.hostile("models")
def test_tables_of_positions_without_end(tmp_path):
    """Of models that keep no weights for them; of others more positions need no memory."""
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    small = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "rotary_dim": 4}
    GPTJForCausalLM(GPTJConfig(**sizes, **small)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    edited(tmp_path / "config.json", n_positions=300_000)
    assert read_model(str(tmp_path))
    edited(tmp_path / "config.json", n_positions=10**9)
    with pytest.raises(CheckpointError, match="1,000,000,000 positions, whose tables would take 16 GB; correct it"):
        read_model(str(tmp_path))


def test_positions_without_tables(model):
    edited(model / "config.json", max_position_embeddings=10**9)
    assert read_model(str(model))


@pytest.mark.hostile("models")
def test_weights_of_more_layers_are_not_read_one_at_a_time_either(model):
    assert map_pretrained(AutoModelForCausalLM, str(model), "the model") is not None
    edited(model / "config.json", num_hidden_layers=1)
    with pytest.raises(CheckpointError, match=r"of more layers than config\.json has"):
        map_pretrained(AutoModelForCausalLM, str(model), "the model")


def test_layers_that_transformers_ignores_may_be_in_the_files(model, monkeypatch):
    """Such as those of DeepSeek-V3 that predict several tokens."""
    edited(model / "config.json", num_hidden_layers=1)
    monkeypatch.setattr(LlamaForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.1.*"])
    read, _ = read_model(str(model))
    mapped, _ = map_pretrained(AutoModelForCausalLM, str(model), "the model")
    assert len(read.model.layers) == len(mapped.model.layers) == 1


@pytest.mark.hostile("models")
@cases("dtype", (torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2))
def test_weights_in_a_form_that_nothing_describes_are_refused(dtype, tmp_path):
    """transformers fills a weight by its name and shape, whatever its file holds."""
    policy = tiny_policy()
    folder = tmp_path / str(dtype)
    policy.base.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    file = folder / "model.safetensors"
    name = next(name for name in load_file(file) if name.endswith("q_proj.weight"))
    save_file({k: (30 * v).to(dtype) if k == name else v for k, v in load_file(file).items()}, file, {"format": "pt"})
    wrong = f"1 of its weights, such as {name}, are stored as"
    with pytest.raises(CheckpointError, match=wrong):
        read_pretrained(AutoModelForCausalLM, str(folder), "the language model")
    if dtype is not torch.int32:
        with pytest.raises(CheckpointError, match=wrong):
            map_pretrained(AutoModelForCausalLM, str(folder), "the language model")
        with pytest.raises(CheckpointError, match=wrong):
            load_weights(file)


@pytest.mark.hostile("models")
def test_making_a_model_4_bit_describes_no_weights_of_its_files(model):
    """The configuration of the model then says how it is held in memory, that of the folder how it is stored."""
    file = model / "model.safetensors"
    narrow = {name: v.to(torch.int8) if name.endswith("q_proj.weight") else v for name, v in load_file(file).items()}
    save_file(narrow, file, {"format": "pt"})
    held = tiny_policy().base.model
    held.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    with pytest.raises(CheckpointError, match=r"q_proj\.weight, are stored as"):
        refuse_undescribed(held, str(model), (), "the language model")
    edited(model / "config.json", quantization_config=held.config.quantization_config)
    with pytest.raises(CheckpointError, match=r"q_proj\.weight, are stored as I8 without a scale"):
        refuse_undescribed(held, str(model), (), "the language model")
    scales = {name.replace("weight", "SCB"): torch.ones(32) for name in narrow if name.endswith("q_proj.weight")}
    save_file(narrow | scales, file, {"format": "pt"})
    refuse_undescribed(held, str(model), (), "the language model")


@cases("dtype", (torch.float16, torch.bfloat16, torch.float64))
def test_weights_in_other_floats_are_read(dtype, tmp_path):
    policy = tiny_policy()
    folder = tmp_path / str(dtype)
    policy.base.model.save_pretrained(folder)
    file = folder / "model.safetensors"
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
    }
    save_file({k: v.to(dtype) for k, v in load_file(file).items()} | extra, file, {"format": "pt"})
    assert read_pretrained(AutoModelForCausalLM, str(folder), "the language model").dtype == torch.float32


@pytest.mark.hostile("models")
def test_an_adapter_is_no_model_and_reads_none_by_itself(model, tmp_path):
    adapter = adapter_of(tmp_path, model)
    shutil.copyfile(adapter / "adapter_config.json", model / "adapter_config.json")
    for folder, words in (
        (adapter, "has no classification head"),
        (model, "no adapter at .*: expected adapter_config"),
    ):
        with pytest.raises(CheckpointError, match=words):
            SequenceClassifier(str(folder))


def test_the_model_of_an_adapter_is_named_with_the_adapter(model, tmp_path):
    adapter = adapter_of(tmp_path, model)
    config = adapter / "adapter_config.json"
    for origin in ("/nowhere/at-all", "https://example.org/model", "~/model"):
        edited(config, base_model_name_or_path=origin)
        with pytest.raises(CheckpointError, match=rf"{origin}.*base_model_name_or_path of {config}"):
            read_model(str(adapter))
    second = tmp_path / "second"
    shutil.copytree(adapter, second)
    edited(second / "adapter_config.json", base_model_name_or_path=str(adapter))
    for origin in (".", str(adapter), str(second)):
        edited(config, base_model_name_or_path=origin)
        with pytest.raises(CheckpointError, match="leads back to an adapter itself"):
            read_model(str(adapter))


def test_an_adapter_on_an_adapter_may_leave_its_tokenizer_to_the_model(model, tmp_path):
    first = adapter_of(tmp_path, model)
    second = tmp_path / "second"
    shutil.copytree(first, second, ignore=shutil.ignore_patterns("base"))
    edited(second / "adapter_config.json", base_model_name_or_path=str(first))
    expected = read_tokenizer(str(model)).encode("1+2=")
    for file in (*first.glob("*token*"), *second.glob("*token*")):
        file.unlink()
    assert read_model(str(second))[1].encode("1+2=") == expected
    found = outline(TextPolicySettings(path=str(second), bf16=False))
    assert found.tokenizer.encode("1+2=") == expected
    assert found.base.positions == load_policy(TextPolicySettings(path=str(model), bf16=False), seed=0).base.positions
    edited(first / "adapter_config.json", base_model_name_or_path="nobody/of-this-name")
    with pytest.raises(MissingDependencyError, match="nobody/of-this-name is not on this machine"):
        outline(TextPolicySettings(path=str(second), bf16=False))


@pytest.mark.hostile("models")
def test_a_refused_pickle_is_no_advice_to_run_it(model, tmp_path, recwarn):
    (model / "model.safetensors").unlink()
    file = model / "pytorch_model.bin"
    torch.save({"a": Evil(str(tmp_path / "marker"))}, file)
    file_of_pickle = pickle.dumps(Evil(str(tmp_path / "marker")))
    for content in (file.read_bytes(), file_of_pickle, b"", b"<html>"):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"as weights alone: .*download the model again") as error:
            import_model(model, tmp_path / "new")
        assert "weights_only" not in str(error.value)
        assert len(str(error.value)) < 400
    assert not (tmp_path / "marker").exists()
    assert not recwarn.list


@pytest.mark.hostile("models")
def test_the_check_of_links_looks_at_names_not_at_contents(tmp_path):
    (tmp_path / "m").mkdir()
    hub.check_links(CheckpointError, "the model", tmp_path / "m")
    os.symlink("nowhere", tmp_path / "m" / "a")  # inside, and not there: whoever needs it says so
    hub.check_links(CheckpointError, "the model", tmp_path / "m")
    os.symlink("../nowhere", tmp_path / "m" / "b")
    with pytest.raises(CheckpointError, match="b is a link"):
        hub.check_links(CheckpointError, "the model", tmp_path / "m")


@pytest.mark.hostile("models")
@pytest.mark.parametrize(
    "given",
    first(
        [
            {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": ["x", r"((\w|\.)+)+!"]},
            {"target_modules": r"((\w|\.)+)+!"},
            {"rank_pattern": {r"((\w|\.)+)+!": 4}},
            {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": r"((\w|\.)+)+!"},
        ],
        2,
    ),
)
def test_regular_expressions_of_an_adapter_come_to_an_end(model, tmp_path, monkeypatch, given):
    adapter = adapter_of(tmp_path, model)
    edited(adapter / "adapter_config.json", target_modules=r".*\.(q|k|v|o|gate|up|down)_proj")
    read_model(str(adapter))
    monkeypatch.setattr(adapter_files, "PATTERN_SECONDS", 1)
    edited(adapter / "adapter_config.json", **given)
    with pytest.raises(CheckpointError, match=r"take more than 1 s; list the names of the layers"):
        read_model(str(adapter))


@pytest.mark.parametrize("broken", ["{% for", "{{ raise_exception('no') }}"])
def test_a_broken_template_that_is_replaced_is_not_looked_at(model, broken):
    (model / "chat_template.jinja").write_text(broken)
    given = TextPolicySettings(path=str(model), bf16=False)
    with pytest.raises(CheckpointError, match="chat template 'default'"):
        load_policy(given, seed=0)
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    replaced = given.model_copy(update={"chat_template": template})
    assert load_policy(replaced, seed=0).tokenizer.chat_template == template
    assert outline(replaced).tokenizer.chat_template == template
