"""Which reward to train a robot's policy with: 0/1, a learned one, both with a falling weight, and cloning.

The advice depends on two things that a study has or has not: demonstrations, and an environment that reports success in
the run. Its own figures, where it has them, stand in the same sentences. All of these are in this file.

    for line in advice(facts_of([study.model_dump(mode="json")], success=True)):
        print(line)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guerdon.episodes.index import load_index
from guerdon.episodes.layout import load_info
from guerdon.episodes.targets import by_demonstrator
from guerdon.errors import DataError
from guerdon.files.json_files import read_json

CLONE = (
    "Clone first: {demonstrations} are there, and `guerdon train STUDY policy=bc` with a section `bc` makes a policy "
    "of them. A learned reward has to end above that clone."
)
CLONED = "Here the clone succeeded in {share:.0%} of {episodes} episodes."
NOT_CLONED = "Its success is not measured here: set bc.eval_episodes."
BOTH = (
    "Then train with 0/1 and the learned reward together: combine_mode add, and reward_weight_schedule success, by "
    "which the weight of the learned reward falls as the policy succeeds. It guides where 0/1 has nothing to say yet; "
    "whether it ends at least as high as 0/1 alone was not measured, so compare both. Keep the clone in it: "
    "algorithm.bc_weight (sac), or policy.checkpoint with algorithm.kl_coef (PPO)."
)
ZERO_ONE = (
    "0/1 alone, with the same cloning, is enough where it sees successes early in the run. Compare with it: the same "
    "temperature_init and the same demonstrations for all settings."
)
NOT_ALONE = (
    "The learned reward alone (combine_mode replace) gives up what the environment knows, and may end lower than what "
    "it replaces."
)
BLIND = (
    "The environment reports no success in the run, so that there is no 0/1: train with the learned reward alone "
    "(combine_mode replace), and keep the clone in it (algorithm.bc_weight, or policy.checkpoint with "
    "algorithm.kl_coef)."
)
BLIND_END = (
    "Nothing in such a run says when the learned reward begins to harm: label some episodes every few thousand steps "
    "(guerdon annotate), and keep the policy that succeeded most."
)
NO_DEMONSTRATIONS = (
    "There are no demonstrations: train with 0/1, and record the successes of the run (env.data_collection). A learned "
    "reward needs them, and is added to 0/1 then, with reward_weight_schedule success."
)
NEITHER = (
    "There are neither demonstrations nor success in the run: a reward model that was trained elsewhere is all that is "
    "left, and nothing can say what it does. Record demonstrations, or label episodes (guerdon annotate), first."
)
UNKNOWN = "Whether the environment reports success is not known. If it does: {known} If it does not: {unknown}"
FIGURES = "In this study, true success at the end of training: {figures}."
FIGURE_OF_RUN = "In this run ({setting}), true success at its last evaluation: {share:.2f}."


@dataclass(frozen=True)
class Facts:
    """What a study has.

    Attributes:
        success: whether the environment reports true success in the run; None: not known before one.
        demonstrations: successful episodes; 0: none; None: there are some, and how many cannot be read.
        clone: true success of a clone of them, and the episodes in which it was measured; None: not measured.
        learned: whether a learned reward is used or trained.
        settings: name of what was trained with (`setting_of`) to the true success at the end of its runs.
    """

    success: bool | None
    demonstrations: int | None = 0
    clone: tuple[float, int] | None = None
    learned: bool = True
    settings: Mapping[str, Sequence[float]] | None = None


def advice(facts: Facts) -> list[str]:
    """What to train with, in lines of a sentence or two; none without a learned reward and demonstrations."""
    if not facts.learned and facts.demonstrations == 0:
        return []
    return [*_choice(facts), *_figures(facts)]


def _choice(facts: Facts) -> Iterator[str]:
    """What fits a study."""
    if facts.demonstrations != 0:
        yield f"{CLONE.format(demonstrations=_counted(facts.demonstrations))} {_of_clone(facts)}"
    known, unknown = (BOTH, BLIND) if facts.demonstrations != 0 else (NO_DEMONSTRATIONS, NEITHER)
    if facts.success is None:
        yield UNKNOWN.format(known=known, unknown=unknown)
        return
    yield known if facts.success else unknown
    if facts.demonstrations != 0:
        yield from (ZERO_ONE, NOT_ALONE) if facts.success else (BLIND_END,)


def _counted(demonstrations: int | None) -> str:
    if demonstrations is None:
        return "demonstrations"
    return "1 demonstration" if demonstrations == 1 else f"{demonstrations} demonstrations"


def _of_clone(facts: Facts) -> str:
    if facts.clone is None:
        return NOT_CLONED
    share, episodes = facts.clone
    return CLONED.format(share=share, episodes=episodes)


def _figures(facts: Facts) -> Iterator[str]:
    """What the runs of the study reached."""
    found = {name: values for name, values in (facts.settings or {}).items() if values}
    if not found:
        return
    means = {name: sum(values) / len(values) for name, values in found.items()}
    if sum(map(len, found.values())) == 1:
        ((name, mean),) = means.items()
        yield FIGURE_OF_RUN.format(setting=name, share=mean)
        return
    runs = {name: f"{len(values)} runs" if len(values) > 1 else "1 run" for name, values in found.items()}
    yield FIGURES.format(figures=", ".join(f"{name} {mean:.2f} ({runs[name]})" for name, mean in means.items()))


NATIVE, DENSE = "0/1", "the environment's dense reward"
LEARNED, ADDED, FALLING = "the learned reward alone", "both", "both, the learned one with a falling weight"


def setting_of(config: Mapping[str, Any]) -> str:
    """What a run was trained with, by its resolved configuration: one of the names above, and how it was cloned."""
    reward, algorithm = _part(config, "reward"), _part(config, "algorithm")
    native = DENSE if _part(config, "env").get("native_reward") == "dense" else NATIVE
    if not reward.get("use_reward_model"):
        name = native
    elif reward.get("combine_mode") != "add" and not reward.get("env_reward_weight"):
        name = LEARNED
    else:
        sources = _part(reward, "sources").values()
        name = FALLING if any(_weights(source) == "success" for source in sources) else ADDED
    start = _part(config, "policy").get("checkpoint")
    if algorithm.get("bc_weight") or (start and _is_clone(start, config)):
        return f"{name}, with cloning"
    return f"{name}, from another policy" if start else name


def _is_clone(start: str, config: Mapping[str, Any]) -> bool:
    """Whether a policy is the clone that the study makes, or another that `guerdon train` made."""
    return start == _part(config, "bc").get("save_dir") or (Path(start) / "training.json").is_file()


def _weights(source: Any) -> Any:
    return source.get("reward_weight_schedule") if isinstance(source, Mapping) else None


def facts_of(configs: Sequence[Mapping[str, Any]], *, success: bool | None) -> Facts:
    """What a study has, by its configurations and the folders that they name.

    Args:
        configs: of a study of a robot, or of each of its runs, resolved, as JSON values.
        success: whether the environment reports it; None: not known.
    """
    counts = [_demonstrations(config) for config in configs]
    some = [count for count in counts if count]
    unknown = None if None in counts else 0
    return Facts(
        success=success,
        demonstrations=some[0] if some else unknown,
        clone=_clones(configs),
        learned=any(_part(one, "train") or _part(one, "reward").get("use_reward_model") for one in configs),
    )


def _demonstrations(config: Mapping[str, Any]) -> int | None:
    """Demonstrations in the first data set that a study names and that has some; those that failed do not count.

    Of data that cannot be read, and of demonstrations that are named and not there yet, the number is not known.
    """
    sources = _part(_part(config, "reward"), "sources").values()
    demonstrated = [_part(config, "algorithm").get("demonstrations"), _part(config, "bc").get("data_path")]
    others = [_part(config, "collect").get("save_dir"), *(_part(one, "model").get("replay_path") for one in sources)]
    for name in _part(config, "train"):
        paths = _part(_part(config, "train"), name).get("data_path") or []
        others += [paths] if isinstance(paths, str) else paths
    counts = [_successes(Path(path)) for path in [*demonstrated, *others] if path]
    found = next((count for count in counts if count), None)
    if found is not None:
        return found
    return None if any(demonstrated) or None in counts else 0


def _successes(root: Path) -> int | None:
    """Episodes of demonstrators in a data set that did not fail, by its index; None where that cannot be read."""
    if not root.exists():
        return 0
    try:
        entries, _ = load_index(root, load_info(root))
    except DataError:
        return None
    return sum(by_demonstrator(one.meta) and not (one.outcome_known and one.outcome is False) for one in entries)


def _clones(configs: Sequence[Mapping[str, Any]]) -> tuple[float, int] | None:
    """The true success of the clones that configurations name, of all their episodes together, and their number."""
    named = [_part(one, "bc").get("save_dir") for one in configs]
    named += [_part(one, "policy").get("checkpoint") for one in configs]
    found = [read_json(Path(folder) / "metrics.json") or {} for folder in dict.fromkeys(named) if folder]
    known = [(float(one["success"]), int(one["eval_episodes"])) for one in found if one.get("success") is not None]
    episodes = sum(count for _, count in known)
    if not episodes:
        return None
    return sum(share * count for share, count in known) / episodes, episodes


def _part(config: Any, name: str) -> Mapping[str, Any]:
    """A section of a configuration; empty where there is none."""
    found = config.get(name) if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else {}
