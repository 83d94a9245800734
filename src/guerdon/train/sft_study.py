"""`guerdon train policy=sft`: the worked solutions of a study's training prompts become a supervised start.

This module does not know how the training is done.

    folder, metrics = train_sft_study(study, resume=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.errors import ConfigError, DataError
from guerdon.settings.study import Study
from guerdon.settings.text_policy import SFTSettings
from guerdon.train.sft import train_sft
from guerdon.worlds.mistakes import demonstrate
from guerdon.worlds.prompt_files import load_prompts
from guerdon.worlds.prompts import Prompt, insert_system_prompt


def train_sft_study(study: Study, *, resume: bool) -> tuple[Path, dict[str, Any]]:
    """Fine-tune on the training prompts that come with a worked solution.

    Args:
        study: with `data` and `sft`.
        resume: go on from the newest checkpoint, if there is one.

    Returns:
        The model's folder, and numbers.

    Raises:
        ConfigError: the study has no `data` or no `sft` section.
        DataError: no prompt has a solution, or mistakes are asked of problems that were not generated.
    """
    if study.data is None or study.sft is None:
        raise ConfigError("policy=sft needs a data section (prompts with solutions) and an sft section (save_dir)")
    torch.set_num_threads(study.runner.threads)
    train, _ = load_prompts(study.data)
    system = study.data.system_prompt
    solved = [p for p in train if p.solution is not None]
    if not solved:
        raise DataError(
            f"none of the {len(train)} training prompts has a worked solution to learn from: give the rows a "
            "`solution` or `answer` with its steps"
        )
    texts = _texts(solved, study.sft)
    pairs = [(insert_system_prompt(p.messages, system), text) for p, text in zip(solved, texts, strict=True)]
    settings = study.sft.model_copy(update={"resume": True}) if resume else study.sft
    return train_sft(pairs, settings, study.sft.policy or study.text_policy)


def _texts(solved: Sequence[Prompt], settings: SFTSettings) -> list[str]:
    """The demonstration of each prompt: its own solution, or one with mistakes."""
    if settings.mistakes is None:
        return [p.solution or "" for p in solved]
    rng = np.random.default_rng([settings.mistakes.seed, 6])
    return [demonstrate(p, settings.mistakes, rng) for p in solved]
