"""`guerdon evaluate --attack`: attacks on success classifiers, training on what they find, and what that changed.

Attacks on the frozen model are written down first (`committed`), and no training reads them. Then, in every round,
other starts are attacked, what was found goes into the training data as failures, and the model is trained anew, with
the same episodes held out. A *control* is trained anew without attacks, by another seed: attacks that were chosen for
the errors of one network fool any other one less often. Every model has its own threshold, which accepts the same share
of the held-out rows of success, so that a model does not look better because it accepts less. A false positive is an
episode without success in which a row reaches the threshold.

    for name, (report, paths) in repair_study(study).items():
        print(repair_text(report))
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from guerdon.collect.stepping import steps
from guerdon.episodes.read import dataset_hash
from guerdon.episodes.targets import episode_success
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.metrics import aligned, number
from guerdon.evaluation.suites.image_suite import held_out, outcomes_of_data
from guerdon.files.atomic import write_json, write_text
from guerdon.models.load import load_reward_model
from guerdon.models.scores import score_episodes
from guerdon.policies.robots.experts import actor_maker
from guerdon.settings.collect import ActorShare
from guerdon.settings.study import Study
from guerdon.settings.train import ResNetTrainSettings
from guerdon.statistics.intervals import (
    Float64,
    Interval,
    percentile_interval,
    resampling_weights,
    widen_at_edge,
)
from guerdon.train.images import held_out_episodes, read_data, train_image_model
from guerdon.types import BoolArray, Episode, FloatArray, IntArray, RewardModel
from guerdon.worlds.build import build_world
from guerdon.worlds.spaces import choices, parts_of_rows, state_keys, states_of
from guerdon.worlds.world import World

# ---------------------------------------------------------------------------------------------------------------------
# Attacks on a reward model of a robot: episodes that it takes for success, although the world reports none.
#
# An attack is the number of a start and a sequence of actions, so that it can be replayed. From every start one of
# three families makes episodes of the same length:
#
# - `search`: the cross-entropy method over sequences of held actions, for the largest value of the model at no true
#   success, from a moment shortly before a scripted expert (the lead) succeeds;
# - `random`: random held actions from the reset, the ones that the model values most;
# - `hold`: the same moments as `search`, and then no action at all: a near miss that nothing has optimised.
#
#     with closing(Attacker(study)) as attacker:
#         found = attacker.find("search", model, range(16))         # for each start the best attacks, best first
#     found[0][0].value, found[0][0].episode.frames
# ---------------------------------------------------------------------------------------------------------------------


Family = Literal["search", "random", "hold"]
FAMILIES: tuple[Family, ...] = ("search", "random", "hold")
TRIES = 10  # numbers of starts looked at for each one wanted
LEAST_SPREAD = 0.1  # of the search, as a share of half the range of an action
_LEAD, _SEARCH = 1, 2  # what random numbers are for
_LONGEST_LEAD = 1000  # steps, where episodes have no time limit

Item = TypeVar("Item")


class Found(NamedTuple, Generic[Item]):
    """A candidate of a search and its value."""

    value: float
    item: Item


def cross_entropy_search(
    evaluate: Callable[[FloatArray], Sequence[Found[Item] | None]],
    low_A: FloatArray,
    high_A: FloatArray,
    *,
    knots: int,
    population: int,
    generations: int,
    elites: int,
    rng: np.random.Generator,
) -> list[Found[Item]]:
    """Maximise over sequences of K actions by the cross-entropy method (de Boer et al. 2005, algorithm 4.1).

    The first generation is uniform. Each later one is drawn from a normal distribution with the mean and the standard
    deviation of the best candidates so far, all generations counted, and clipped.

    Args:
        evaluate: (P, K, A) candidates to their values and what they led to; None: the candidate does not count.
        low_A, high_A: bounds of each action.
        knots: K.
        population: P.
        generations: of `population` candidates each.
        elites: the best ones that the next generation is drawn around.
        rng: of the candidates.

    Returns:
        The best candidates of all generations, at most `elites`, best first; those of equal value in their order.
    """
    shape, half_A = (population, knots, len(low_A)), (high_A - low_A) / 2
    best: list[tuple[Found[Item], FloatArray]] = []
    for _ in range(generations):
        if best:
            kept = np.stack([candidate for _, candidate in best])
            spread = np.maximum(kept.std(axis=0), LEAST_SPREAD * half_A)
            drawn = kept.mean(axis=0) + spread * rng.standard_normal(shape)
        else:
            drawn = rng.uniform(low_A, high_A, shape)
        candidates = np.clip(drawn, low_A, high_A).astype(np.float32)
        found = zip(evaluate(candidates), candidates, strict=True)
        best += [(one, candidate) for one, candidate in found if one is not None]
        best = sorted(best, key=lambda pair: -pair[0].value)[:elites]
    return [one for one, _ in best]


class Attacker:
    """Finds attacks in the world of a study, as `evaluate.repair` says. The seed of the section decides everything.

    Raises:
        ConfigError: a lead that the world does not have, actions without bounds, or episodes too short for an attack.
    """

    def __init__(self, study: Study) -> None:
        how = study.control_evaluate
        self._plan, self._seed = how.repair, how.seed
        limit = study.env.max_episode_steps or _LONGEST_LEAD
        self._room = limit - self._plan.steps  # for the lead
        if self._room < 0:
            raise ConfigError.about(
                "evaluate.repair.steps", f"{self._plan.steps} is more than env.max_episode_steps {limit}"
            )
        expert = self._plan.lead == "expert"
        if expert and study.env.type not in ("metaworld", "libero", "maniskill"):
            raise ConfigError.about(
                "evaluate.repair.lead", f": {study.env.task} has no scripted expert; set lead: none"
            )
        env = study.env.model_copy(update={"observation": "state"})
        readers = ["evaluate.repair"]
        self._one = build_world(env, seed=self._seed, num_envs=1, success_readers=readers)
        space = self._one.action_space
        if choices(space) is not None:
            self._one.close()
            raise ConfigError(
                f"guerdon evaluate --attack: the actions of {study.env.task} are discrete", key="--attack"
            )
        self._low, self._high = (np.asarray(end, np.float32) for end in (space.low, space.high))
        if not (np.isfinite(self._low).all() and np.isfinite(self._high).all()):
            self._one.close()
            raise ConfigError(
                f"guerdon evaluate --attack: the actions of {study.env.task} have no bounds", key="--attack"
            )
        self._many = build_world(
            env,
            seed=self._seed,
            num_envs=self._plan.population,
            group_size=self._plan.population,  # all copies begin alike
            success_readers=readers,
        )
        self._expert = actor_maker(ActorShare(type="expert"), self._one, study.env, None) if expert else None
        self._leads: dict[int, FloatArray] = {}
        self._states: dict[int, bytes] = {}

    def starts(self, count: int, used: Sequence[int] = ()) -> tuple[list[int], int]:
        """Numbers of further starts, as far as possible with first observations that no other start has.

        Two numbers may begin alike: a Meta-World task has 50 goals.

        Args:
            count: how many.
            used: starts that came before.

        Returns:
            The starts, and how many of them begin as another one or a used one does, for want of better.
        """
        seen = {self._state(start) for start in used}
        found, alike = list[int](), list[int]()
        first = max(used, default=-1) + 1
        for start in range(first, first + TRIES * count):
            if len(found) == count:
                break
            (alike if self._state(start) in seen else found).append(start)
            seen.add(self._state(start))
        rest = alike[: count - len(found)]
        return sorted(found + rest), len(rest)

    def _state(self, start: int) -> bytes:
        """What is first observed at a start."""
        if start not in self._states:
            self._one.rewind(start)
            self._states[start] = self._one.reset(capture=np.zeros(1, np.bool_)).observations.tobytes()
        return self._states[start]

    def find(self, family: Family, model: RewardModel, starts: Iterable[int]) -> list[list[Found[Episode]]]:
        """The attacks from each of these starts, best first; none where every episode was a true success.

        The value of an attack is the model's largest value of a row. What the model fails to measure is not an attack.
        """
        return [self._from(family, model, start) for start in starts]

    def close(self) -> None:
        """Close the worlds."""
        self._one.close()
        self._many.close()

    def _from(self, family: Family, model: RewardModel, start: int) -> list[Found[Episode]]:
        plan = self._plan
        lead = np.zeros((0, len(self._low)), np.float32) if family == "random" else self._lead(start)

        def evaluate(candidates_P_K_A: FloatArray, world: World | None = None) -> list[Found[Episode] | None]:
            actions = np.repeat(candidates_P_K_A, plan.hold, axis=1)[:, : plan.steps]
            of_states = model.info.modality == "state"
            played = play(world or self._many, start, lead, actions, every=plan.score_every, states=of_states)
            return _valued(model, played)

        if family == "hold":
            still = np.clip(np.zeros((1, -(-plan.steps // plan.hold), len(self._low))), self._low, self._high)
            found = [one for one in evaluate(still.astype(np.float32), self._one) if one is not None]
        else:
            found = cross_entropy_search(
                evaluate,
                self._low,
                self._high,
                knots=-(-plan.steps // plan.hold),
                population=plan.population,
                generations=plan.generations if family == "search" else 1,
                elites=plan.elites,
                rng=np.random.default_rng([self._seed, _SEARCH, FAMILIES.index(family), start]),
            )
        meta = {"policy": f"attack-{family}", "start": start, "lead": len(lead), "frame_every": plan.score_every}
        return [
            Found(one.value, replace(one.item, id=f"{family}-{start:05d}-{k}", meta=meta))
            for k, one in enumerate(found)
        ]

    def _lead(self, start: int) -> FloatArray:
        """(L, A) actions of the expert from a start to a moment shortly before it succeeds."""
        if self._expert is not None and start not in self._leads:
            rng = np.random.default_rng([self._seed, _LEAD, start])
            self._leads[start] = lead_actions(
                self._one, self._expert().act, start, back=self._plan.back, most=self._room, rng=rng
            )
        return self._leads.get(start, np.zeros((0, len(self._low)), np.float32))


def lead_actions(
    world: World,
    act: Callable[[np.ndarray, np.random.Generator], np.ndarray],
    start: int,
    *,
    back: int,
    most: int,
    rng: np.random.Generator,
) -> FloatArray:
    """(L, A) actions of a policy up to 1 to `back` steps before its first success; of a failure up to any step.

    Args:
        world: with one copy.
        act: the policy.
        start: number of the episode that the world begins with.
        back: see above.
        most: actions at most.
        rng: of the policy and of the length.
    """
    world.rewind(start)
    shown = world.reset(capture=np.zeros(1, np.bool_)).observations
    actions, success = list[FloatArray](), False
    for step in steps(world, lambda seen: act(seen, rng), shown) if most else ():
        actions.append(np.asarray(step.actions[0], np.float32))
        success = bool(step.transition.success[0])
        if success or step.transition.done[0] or step.transition.failed[0] or len(actions) == most:
            break
    length = len(actions) - int(rng.integers(1, back + 1)) if success else int(rng.integers(0, len(actions) + 1))
    return np.reshape(actions, (-1, *(world.action_space.shape or ())))[: max(length, 0)].astype(np.float32)


def play(
    world: World, start: int, lead_L_A: FloatArray, actions_B_T_A: FloatArray, *, every: int, states: bool = False
) -> list[Episode | None]:
    """Let every copy begin at the same start, repeat the lead, and then take its own actions.

    Args:
        world: its copies begin alike.
        start: number of the episode that the world begins with.
        lead_L_A: actions that no row is recorded of.
        actions_B_T_A: of each copy, after the lead.
        every: actions between two rows; the last moment is a row, too.
        states: record what the world observes instead of pictures.

    Returns:
        For each copy its rows from the end of the lead on, as a failed episode; None where the world reported a
        success at any moment, or broke.

    Raises:
        ConfigError: the world left open whether a moment is a success.
    """
    kept = _recorded(world, start, lead_L_A, actions_B_T_A, every=every)
    shown = [] if states else [look for rows in kept.values() for look in rows.looks]
    frames = iter(world.render(shown) if shown else ())
    episodes: list[Episode | None] = [None] * len(actions_B_T_A)
    for i, rows in kept.items():
        episodes[i] = Episode(
            id=f"{start}-{i}",
            task=world.tasks[i],
            frames=None if states else np.stack([next(frames) for _ in rows.looks]),
            states=states_of(np.stack(rows.seen), world.own_columns) if states else None,
            actions=np.stack(rows.actions),
            success=np.zeros(len(rows.looks), np.bool_),
            outcome=False,
            meta=parts_of_rows(state_keys(world.own_columns), ()),
        )
    return episodes


class _Rows(NamedTuple):
    """What is recorded of one copy: looks at the world, what it observed, and the action that led to each."""

    actions: list[FloatArray]
    looks: list[Any]
    seen: list[np.ndarray]

    def add(self, action: FloatArray, look: Any, seen: np.ndarray) -> None:
        self.actions.append(action)
        self.looks.append(look)
        self.seen.append(seen)


def _recorded(
    world: World, start: int, lead_L_A: FloatArray, actions_B_T_A: FloatArray, *, every: int
) -> dict[int, _Rows]:
    """The rows of each copy that neither succeeded nor broke and has more than one, as `play` says."""
    copies, length = actions_B_T_A.shape[:2]
    lead = len(lead_L_A)
    script = np.concatenate([np.broadcast_to(lead_L_A, (copies, *lead_L_A.shape)), actions_B_T_A], axis=1)
    no_action = np.zeros_like(script[0, 0])
    playing = np.ones(copies, np.bool_)
    lost = np.zeros(copies, np.bool_)  # to success, or to a broken simulator

    def capture(rows_B: IntArray) -> BoolArray:
        rows = rows_B - lead
        return np.asarray(playing & (rows >= 0) & ((rows % every == 0) | (rows == length)))

    world.rewind(start)
    begun = world.reset(capture=np.full(copies, lead == 0))
    recorded = [_Rows([], [], []) for _ in range(copies)]
    if lead == 0:
        for i, rows in enumerate(recorded):
            rows.add(no_action, begun.first_looks[i], begun.own_observations[i])
    moves = iter(script.swapaxes(0, 1))
    for step in steps(world, lambda _: next(moves), begun.observations, capture=capture):
        now, wanted = step.transition, capture(step.rows)
        if (playing & now.mask & ~now.success_known).any():
            raise ConfigError(
                "guerdon evaluate --attack needs a world that reports success at every step", key="--attack"
            )
        lost |= playing & (now.success | now.failed)
        ended = now.done & (step.rows > lead)
        for i in np.flatnonzero(playing & ~lost & (wanted | ended)).tolist():
            led_here = script[i, step.rows[i] - 1] if recorded[i].looks else no_action
            recorded[i].add(led_here, now.looks[i], np.array(now.own_final[i]))
        playing &= ~(now.done | lost)
        if not playing.any() or int(step.rows.max()) >= lead + length:
            break
    return {i: rows for i, rows in enumerate(recorded) if not lost[i] and len(rows.looks) > 1}


def _valued(model: RewardModel, played: Sequence[Episode | None]) -> list[Found[Episode] | None]:
    """The episodes with the model's largest value of a row."""
    values = iter(row_maxima(model, [episode for episode in played if episode is not None]))
    found = [None if episode is None else Found(float(next(values)), episode) for episode in played]
    return [one if one is not None and np.isfinite(one.value) else None for one in found]


