"""`guerdon evaluate --model` and `guerdon score --model`: the address of a server, and a hub id in the cache."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "serve"))

from processes import start_server  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from child import environment  # noqa: E402
from guerdon.cli import app  # noqa: E402
from guerdon.errors import CheckpointError, GuerdonError  # noqa: E402
from guerdon.models.text.sequence_classifier import PreferenceModel  # noqa: E402
from guerdon.models.text.text_card import TextModelCard  # noqa: E402
from guerdon.models.text.text_load import load_text_model  # noqa: E402
from guerdon.policies.language.text_files import load_policy  # noqa: E402
from guerdon.settings.text_policy import TextPolicySettings  # noqa: E402
from guerdon.types import Episode  # noqa: E402
from tables import first  # noqa: E402

torch.set_num_threads(1)
TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 16}
PAIRS = [{"prompt": f"p{k // 2}", "chosen": "x" * (1 + k % 5), "rejected": "y" * (5 - k % 3)} for k in range(12)]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def call(folder, *words, **variables):
    """One command of guerdon in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "guerdon", *map(str, words)],
        cwd=folder, env=environment(HERE, **variables), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model of preferences with two members, pairs, and the values that the model gives for them."""
    folder = tmp_path_factory.mktemp("home")
    policy = load_policy(TextPolicySettings(tiny=TINY, bf16=False), seed=3)
    with torch.no_grad():
        for parameter in policy.parameters():
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(parameter)))
            parameter.add_(0.2 * drawn.to(parameter.device))
    outputs = {"member_0": 0.5, "member_1": 0.5}
    card = TextModelCard(
        "preference", "conversation", "bradley_terry", threshold=None, bf16=False, outputs=outputs, combine="mean"
    )
    PreferenceModel(policy, card).write(folder / "rm")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    return folder


@pytest.fixture(scope="module")
def values(home):
    """The rewards of the chosen and the rejected response of each pair, by the model of the folder."""
    episodes = [Episode(id="x", task=row["prompt"], texts=(row[k],)) for row in PAIRS for k in ("chosen", "rejected")]
    found = [score.total for score in load_text_model(str(home / "rm"), device="cpu").score(episodes)]
    assert len({round(value, 4) for value in found}) > 10
    return list(zip(found[::2], found[1::2], strict=True))


def check_scored(path, values):
    for row, given, (chosen, rejected) in zip(rows(path), PAIRS, values, strict=True):
        assert row == {
            **given, "reward_failure": None,
            "reward_chosen": pytest.approx(chosen, abs=1e-5), "reward_rejected": pytest.approx(rejected, abs=1e-5),
        }  # fmt: skip


def check_evaluated(path, values):
    found = json.loads(path.read_text())["pairs"]
    assert found["failures"] == {}
    assert found["overall"]["measured"]["estimate"] == pytest.approx(sum(a > b for a, b in values) / len(values))


@pytest.fixture(scope="module")
def served(home):
    running = start_server(
        home,
        models={
            "rm": {"backend": "text", "model_path": str(home / "rm"), "options": {"device": "cpu"}},
            "eye": {"custom_backend": "toys:make", "options": {"modality": "image", "name": "eye"}},
        },
    )
    yield running
    assert running.stop() == 0


def invoke(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("address", first(["/v1/rewards?model=rm", "?model=rm"], 1))
def test_a_server_scores_a_file(home, served, values, address, tmp_path):
    out = tmp_path / "out.jsonl"
    said = invoke("score", home / "pairs.jsonl", "--model", served.url + address, "-o", out)
    assert "12 of 12 rows scored, 0 with a missing reward" in said
    check_scored(out, values)


def test_a_server_is_evaluated(home, served, values, tmp_path):
    address = f"{served.url}/v1/rewards?model=rm"
    said = invoke("evaluate", "--model", address, "--data", home / "pairs.jsonl", "-o", tmp_path / "card")
    assert said.startswith(f"{address}\n")
    check_evaluated(tmp_path / "card" / "evaluation.json", values)


def test_a_server_that_cannot_be_used_is_one_line(home, served, tmp_path):
    out = tmp_path / "out.jsonl"
    for address, said in (
        (f"{served.url}?model=none", "none"),
        (f"{served.url}/elsewhere", "is not a route that is known"),
        (f"{served.url}?model=eye", "judges images, not text"),
        ("http://127.0.0.1:9/v1/rewards", "127.0.0.1:9"),
    ):
        for words in (("score", home / "pairs.jsonl", "-o", out), ("evaluate", "--data", home / "pairs.jsonl")):
            with pytest.raises(GuerdonError, match=re.escape(said)) as caught:
                CliRunner().invoke(app, [*map(str, words), "--model", address], catch_exceptions=False)
            assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def snapshot(folder, hub, name):
    """A folder as the cache of the hub keeps it: links into the blobs of the model."""
    home = hub / f"models--{name.replace('/', '--')}"
    there = home / "snapshots" / "0123abc"
    there.mkdir(parents=True)
    (home / "blobs").mkdir()
    for k, file in enumerate(sorted(folder.iterdir())):
        shutil.copyfile(file, home / "blobs" / f"{k:040}")
        (there / file.name).symlink_to(f"../../blobs/{k:040}")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0123abc")


@pytest.mark.slow
def test_a_hub_id_is_found_in_the_cache(home, values, tmp_path):
    snapshot(home / "rm", tmp_path / "hf" / "hub", "someone/rm")
    cache = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    out, pairs = tmp_path / "out.jsonl", home / "pairs.jsonl"
    status, said, err = call(tmp_path, "score", pairs, "--model", "someone/rm", "-o", out, **cache)
    assert status == 0, err
    check_scored(out, values)
    status, said, err = call(
        tmp_path, "evaluate", "--model", "someone/rm", "--data", pairs, "-o", "card", "evaluate.reps=100", **cache
    )
    assert status == 0, err
    check_evaluated(tmp_path / "card" / "evaluation.json", values)
    status, said, err = call(tmp_path, "score", pairs, "--model", "someone/else", "-o", "other.jsonl", **cache)
    assert (status, said) == (2, "")
    assert err.startswith("guerdon: ")
    assert "someone/else" in err
    assert not (tmp_path / "other.jsonl").exists()


def test_a_hub_id_that_is_not_in_the_cache_is_downloaded_once_its_card_is_known(home, values, monkeypatch):
    asked = []

    def exists(name, file):
        asked.append((name, file))
        return name == "someone/rm"

    monkeypatch.setattr("huggingface_hub.file_exists", exists)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name: str(home / name.partition("/")[2]))
    model = load_text_model("someone/rm", device="cpu")
    score = model.score([Episode(id="x", task=PAIRS[0]["prompt"], texts=(PAIRS[0]["chosen"],))])[0]
    assert score.total == pytest.approx(values[0][0], abs=1e-6)
    assert score.spread is not None
    assert asked == [("someone/rm", "reward_model.json")]
    with pytest.raises(CheckpointError, match="the hub has no model of that name"):
        load_text_model("someone/else")
    with pytest.raises(CheckpointError):
        load_text_model("./rm")
    assert {name for name, _ in asked} == {"someone/rm", "someone/else"}  # a path is not looked for on the hub
