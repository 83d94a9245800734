"""The policy that a second stage starts from, kept as what its KL is measured from.

A run that starts from `policy.path` has those weights already: under its adapter, or in a copy that a reward model may
share. One that starts from another run (`runner.resume_dir`) does not: it learns from where that run ended, so that is
its reference, in weights of its own that go into its checkpoints. This module does not know how a KL is used.

    reference = empty_reference(policy, settings, seed=0)
    take_start(reference, policy)                                   # once, before anything is learnt
"""

from __future__ import annotations

from guerdon.policies.text import TextPolicy, add_policy
from guerdon.policies.text_files import load_policy
from guerdon.settings.text_policy import TextPolicySettings

NAME = "kl_ref"
_HEAD = "value_head."


def empty_reference(policy: TextPolicy, settings: TextPolicySettings, *, seed: int) -> TextPolicy:
    """Room for the start of a second stage: an adapter beside the policy's, or a second copy of all weights.

    Args:
        policy: that of the run.
        settings: how it is loaded.
        seed: of a model that is made in code.
    """
    if policy.adapter is None:
        return TextPolicy(load_policy(settings, seed=seed).base)
    assert settings.lora is not None
    return add_policy(policy.base, NAME, settings.lora, seed=seed)


def take_start(reference: TextPolicy, policy: TextPolicy) -> None:
    """Make the reference what the policy is now.

    Raises:
        CheckpointError: it is a reference of another policy.
    """
    own, mark = policy.tensors(), f".{policy.adapter}."
    reference.load_tensors({k.replace(mark, f".{NAME}."): v for k, v in own.items() if not k.startswith(_HEAD)})