def row_maxima(model: RewardModel, episodes: Sequence[Episode]) -> Float64:
    """(N,) the largest value that the model gives to a row of each episode, NaN where it fails to measure it."""
    scores = score_episodes(model, episodes)
    return np.array([np.nan if score.steps is None else score.steps.max() for score in scores], np.float64)


# ---------------------------------------------------------------------------------------------------------------------


MODELS = ("before", "control", "after")
TRAINED_ON: tuple[Family, Family] = ("search", "random")


def recall_thresholds(values_R: Float64, weights_K_R: Float64, recall: float) -> Float64:
    """(K,) largest thresholds that accept at least this share of R values: `value >= threshold`.

    Args:
        values_R: of the cases that should be accepted.
        weights_K_R: how much each of them counts, in each of K resamples.
        recall: the share, in (0, 1].
    """
    order = np.argsort(-values_R, kind="stable")
    accepted = np.cumsum(weights_K_R[:, order], axis=1)
    enough = accepted >= recall * accepted[:, -1:] - 1e-9
    return np.asarray(values_R[order][enough.argmax(axis=1)])


@dataclass(frozen=True)
class FalsePositives:
    """How often models take a set of failures for success, each at its own threshold.

    Attributes:
        models: by the name of the model.
        after_minus_before, after_minus_control: paired by episode; None where a model was not measured.
    """

    models: Mapping[str, Interval]
    after_minus_before: Interval | None
    after_minus_control: Interval | None


