"""A process that trains: alone, or as one of several, where the variables of torchrun are set.

python train_together.py OUTPUT '[["name", "stepwise", {"max_steps": 4}], ...]'
"""

import json
import sys

import test_sft
import test_train_text
import test_vlm_train
import torch
from text_lessons import data_of, sums

from guerdon import distributed
from guerdon.train.sft import train_sft
from guerdon.train.text import train_text_model
from guerdon.train.vlm import train_vlm


def main(output, trainings):
    torch.set_num_threads(1)
    for name, kind, options in trainings:
        folder = f"{output}/{name}"
        if kind == "sft":
            own = dict(options)
            policy = test_sft.POLICY.model_copy(
                update={"lora": test_sft.LoraSettings(**own.pop("lora"))} if "lora" in own else {}
            )
            train_sft(test_sft.SUMS, test_sft.settings_for(folder, **own), policy)
        elif kind == "vlm":
            train_vlm(test_vlm_train.settings(folder, **options), test_vlm_train.lamps(), data_hash="abc")
        else:
            settings = test_train_text.settings_for(kind, folder, **options)
            train_text_model(settings, test_train_text.STUDY, data_of(sums()))


if __name__ == "__main__":
    with distributed.joined(), distributed.together():
        main(sys.argv[1], json.loads(sys.argv[2]))
