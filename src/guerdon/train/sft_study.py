"""`guerdon train policy=sft`: the worked solutions of a study's training prompts become a supervised start.

This module does not know how the training is done.

    folder, metrics = train_sft_study(study, resume=False)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guerdon.errors import ConfigError, DataError
from guerdon.settings.study import Study
from guerdon.train.sft import train_sft
from guerdon.worlds.prompt_files import load_prompts
from guerdon.worlds.prompts import insert_system_prompt


def train_sft_study(study: Study, *, resume: bool) -> tuple[Path, dict[str, Any]]:
    """Fine-tune on the training prompts that come with a worked solution.

    Args:
        study: with `data` and `sft`.
        resume: go on from the newest checkpoint, if there is one.

    Returns:
        The model's folder, and numbers.

    Raises:
        ConfigError: the study has no `data` or no `sft` section.
        DataError: no prompt has a solution.
    """
    if study.data is None or study.sft is None:
        raise ConfigError("policy=sft needs a data section (prompts with solutions) and an sft section (save_dir)")
    train, _ = load_prompts(study.data)
    system = study.data.system_prompt
    pairs = [(insert_system_prompt(p.messages, system), p.solution) for p in train if p.solution is not None]
    if not pairs:
        raise DataError(
            f"none of the {len(train)} training prompts has a worked solution to learn from: give the rows a "
            "`solution` or `answer` with its steps"
        )
    settings = study.sft.model_copy(update={"resume": True}) if resume else study.sft
    return train_sft(pairs, settings, study.sft.policy or study.text_policy)