def false_positives(
    successes: Mapping[str, Float64],
    owner_R: IntArray,
    failures: Mapping[str, Float64],
    *,
    recall: float,
    reps: int,
    seed: int,
) -> FalsePositives:
    """False positives at fixed recall, with percentile intervals that resample whole episodes of either kind.

    The thresholds are computed anew in every resample, so that the intervals contain their uncertainty.

    Args:
        successes: for each model (R,) values of the held-out rows of success.
        owner_R: the episode of each of these rows.
        failures: for some of the models (N,) largest values of the rows of episodes without success, -inf where there
            was none to find, NaN where a measurement failed. An episode that a model failed on counts for none.
        recall: share of the rows of success to accept.
        reps: resamples.
        seed: of the resampling.
    """
    known = ~np.isnan(list(failures.values())).any(axis=0)
    n, missing = int(known.sum()), int((~known).sum())
    if not n:
        nothing = Interval(None, None, None, 0, missing)
        return FalsePositives(dict.fromkeys(failures, nothing), None, None)
    rng = np.random.default_rng(seed)
    _, owner = np.unique(owner_R, return_inverse=True)
    of_rows = resampling_weights(int(owner.max()) + 1, reps, rng)[:, owner]
    of_failures = resampling_weights(n, reps, rng)
    rates: dict[str, Float64] = {}
    for name, values in failures.items():
        thresholds = recall_thresholds(successes[name], of_rows, recall)
        rates[name] = (of_failures * (values[known] >= thresholds[:, None])).sum(axis=1) / n

    def interval(drawn: Float64) -> Interval:
        return percentile_interval(drawn[0], drawn[1:], n=n, n_undefined=missing, can_vary=n > 1)

    def minus(name: str) -> Interval | None:
        return interval(rates["after"] - rates[name]) if {"after", name} <= rates.keys() else None

    models = {name: widen_at_edge(interval(drawn), n) for name, drawn in rates.items()}
    return FalsePositives(models, minus("before"), minus("control"))


