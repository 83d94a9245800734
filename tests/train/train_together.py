"""A process that trains: alone, or as one of several, where the variables of torchrun are set.

python train_together.py OUTPUT '[["name", "stepwise", {"max_steps": 4}], ...]'
"""

import json
import sys
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from unittest import mock

import test_images
import test_sft
import test_train_text
import test_vlm_train
import torch
import transformers
from text_lessons import data_of, sums

from guerdon.compute import distributed
from guerdon.compute.devices import seeded
from guerdon.compute.sharding import Shards
from guerdon.errors import NonFiniteError
from guerdon.policies.batches.passes import slices
from guerdon.train import images, vlm
from guerdon.train.images import FrameTrainer, train_image_model
from guerdon.train.sft import train_sft
from guerdon.train.text import train_text_model
from sharded_steps import mapped


class Moved(Exception):
    """Trainer moves weights, which are shards."""


def sharded(settings, scorer, *, weights, offload):
    """`Shards` of a network that nobody holds whole: its weights are not there yet, or are mapped files."""
    for weight in scorer.backbone.parameters():
        assert weight.is_meta if settings.pretrained_path is None else mapped(weight.data_ptr())
    assert offload == settings.cpu_offload
    return Shards(scorer, weights=weights, offload=offload)


def train_images(folder, *, dies=None, pretrained=False, **options):
    """On frames; alone, too, each batch in the parts of two processes, of which batch normalisation sees one.

    `dies`: the step that fails, as if all processes were killed. `pretrained`: from the backbone of a classifier.
    """
    steps, step, alone = count(), FrameTrainer._step_together, distributed.peers() == 1

    def mortal(self, *args, **more):
        if next(steps) == dies:
            raise NonFiniteError("killed")
        return step(self, *args, **more)

    if pretrained:
        options["pretrained_path"] = str(folder / "backbone")
        if distributed.is_first():
            config = transformers.ResNetConfig(
                depths=[2, 2, 2, 2], layer_type="basic", hidden_sizes=[64, 128, 256, 512], num_labels=3
            )
            with seeded(0):
                transformers.ResNetForImageClassification(config).save_pretrained(folder / "backbone")
        distributed.wait()
    if alone:
        options.pop("cpu_offload", None)
    chosen = test_images.settings(folder, **options, fsdp=not alone)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(FrameTrainer, "training_step", mortal))
        if alone:
            stack.enter_context(mock.patch.object(images, "even_parts", lambda n: slices(n, -(-n // 2))))
        else:
            stack.enter_context(mock.patch.object(images, "Shards", partial(sharded, chosen)))
            stack.enter_context(mock.patch.object(FrameTrainer, "_move_model_to_device", mock.Mock(side_effect=Moved)))
        train_image_model(chosen, test_images.square_episodes(6), data_hash="abc")


def main(output, trainings):
    torch.set_num_threads(1)
    for name, kind, options in trainings:
        folder = f"{output}/{name}"
        if kind == "images":
            train_images(Path(folder), **options)
        elif kind == "sft":
            own = dict(options)
            policy = test_sft.POLICY.model_copy(
                update={"lora": test_sft.LoraSettings(**own.pop("lora"))} if "lora" in own else {}
            )
            train_sft(test_sft.SUMS, test_sft.settings_for(folder, **own), policy)
        elif kind == "vlm":
            whole = mock.Mock(wraps=vlm.read_vlm)
            with mock.patch.object(vlm, "read_vlm", whole):
                vlm.train_vlm(test_vlm_train.settings(folder, **options), test_vlm_train.lamps(), data_hash="abc")
            assert whole.called == (distributed.peers() == 1)  # several read a weight at a time
        else:
            settings = test_train_text.settings_for(kind, folder, **options)
            train_text_model(settings, test_train_text.STUDY, data_of(sums()))


if __name__ == "__main__":
    with distributed.joined(), distributed.together():
        main(sys.argv[1], json.loads(sys.argv[2]))
