"""The registries of parts: what a configuration may name, guerdon's own and what users bring."""

from guerdon.compute.packaged import PACKAGED_MODELS
from guerdon.config.registry import Registry
from guerdon.settings.algorithm import ESTIMATORS, LOSSES
from guerdon.settings.data import VERIFIERS
from guerdon.settings.label import JUDGES, LABELERS
from guerdon.settings.policy import POLICIES
from guerdon.settings.reward_models import REWARD_MODELS
from guerdon.settings.world import WORLDS

REGISTRIES: tuple[Registry, ...] = (
    REWARD_MODELS,
    WORLDS,
    POLICIES,
    ESTIMATORS,
    LOSSES,
    VERIFIERS,
    LABELERS,
    JUDGES,
    PACKAGED_MODELS,
)