@dataclass(frozen=True)
class Round:
    """One round of the repair.

    Attributes:
        attacked: starts.
        alike: those that begin as an earlier start does, of a committed attack perhaps, since the world has no others.
        exploited: those with an attack that reached the threshold of the model as it was before the round.
        added: failed episodes that training got.
        save_dir: the model that was trained; None where nothing was exploited, which ends the repair.
    """

    attacked: int
    alike: int
    exploited: int
    added: int
    save_dir: str | None


@dataclass(frozen=True)
class RepairReport:
    """What attacks and training on them did to a model.

    Attributes:
        model: its name in the study.
        task: of the world.
        recall: see `evaluate.repair`.
        success_rows, success_episodes: held-out ones, which the thresholds come from.
        thresholds: of each model.
        committed: name of each family to how many starts it found an attack from.
        alike: of the committed starts, those that begin as another one does, since the world has no others.
        committed_hash: of their data set.
        rounds: in order.
        false_positives: by what the failures are. `held out`: failed episodes of the data. `search against itself`:
            each model is attacked anew from the committed starts. `committed <family>`: the attacks found before.
    """

    model: str
    task: str
    recall: float
    success_rows: int
    success_episodes: int
    thresholds: Mapping[str, float]
    committed: Mapping[str, int]
    alike: int
    committed_hash: str
    rounds: Sequence[Round]
    false_positives: Mapping[str, FalsePositives]


