"""Where a run starts from: fresh weights, a cloned policy, or a checkpoint of an earlier run (two-stage training).

This module does not know the loop.

    notes = start_from_policy(study, policy)
    notes += start_from_run(study, policy, optimizer)
"""

from __future__ import annotations

from pathlib import Path

from guerdon.policies.control import ControlPolicy, load_policy
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.learner import FlatAdam
from guerdon.settings.study import Study


def start_from_policy(study: Study, policy: ControlPolicy) -> list[str]:
    """Take over the actor of `policy.checkpoint`, if one is named. The critic starts fresh: it judged other rewards.

    Returns:
        Lines that say what was done.

    Raises:
        CheckpointError: the policy does not fit.
    """
    folder = study.control_policy.checkpoint
    if folder is None:
        return []
    policy.load_tensors(load_policy(Path(folder)).tensors(), critic=False)
    if "log_std_init" in study.control_policy.model_fields_set:
        policy.log_std.data.fill_(study.control_policy.log_std_init)
    return [f"policy starts from {folder}"]


def start_from_run(study: Study, policy: ControlPolicy, optimizer: FlatAdam) -> list[str]:
    """Second stage: take over policy, normalisers and optimiser of `runner.resume_dir`; counters start at 0.

    Where the sources of reward differ from the first stage's, the critic and the optimiser start fresh: their
    numbers are about another reward.

    Returns:
        Lines that say what was done.

    Raises:
        CheckpointError: there is no whole checkpoint, or it does not fit.
    """
    path = ckpt.find_checkpoint(Path(study.runner.resume_dir or ""))
    tensors, values = ckpt.load_checkpoint(path)
    same = tuple(values["sources"]) == policy.sources
    policy.load_tensors(ckpt.under("policy", tensors), critic=same)
    if same:
        optimizer.load_tensors(ckpt.under("optimizer", tensors))
        return [f"stage 2 starts from {path}: policy, critic, normalisers and optimiser"]
    return [
        f"stage 2 starts from {path}: policy and normalisers; the critic and the optimiser start fresh, because the "
        f"sources of reward changed from {', '.join(values['sources']) or 'none'} to {', '.join(policy.sources)}"
    ]
