"""A dry run refuses what its start would refuse for want of room on the disk."""

import json
from collections import namedtuple

import pytest

from guerdon.errors import ConfigError, DataError
from guerdon.plan.stages import stage
from guerdon.policies.language import text_files
from guerdon.rl import build_text
from guerdon.rl.build_text import check_text, text_parts
from guerdon.settings.study import Study
from guerdon.train import sft, text
from guerdon.train.sft import check_sft, train_sft_study
from text_rl import letter_study, sum_study

PRIME = {"rm_type": "prime", "mini_batch_size": 4, "micro_batch_size": 4}
LORA = {"lora": {"r": 2}}


def prime(folder, **policy):
    return letter_study(folder, policy=policy, reward_model={**PRIME, "prime_model": {"update": "after"}})


def supervised(folder, **policy):
    more = {"sft": {"save_dir": str(folder / "sft"), "max_steps": 1, "tensorboard": False}}
    return sum_study(folder, policy=policy, **more)


def reward(folder, kind, **given):
    rows = folder / "solutions.jsonl"
    row = {"completions": ["1;", "2;"]}
    lines = [row | {"prompt": f"q{k}", "labels": [True, bool(k % 2)], "is_correct": bool(k % 2)} for k in range(8)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = {"type": kind, "tiny": {"hidden_size": 16}, "data_path": str(rows), "save_dir": str(folder / "rm"), **given}
    own |= {"max_steps": 1, "tensorboard": False}
    return Study.model_validate({"train": {"judge": own}, "work_dir": str(folder)})


check_models = stage("train").check
CASES = {
    "run": (lambda folder: letter_study(folder), check_text),
    "prime": (lambda folder: prime(folder), check_text),
    "prime-lora": (lambda folder: prime(folder, **LORA), check_text),
    "sft": (lambda folder: supervised(folder), check_sft),
    "sft-lora": (lambda folder: supervised(folder, **LORA), check_sft),
    "stepwise": (lambda folder: reward(folder, "stepwise"), check_models),
    "implicit": (lambda folder: reward(folder, "implicit"), check_models),
    "implicit-lora": (lambda folder: reward(folder, "implicit", **LORA), check_models),
}


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_needs_the_room_that_the_start_needs(tmp_path, monkeypatch, case):
    build_study, check = CASES[case]
    study, needed = build_study(tmp_path), []

    class Enough(Exception):
        pass

    def measured(folder, parts):
        needed.append((folder, parts))
        raise Enough

    for module in (build_text, sft, text):
        monkeypatch.setattr(module, "check_disk", measured)
    work = {check_text: lambda: text_parts(study, study.runner.logger.folder, fresh=True),
            check_sft: lambda: train_sft_study(study, resume=False),
            check_models: lambda: text.train_text_model(study.text_models["judge"], study)}  # fmt: skip
    for call in (work[check], lambda: check(study)):
        with pytest.raises(Enough):
            call()
    assert needed[0] == needed[1]
    monkeypatch.undo()
    total, free = sum(needed[0][1].values()), namedtuple("Usage", "free")
    before = sorted(tmp_path.rglob("*"))
    for room in (total, total - 1):
        monkeypatch.setattr(text_files.shutil, "disk_usage", lambda _, room=room: free(room))
        if room == total:
            check(study)
        else:
            with pytest.raises(ConfigError, match=r"the disk of .* free some space"):
                check(study)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", ["run", "sft", "stepwise"])
def test_a_file_in_the_place_of_a_folder_is_refused_by_a_dry_run(tmp_path, case):
    build_study, check = CASES[case]
    study = build_study(tmp_path)
    check(study)
    folder = {"run": study.runner.logger.folder, "sft": tmp_path / "sft", "stepwise": tmp_path / "rm"}[case]
    folder.write_text("")
    with pytest.raises(ConfigError, match=rf"{folder} cannot be written: .* is a file; choose another folder"):
        check(study)


def test_a_dry_run_reads_what_would_be_learned(tmp_path):
    study = reward(tmp_path, "stepwise")
    check_models(study)
    rows = (
        (tmp_path / "solutions.jsonl")
        .read_text()
        .replace("[true, true]", "[null, null]")
        .replace("[true, false]", "[null, null]")
    )
    (tmp_path / "solutions.jsonl").write_text(rows)
    with pytest.raises(DataError) as refused:
        check_models(study)
    with pytest.raises(DataError) as started:
        text.train_text_model(study.text_models["judge"], study)
    assert str(refused.value) == str(started.value)