def attackable(study: Study, only: Sequence[str] = ()) -> dict[str, ResNetTrainSettings]:
    """The success classifiers of a study that are attacked, by name; see `repair_study`.

    Raises:
        ConfigError: there is no such model, it sees through another camera than the world's first, or it is trained on
            what the command would remove.
    """
    classifiers = {k: m for k, m in study.image_models.items() if isinstance(m, ResNetTrainSettings)}
    fit = {name: model for name, model in classifiers.items() if model.within_steps is None}
    wrong = [name for name in only if name not in fit]
    if wrong or not fit:
        raise ConfigError(
            f"guerdon evaluate --attack: {wrong[0] if wrong else 'this study'} has no success classifier to "
            "attack: a model of the train section with type resnet, without within_steps",
            key="--attack",
        )
    models = {name: fit[name] for name in only or fit}
    for name, settings in models.items():
        _check_attacked(study, name, settings)
    return models


def _check_attacked(study: Study, name: str, settings: ResNetTrainSettings) -> None:
    """Refuse a model that sees through another camera, or whose data would be removed."""
    if settings.camera not in (None, study.env.camera_name):
        raise ConfigError.about(
            f"train.{name}.camera",
            f": attacks are seen through the first camera, {study.env.camera_name}; put {settings.camera} first",
        )
    removed = _folder(settings)
    inside = [path for path in settings.data_paths if Path(path).resolve().is_relative_to(removed.resolve())]
    if inside:
        raise ConfigError.about(
            f"train.{name}.data_path",
            f": guerdon evaluate --attack removes {removed} before it begins; copy {inside[0]} to another place",
        )


