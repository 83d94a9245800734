"""A process that trains reward models of text: alone, or as one of several (the tests set torchrun's variables).

python train_together.py OUTPUT '[["stepwise", {"max_steps": 4}], ...]'
"""

import json
import sys

import torch
from test_train_text import STUDY, settings_for
from text_lessons import data_of, sums

from guerdon import distributed
from guerdon.train.text import train_text_model


def main(output, trainings):
    torch.set_num_threads(1)
    for name, kind, options in trainings:
        train_text_model(settings_for(kind, f"{output}/{name}", **options), STUDY, data_of(sums()))


if __name__ == "__main__":
    with distributed.joined(), distributed.together():
        main(sys.argv[1], json.loads(sys.argv[2]))
