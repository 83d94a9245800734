"""Training in two processes: the weights, optimisers and metrics of one, resumed by any number of processes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from train_together import main

from learners import finished, run_together, start_together

torch.set_num_threads(1)
pytestmark = pytest.mark.timeout(1200)  # without it 300 s, which a busy machine needs for imports alone

SCRIPT = Path(__file__).parent / "train_together.py"
LORA = {"lora": {"r": 2}}
IMAGES = {  # of 64 pixels, which are 2 x 2 at the end, in batches without small parts
    "image_size": 64, "batch_size": 24, "max_steps": 4, "eval_every": 1, "learning_rate": 1e-4, "augment": False,
    "dropout": 0.0,
}  # fmt: skip
TRAININGS = [
    ("stepwise", "stepwise", {"max_steps": 6}),
    ("stepwise_lora", "stepwise", {"max_steps": 6, "batch_size": 6, "micro_batch_size": 2, "head_epochs": 0.2, **LORA}),
    ("verdict", "verdict", {"max_steps": 4}),
    ("outcome", "outcome", {"max_steps": 4}),
    ("bradley_terry_lora", "bradley_terry", {"max_steps": 4, **LORA}),
    ("implicit", "implicit", {"max_steps": 4}),
    ("dpo_lora", "dpo", {"max_steps": 4, **LORA}),
    ("sft", "sft", {"max_steps": 4}),
    ("sft_lora", "sft", {"max_steps": 4, "lora": LORA["lora"]}),
    ("vlm", "vlm", {"max_steps": 4, "lora": None}),
    ("vlm_lora", "vlm", {"max_steps": 4}),
    ("images", "images", {**IMAGES, "gradient_checkpointing": True}),
    ("calibrated", "images", {**IMAGES, "within_steps": 3, "cpu_offload": True}),
    ("pretrained", "images", {**IMAGES, "pretrained": True}),
]
MEASURED = {"seconds", "finished", "train_runtime", "save_dir"}


def tensors_of(folder):
    """Every tensor of a training's folder: weights and states of optimisers."""
    found = {}
    for file in folder.rglob("*.safetensors"):
        found |= {f"{file.relative_to(folder)} {k}": v for k, v in load_file(file).items()}
    for file in folder.rglob("optimizer.pt"):
        state = torch.load(file, weights_only=True)["state"]
        found |= {f"{file.relative_to(folder)} {i} {k}": v for i, own in state.items() for k, v in own.items()}
    return found


def assert_alike(one, other, *, within=1e-5):
    assert {f.relative_to(one) for f in one.rglob("*")} == {f.relative_to(other) for f in other.rglob("*")}
    first, second = tensors_of(one), tensors_of(other)
    assert first
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        if one.name.startswith("bradley_terry") and name.endswith((" head.bias", "head.safetensors bias")):
            continue  # it cancels in the loss: AdamW makes steps of its rounding
        torch.testing.assert_close(tensor, second[name], atol=within, rtol=within, msg=lambda m, n=name: f"{n}: {m}")
    first, second = (json.loads((folder / "metrics.json").read_text()) for folder in (one, other))
    assert first.keys() == second.keys()
    for name in first.keys() - MEASURED:
        assert first[name] == pytest.approx(second[name], abs=within), name


def assert_near(one, other):
    """As `assert_alike` on the average.

    AdamW's first steps are of one size whatever the gradient is, so that rounding decides about weights whose gradient
    is all but 0, and batch normalisation on maps of one pixel makes much of it.
    """
    first, second = tensors_of(one), tensors_of(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        gap = (tensor.float() - second[name].float()).abs().mean()
        assert gap <= 1e-3 * tensor.float().abs().mean() + 1e-5, name
    first, second = (json.loads(next(folder.rglob("metrics.json")).read_text()) for folder in (one, other))
    for before, after in zip(first["history"], second["history"], strict=True):
        assert before["eval_loss"] == pytest.approx(after["eval_loss"], abs=1e-4)


def both(tmp_path, trainings, compare=assert_alike):
    """The same trainings by this process and by two others."""
    main(tmp_path / "alone", trainings)
    run_together(SCRIPT, tmp_path / "together", json.dumps(trainings))
    for name, _, _ in trainings:
        compare(tmp_path / "alone" / name, tmp_path / "together" / name)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [range(4), range(4, 7), range(7, 9), range(9, 11)], ids=["prm", "orm", "sft", "vlm"])
def test_two_processes_train_what_one_trains(kinds, tmp_path):
    both(tmp_path, [TRAININGS[i] for i in kinds])


@pytest.mark.slow
def test_two_processes_share_out_image_models(tmp_path):
    both(tmp_path, TRAININGS[11:], assert_near)


@pytest.mark.slow
def test_a_sharded_image_model_goes_on_in_another_number_of_processes(tmp_path):
    """Two processes, which fail in their fourth step; then one, to the end."""
    main(tmp_path / "alone", [("rm", "images", IMAGES)])
    found = finished(
        start_together(SCRIPT, tmp_path / "changing", json.dumps([["rm", "images", {**IMAGES, "dies": 3}]]))
    )
    assert all(status for status, _ in found)
    assert list((tmp_path / "changing" / "rm" / "rm" / "trainer").glob("checkpoint-*"))
    main(tmp_path / "changing", [("rm", "images", {**IMAGES, "resume": True})])
    assert_near(tmp_path / "alone" / "rm" / "rm", tmp_path / "changing" / "rm" / "rm")


def cut_back(folder, step):
    """The folder as it was when this checkpoint had just been written."""
    for later in folder.glob("checkpoint-*"):
        if int(later.name.split("-")[1]) > step:
            shutil.rmtree(later)
    shutil.rmtree(folder / "final_checkpoint")
    (folder / "metrics.json").unlink()
    record = json.loads((folder / "training.json").read_text())
    (folder / "training.json").write_text(json.dumps(record | {"finished": False}))


@pytest.mark.slow
def test_a_training_goes_on_in_another_number_of_processes(tmp_path):
    """Two processes up to step 3, one up to step 6, two to the end."""
    common = {"max_steps": 9, "save_steps": 3, "keep_checkpoints": 9, "val_split": 0.0}
    trainings = [("full", "stepwise", common), ("lora", "dpo", common | LORA)]
    main(tmp_path / "alone", trainings)
    again = [(name, kind, options | {"resume": True}) for name, kind, options in trainings]
    changing = tmp_path / "changing"
    run_together(SCRIPT, changing, json.dumps(trainings))
    for name, _, _ in trainings:
        cut_back(changing / name, 3)
    main(changing, again)
    for name, _, _ in trainings:
        cut_back(changing / name, 6)
    run_together(SCRIPT, changing, json.dumps(again))
    for name, _, _ in trainings:
        assert_alike(tmp_path / "alone" / name, changing / name)