def repair_cost(study: Study, only: Sequence[str] = ()) -> dict[str, int]:
    """Models, episodes (without those that only say how a start looks) and trainings of `repair_study`, at most."""
    plan, models = study.control_evaluate.repair, len(attackable(study, only))
    one = plan.population * plan.generations  # candidates of a search from one start
    searched = one * (1 + plan.rounds + (plan.rounds > 0))
    others = plan.population * (1 + plan.rounds) + 1 + (1 + plan.rounds) * (plan.lead == "expert")
    episodes, trainings = plan.starts * (searched + others), plan.rounds + (plan.rounds > 0)
    return {"models": models, "episodes": models * episodes, "trainings": models * trainings}


def repair_study(study: Study, *, only: Sequence[str] = ()) -> dict[str, tuple[RepairReport, dict[str, Path]]]:
    """Attack and repair success classifiers of the `train` section (`type: resnet` without `within_steps`).

    Args:
        study: the configuration.
        only: names of models; by default all that can be attacked.

    Returns:
        Model name to its report and the files written to `repair/` in the folder of the model, which is removed first:
        data sets `committed` and `negatives-<round>`, models `control` and `round-<round>`, and last `repair.json`.

    Raises:
        ConfigError: there is no such model, or the world cannot be attacked; see `Attacker`.
        CheckpointError: a model is not trained yet.
        DataError: nothing was held out, or no success in it.
    """
    models, results = attackable(study, only), {}
    with closing(Attacker(study)) as attacker:
        repairs = [_Repair(name, settings, study, attacker) for name, settings in models.items()]
        for repair in repairs:
            report, folder = repair.run(), repair.folder
            paths = {"json": folder / "repair.json", "text": folder / "repair.txt"}
            write_text(paths["text"], repair_text(report))
            write_json(paths["json"], asdict(report))
            results[report.model] = (report, paths)
    return results


def _folder(settings: ResNetTrainSettings) -> Path:
    return Path(settings.save_dir) / "repair"


