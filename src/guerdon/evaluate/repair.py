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
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from guerdon.atomic import write_json, write_text
from guerdon.episodes.read import dataset_hash
from guerdon.episodes.targets import episode_success
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError, DataError
from guerdon.evaluate.exploits import FAMILIES, Attacker, Family, row_maxima
from guerdon.evaluate.image_suite import held_out
from guerdon.evaluate.intervals import (
    Float64,
    Interval,
    percentile_interval,
    resampling_weights,
    widen_at_edge,
)
from guerdon.evaluate.metrics import aligned, number
from guerdon.evaluate.scores import score_episodes
from guerdon.models.load import load_reward_model
from guerdon.settings.study import Study
from guerdon.settings.train import ResNetTrainSettings
from guerdon.train.images import held_out_episodes, read_data, train_image_model
from guerdon.types import BoolArray, Episode, IntArray, RewardModel

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
            "attack: a model of the train section with type resnet, without within_steps"
        )
    models = {name: fit[name] for name in only or fit}
    for name, settings in models.items():
        if settings.camera not in (None, study.env.camera_name):
            raise ConfigError(
                f"train.{name}.camera: attacks are seen through the first camera, {study.env.camera_name}; put "
                f"{settings.camera} first"
            )
        inside = [
            path for path in settings.data_paths if Path(path).resolve().is_relative_to(_folder(settings).resolve())
        ]
        if inside:
            raise ConfigError(
                f"train.{name}.data_path: guerdon evaluate --attack removes {_folder(settings)} before it begins; copy "
                f"{inside[0]} to another place"
            )
    return models


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
        episodes, _ = held_out(settings, self._how.data_path)
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
        best = {family: [one[0] for one in found if one] for family, found in committed.items()}
        committed_hash = self._write("committed", [one.item for found in best.values() for one in found])
        models: dict[str, RewardModel] = {"before": self._before}
        rounds = self._rounds(models, starts)
        itself = {"before": [one[0].value if one else -np.inf for one in committed["search"]]}
        if "after" in models:
            models["control"] = self._refit("control", (), (self._settings.seed + 1) % 2**64)
            again = find("search", models["after"], starts)
            itself["after"] = [one[0].value if one else -np.inf for one in again]
        wins = {name: _success_values(models[name], self._wins, self._masks) for name in MODELS if name in models}
        owner = np.repeat(np.arange(len(self._masks)), [mask.sum() for mask in self._masks])
        sets: dict[str, Mapping[str, Float64]] = {
            "held out": {name: row_maxima(models[name], self._losses) for name in wins},
            "search against itself": {name: np.array(values) for name, values in itself.items()},
        }
        for family, found in best.items():
            shown = [one.item for one in found]
            sets[f"committed {family}"] = {name: row_maxima(models[name], shown) for name in wins}
        options = {"recall": plan.recall, "reps": self._how.reps, "seed": self._how.seed}
        measured = {what: false_positives(wins, owner, values, **options) for what, values in sets.items()}  # type: ignore[arg-type]
        return RepairReport(
            model=self._name,
            task=self._study.env.task,
            recall=plan.recall,
            success_rows=len(owner),
            success_episodes=len(self._wins),
            thresholds={name: _threshold(values, plan.recall) for name, values in wins.items()},
            committed={family: len(found) for family, found in best.items()},
            alike=alike,
            committed_hash=committed_hash,
            rounds=rounds,
            false_positives=measured,
        )

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
        given = {"data_path": (*self._settings.data_paths, *extra), "save_dir": str(self.folder / name), "seed": seed}
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
