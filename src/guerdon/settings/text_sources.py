"""What must hold between the `reward` section of a language study and its other sections.

`settings.study` asks; this module does not know how rewards are measured.

    check_text_sources(study.reward, study.reward_model, study.text_algorithm)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from guerdon.errors import ConfigError
from guerdon.settings.prime import RewardModelSection
from guerdon.settings.reward import RewardSettings
from guerdon.settings.text_algorithm import TextAlgorithmSettings

SECTION_NAMES = {"prime": "prime", "exact": "exact", "value": "rm", "normal": "rm"}
"""`reward_model.rm_type` to the name of its stream of rewards."""
RESERVED = {"verifier", "kl"}


def check_text_sources(
    reward: RewardSettings, section: RewardModelSection | None, algorithm: TextAlgorithmSettings
) -> None:
    """Refuse names that are taken, weights that train nothing, and knobs that would do nothing.

    Raises:
        ValueError: with the key and the reason.
    """
    sources = reward.sources if reward.use_reward_model else {}
    if not sources:
        return
    reserved = RESERVED | ({SECTION_NAMES[section.rm_type]} if section is not None else set())
    for name in sorted(reserved & set(sources)):
        raise ValueError(f"a reward source cannot be called {name}: another source has that name")
    if section is not None:
        idle = sorted({"combine_mode", "env_reward_weight"} & reward.model_fields_set)
        if idle:
            raise ValueError(
                f"reward.{idle[0]} would do nothing beside reward_model, whose verifier_coef is the weight of the "
                "outcome; remove it"
            )
        return
    outcome = reward.env_weight()
    if not outcome and not any(source.reward_weight for source in sources.values()):
        raise ValueError("every weight is 0, so nothing would train the policy: see reward.combine_mode")
    if len(sources) == 1 and not outcome and algorithm.normalize_advantages:
        name, source = next(iter(sources.items()))
        if "reward_weight" in source.model_fields_set and source.reward_weight > 0:
            raise ValueError(
                f"reward.sources.{name}.reward_weight would do nothing with combine_mode {reward.combine_mode}, where "
                "the only source is normalised; remove it"
            )


def judged_names(train: Iterable[str], third: Iterable[str], only: Sequence[str]) -> list[str]:
    """The reward models that `guerdon evaluate` judges, by name.

    Args:
        train: names of the `train` section.
        third: names of `evaluate.models`.
        only: those asked for; empty: all.

    Raises:
        ConfigError: a name that there is not, or is twice; or there is none at all.
    """
    own, others = list(train), list(third)
    if not own and not others:
        raise ConfigError("there is no reward model to judge: name one in the train section or in evaluate.models")
    for name in set(own) & set(others):
        raise ConfigError(f"evaluate.models: {name} is also a model of the train section; call it something else")
    for name in only:
        if name not in (*own, *others):
            raise ConfigError(f"--only {name}: this study has {', '.join([*own, *others])}")
    return list(only) or [*own, *others]