class _Repair:
    """The repair of one model."""

    def __init__(self, name: str, settings: ResNetTrainSettings, study: Study, attacker: Attacker) -> None:
        self._name, self._settings, self._study, self._attacker = name, settings, study, attacker
        self._how = study.control_evaluate
        self._plan = self._how.repair
        self.folder = _folder(settings)
        self._before = load_reward_model(settings.type, settings.save_dir, device=settings.device)
        episodes, _ = held_out(settings, self._how.data_path, outcomes_of_data(self._how))
        self._wins = [e for e in episodes if e.success is not None and e.success.any()]
        self._losses = [e for e in episodes if episode_success(e) is False]
        if not self._wins:
            raise DataError(
                "no held-out success, which the thresholds come from: collect more, or set val_split higher"
            )
        self._masks = [np.asarray(e.success, np.bool_) for e in self._wins]
        self._held = held_out_episodes(list(read_data(settings)[0]), settings)

    def run(self) -> RepairReport:
        plan, find = self._plan, self._attacker.find
        shutil.rmtree(self.folder, ignore_errors=True)
        starts, alike = self._attacker.starts(plan.starts)
        committed = {family: find(family, self._before, starts) for family in FAMILIES}
        best: dict[Family, list[Found[Episode]]] = {}
        for family, attacks in committed.items():
            best[family] = [one[0] for one in attacks if one]
        committed_hash = self._write("committed", [one.item for found in best.values() for one in found])
        models: dict[str, RewardModel] = {"before": self._before}
        rounds = self._rounds(models, starts)
        itself = {"before": _best_values(committed["search"])}
        if "after" in models:
            models["control"] = self._refit("control", (), (self._settings.seed + 1) % 2**64)
            itself["after"] = _best_values(find("search", models["after"], starts))
        wins = {name: _success_values(models[name], self._wins, self._masks) for name in MODELS if name in models}
        return RepairReport(
            model=self._name,
            task=self._study.env.task,
            recall=plan.recall,
            success_rows=sum(int(mask.sum()) for mask in self._masks),
            success_episodes=len(self._wins),
            thresholds={name: _threshold(values, plan.recall) for name, values in wins.items()},
            committed={family: len(found) for family, found in best.items()},
            alike=alike,
            committed_hash=committed_hash,
            rounds=rounds,
            false_positives=self._false_positives(models, wins, itself, best),
        )

    def _false_positives(
        self,
        models: Mapping[str, RewardModel],
        wins: Mapping[str, Float64],
        itself: Mapping[str, Float64],
        best: Mapping[Family, Sequence[Found[Episode]]],
    ) -> dict[str, FalsePositives]:
        """`RepairReport.false_positives`.

        Args:
            models: those that are compared.
            wins: for each the values of the rows of success.
            itself: for some the largest values that the search against them found.
            best: the attacks that were found before any training.
        """
        sets: dict[str, Mapping[str, Float64]] = {
            "held out": {name: row_maxima(models[name], self._losses) for name in wins},
            "search against itself": itself,
        }
        for family, found in best.items():
            shown = [one.item for one in found]
            sets[f"committed {family}"] = {name: row_maxima(models[name], shown) for name in wins}
        owner = np.repeat(np.arange(len(self._masks)), [mask.sum() for mask in self._masks])
        measured = {}
        for what, values in sets.items():
            measured[what] = false_positives(
                wins, owner, values, recall=self._plan.recall, reps=self._how.reps, seed=self._how.seed
            )
        return measured

    def _rounds(self, models: dict[str, RewardModel], used: Sequence[int]) -> list[Round]:
        """Attack from starts that were not used and train anew; the last model becomes `after`."""
        plan, model, rounds, extra = self._plan, self._before, list[Round](), list[str]()
        for turn in range(1, plan.rounds + 1):
            starts, alike = self._attacker.starts(plan.starts, used)
            used = [*used, *starts]
            threshold = _threshold(_success_values(model, self._wins, self._masks), plan.recall)
            searched, drawn = (self._attacker.find(family, model, starts) for family in TRAINED_ON)
            found = [[*one, *other] for one, other in zip(searched, drawn, strict=True)]
            exploited = sum(any(one.value >= threshold for one in attacks) for attacks in found)
            if not exploited:
                rounds.append(Round(len(starts), alike, 0, 0, None))
                break
            added = [one.item for attacks in found for one in attacks]
            self._write(f"negatives-{turn}", added)
            extra.append(str(self.folder / f"negatives-{turn}"))
            model = self._refit(f"round-{turn}", extra, self._settings.seed)
            models["after"] = model
            rounds.append(Round(len(starts), alike, exploited, len(added), str(self.folder / f"round-{turn}")))
        return rounds

    def _refit(self, name: str, extra: Sequence[str], seed: int) -> RewardModel:
        """The model trained anew on the same episodes and these further data sets, with the same ones held out."""
        given: dict[str, Any] = {"data_path": (*self._settings.data_paths, *extra)}
        given |= {"save_dir": str(self.folder / name), "seed": seed}
        if self._settings.outcomes is not None:
            given["outcomes"] = (*self._settings.outcome_files, *[None] * len(extra))
        settings = self._settings.model_copy(update={**given, "resume": False})
        train_image_model(settings, held_ids=self._held)
        return load_reward_model(settings.type, settings.save_dir, device=settings.device)

    def _write(self, name: str, episodes: Sequence[Episode]) -> str:
        """Write episodes as a data set like those of the training, and return its hash; empty where there are none."""
        camera = self._settings.camera or self._study.env.camera_name
        with EpisodeWriter(self.folder / name, camera=camera, robot_type=self._study.env.type) as writer:
            for episode in episodes:
                writer.add(episode)
        return dataset_hash(self.folder / name) if episodes else ""


def _success_values(model: RewardModel, wins: Sequence[Episode], masks: Sequence[BoolArray]) -> Float64:
    """(R,) values of the rows of success."""
    found = list[Float64]()
    for score, mask in zip(score_episodes(model, wins), masks, strict=True):
        if score.steps is None:
            raise DataError(f"reward model {model.info.name!r} failed on a held-out episode: {score.failure}")
        found.append(score.steps[mask].astype(np.float64))
    return np.concatenate(found)


def _best_values(attacks: Sequence[Sequence[Found[Episode]]]) -> Float64:
    """(N,) the value of the best attack from each start, -inf where there is none."""
    return np.array([found[0].value if found else -np.inf for found in attacks])


def _threshold(values_R: Float64, recall: float) -> float:
    return float(recall_thresholds(values_R, np.ones((1, len(values_R))), recall)[0])


def repair_text(report: RepairReport) -> str:
    """The report as aligned plain text; `-` stands for what was not measured."""

    def cell(one: Interval | None) -> str:
        return "-" if one is None else f"{number(one.estimate)} [{number(one.low)}, {number(one.high)}]"

    rows = [["false positives", *MODELS, "after - before", "after - control", "n"]]
    for what, found in report.false_positives.items():
        cells = [cell(found.models.get(name)) for name in MODELS]
        differences = [cell(found.after_minus_before), cell(found.after_minus_control)]
        rows.append([what, *cells, *differences, str(next(iter(found.models.values())).n)])
    thresholds = ", ".join(f"{name} {number(value)}" for name, value in report.thresholds.items())
    lines = [
        f"{report.model}, {report.task}: thresholds accept {report.recall:g} of {report.success_rows} held-out rows of "
        f"success in {report.success_episodes} episodes ({thresholds})",
        *([f"{report.alike} of the committed starts begin as another one does"] if report.alike else []),
        *(
            f"round {k}: {one.exploited} of {one.attacked} starts exploited, "
            + (f"{one.alike} of them begin as earlier ones do, " if one.alike else "")
            + (f"{one.added} failed episodes added: {one.save_dir}" if one.save_dir else "nothing to repair")
            for k, one in enumerate(report.rounds, 1)
        ),
        "",
        *aligned(rows),
    ]
    return "\n".join(lines) + "\n"


# The stage.


class RepairedModel(NamedTuple):
    """What attacks on a model found and what training on them changed, and the files."""

    report: RepairReport
    paths: dict[str, Path]

    @property
    def line(self) -> str:
        """The report and where it is, for people."""
        return f"{repair_text(self.report)}\nwrote {self.paths['json']}, and data sets and models in the same folder"


@dataclass(frozen=True)
class AttackStage:
    """Attack success classifiers of robots, and train them on what is found.

    Attributes:
        only: names of models; empty: all that can be attacked.
    """

    only: tuple[str, ...] = ()

    def check(self, study: Study) -> None:
        """Refuse models that cannot be attacked.

        Raises:
            ConfigError: as `attackable`; or the study is of text.
        """
        if study.text:
            raise ConfigError(
                "--attack is for robots: models for text are always attacked, as evaluate.attacks says", key="--attack"
            )
        attackable(study, self.only)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Models, episodes and trainings, at most."""
        return repair_cost(study, self.only)

    def work(self, study: Study) -> list[RepairedModel]:
        """Attack them."""
        self.check(study)
        torch.set_num_threads(study.runner.threads)
        return [RepairedModel(*found) for found in repair_study(study, only=self.only).values()]
