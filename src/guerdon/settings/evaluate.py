"""The `evaluate` section: how reward models of robots and of text are evaluated.

For example:

    EvaluateTextSettings(aggregation="min", generated=GeneratedBenchSettings(families=(ChainSettings(),)))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from pydantic import Field, field_validator, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import DEVICE, SET, Because, Device, FolderName, Seed, Settings, only_with, refuse
from guerdon.settings.data import TaskSettings
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.train import TEXT_MODELS

_WITH_COLUMNS = ("pairs", "labels", "turns", "process_bench", "prm_bench")  # keys with data whose columns may be said
Aggregation = Literal["min", "prod", "last", "mean", "pure_min"]


class GateSettings(Settings):
    """`evaluate.gate`: the forecast whether a reward model will help RL, and which ones `--gate` refuses."""

    table: str | None = Field(
        None,
        description="reward models with known effects in RL, a Parquet or JSON-lines file that the predictor is "
        "fitted to; null: guerdon's own",
    )
    max_harm: float = Field(
        0.5, gt=0, lt=1, description="probability of harm above which --gate exits with status 5, and a run warns"
    )
    unknown: Literal["pass", "fail"] = Field(
        "pass", description="--gate: what a reward model unlike all in the table, or without features, does"
    )


class RepairSettings(Settings):
    """`evaluate.repair`: attacks on success classifiers by `guerdon evaluate --attack`, and training on them."""

    rounds: int = Field(
        2,
        ge=0,
        le=3,
        description="at most so often: attack, add what was found as failures, train anew; 0: attack only",
    )
    starts: int = Field(16, ge=2, description="starts of a set of attacks; every family attacks from each of them")
    steps: int = Field(50, ge=1, description="environment steps of an attack")
    hold: int = Field(10, ge=1, description="steps that an attack keeps an action")
    score_every: int = Field(5, ge=1, description="steps between two rows that the model judges")
    lead: Literal["expert", "none"] = Field(
        "expert", description="acts before the attack begins; none: attacks begin at the reset"
    )
    back: int = only_with(
        20, ge=1, lead="expert", description="an attack begins at most so many steps before the expert succeeds"
    )
    population: int = Field(16, ge=2, description="candidates per generation of the search")
    generations: int = Field(4, ge=1, description="of the search")
    elites: int = Field(
        4, ge=1, description="best candidates of a start: the search continues around them, training gets them"
    )
    recall: float = Field(
        0.9, gt=0, le=1, description="share of the held-out rows of success that every model's threshold accepts"
    )

    @model_validator(mode="after")
    def _fits(self) -> RepairSettings:
        if self.elites > self.population:
            raise ConfigError.about("elites", "are a part of the population: at most population of them")
        return self


class EvaluateSettings(Settings):
    """`evaluate`: how reward models of robots are judged."""

    type: Literal["control"] = Field("control", description="robots; follows from policy.type")
    data_path: str | None = Field(None, description="held-out episodes; null: each model's own validation split")
    outcomes: str | None = only_with(
        None,
        data_path=SET,
        description="file with the columns episode and success, for held-out episodes without outcomes",
    )
    success_at_end: bool | None = only_with(
        None,
        outcomes=SET,
        description="the last row of an episode that succeeded is the moment of its success, where no row is marked",
    )
    reps: int = Field(1000, ge=100, le=10**5, description="bootstrap replications")
    seed: Seed = Field(0, description="of everything that is drawn")
    remote: dict[FolderName, RemoteSettings] = Field(
        default_factory=dict,
        description="models on a reward server, evaluated, too, by name",
    )
    gate: GateSettings = Field(GateSettings(), description="whether a model will help RL")
    repair: RepairSettings = Field(RepairSettings(), description="--attack: attacks, and training on them")

    @model_validator(mode="after")
    def _has_episodes(self) -> EvaluateSettings:
        if self.remote and self.data_path is None:
            raise ConfigError.about(
                "remote", "needs data_path: the episodes that a model on a server was trained on are unknown"
            )
        return self


class GeneratedBenchSettings(Settings):
    """A set in the shape of ProcessBench, made in code from tasks whose every step has an exact truth."""

    families: tuple[TaskSettings, ...] = Field(min_length=1, description="a subset each, named by its family")
    size: int = Field(200, ge=2, description="solutions per family; half of them have a slip, placed uniformly")
    seed: Seed = Field(0, description="of everything that is drawn")


_SAMPLED = Because(None, "samples, which exist already")


class BestOfNSettings(Settings):
    """Best-of-N and voting over several sampled solutions per question."""

    samples: str | None = Field(
        None,
        description="solutions with checked answers, several per question; null: the study's policy answers its "
        "validation questions",
    )
    questions: int = only_with(128, ge=1, samples=_SAMPLED, description="at most so many questions")
    n: int = only_with(16, ge=2, samples=_SAMPLED, description="solutions per question")
    temperature: float = only_with(1.0, gt=0, samples=_SAMPLED, description="of the solutions")
    aggregations: tuple[Aggregation, ...] = Field(
        ("min", "prod", "last", "mean", "pure_min"), min_length=1, description="one pair of curves each"
    )
    ns: tuple[int, ...] | None = Field(None, description="numbers of samples; null: powers of two")
    gold: str | None = Field(
        None,
        description="a reward model taken for the truth, named as for `guerdon score`: shows over-optimisation; "
        "answers need no check then",
    )

    @model_validator(mode="after")
    def _counts(self) -> BestOfNSettings:
        if self.ns is not None and (not self.ns or min(self.ns) < 1):
            raise ConfigError.about("ns", "lists numbers of samples, each at least 1")
        if self.samples is None and self.ns is not None and max(self.ns) > self.n:
            raise ConfigError.about("ns", f"asks for {max(self.ns)} samples of a question, and n is {self.n}")
        return self


class AttackSettings(Settings):
    """Wrong solutions dressed up to please a judge."""

    limit: float = Field(0.05, gt=0, lt=1, description="an attack works when it fools the model more often than this")
    questions: int = Field(100, ge=1, description="at most so many questions")
    copies: int = Field(3, ge=1, description="padding steps, and repetitions of a right step")


ProbeName = Literal["order", "length", "formatting", "confidence", "claim", "family"]


class BiasProbeSettings(Settings):
    """Edits of the responses of `pairs` that make them neither better nor worse, and what they do to their values."""

    names: tuple[ProbeName, ...] = Field(
        get_args(ProbeName), min_length=1, description="which; those that do not apply to a model are left out"
    )
    prompts: int = Field(50, ge=2, description="at most so many, drawn")


class ThirdPartySettings(Settings):
    """One of `evaluate.models`: a reward model that this study did not train."""

    path: str = Field(
        description="folder or hub id; or a reward server, http://host:port/v1/rewards?model=name; or "
        "package.module:factory; or the rubric file of a judge"
    )
    adapter: str = Field("auto", description="how steps are marked and scores read; auto: by the model's files")
    micro_batch_size: int = Field(16, ge=1, description="solutions per forward pass")
    device: Device = DEVICE
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="more keys of reward.model: weights of ratings; of a rubric file those of a judge; of a factory "
        "its params",
    )


_BENCHES = Because(True, "without generated or process_bench")


class EvaluateTextSettings(Settings):
    """`evaluate` of a language study: on what reward models for text are judged, and how."""

    type: Literal["text"] = Field("text", description="language models; follows from policy.type")
    models: dict[FolderName, ThirdPartySettings] = Field(
        default_factory=dict,
        description="evaluated with those of the train section, by name: a path, or a path with its adapter",
    )
    save_dir: str | None = only_with(
        None,
        models=Because(SET, "without models: trained ones are evaluated next to their weights"),
        description="receives a folder for each of models; null: work_dir/models/<task>",
    )
    aggregation: Aggregation = Field(description="how the values of steps become one value of a solution")
    generated: GeneratedBenchSettings | None = Field(
        None,
        description="first errors on a generated set in the shape of ProcessBench; in a study that names nothing to "
        "judge on: of its own family",
    )
    process_bench: tuple[str, ...] = Field((), description="ProcessBench files, a subset each")
    prm_bench: str | None = Field(None, description="a PRMBench file")
    pairs: str | None = Field(
        None, description="preferences: RewardBench, RewardBench 2, RM-Bench, JudgeBench, PPE, or your own"
    )
    labels: str | None = Field(
        None,
        description="responses, a part of them with a label by people (oracle_label): agreement, and the mean label",
    )
    turns: str | None = Field(
        None,
        description="conversations with a true reward for each turn of the assistant: conversations.jsonl of a run, or "
        "a column step_labels",
    )
    columns: str | dict[str, str | dict[str, str]] | None = Field(
        None,
        description="what columns of pairs, labels, turns, process_bench or prm_bench are for, where it is not "
        "recognised: ROLE: NAME, with `:CODING` behind the name where one is needed, such as winner: vote:1/2; or "
        "package.module:function; where there are several of these data, a map of such by the key of each",
    )
    threshold: float | None = only_with(
        None,
        gt=0,
        lt=1,
        tune_on=Because(None, "tune_on, which chooses it"),
        benches=_BENCHES,
        description="a step below it is wrong; null: 0.5, or tune_on's",
    )
    tune_on: str | None = only_with(
        None, benches=_BENCHES, description="use the threshold with the best F1 on this subset for all subsets"
    )
    ties: Literal["wrong", "half"] = only_with(
        "wrong", pairs=SET, description="of pairs with equal values: 0 as published, or half"
    )
    probes: BiasProbeSettings | None = only_with(
        BiasProbeSettings(), pairs=SET, description="bias probes on pairs; null: none; a list: these"
    )
    best_of_n: BestOfNSettings | None = Field(None, description="curves of best-of-N and votes")
    attacks: AttackSettings | None = Field(AttackSettings(), description="dressed-up wrong solutions; null: none")
    batch_size: int = Field(64, ge=1, description="solutions per call of the reward model")
    gate: GateSettings = Field(GateSettings(), description="whether a model will help RL")
    reps: int = Field(1000, ge=100, le=10**5, description="bootstrap replications")
    seed: Seed = Field(0, description="of everything that is drawn")

    @field_validator("models", mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {k: {"path": v} if isinstance(v, str) else v for k, v in given.items()}

    @field_validator("probes", mode="before")
    @classmethod
    def _names_alone(cls, given: Any) -> Any:
        if isinstance(given, bool):
            return {} if given else None
        return {"names": given} if isinstance(given, list | tuple) else given

    @model_validator(mode="after")
    def _fits(self) -> EvaluateTextSettings:
        if not any(getattr(self, name) for name in BENCHES):
            raise ValueError(f"name what to evaluate on: {', '.join(BENCHES[:-1])} or {BENCHES[-1]}")
        self._check_columns()
        if not self.benches and self.attacks is not None and self.best_of_n is None:
            refuse({"attacks"} & self.model_fields_set, "without right and wrong solutions of the same question")
        return self

    def _check_columns(self) -> None:
        """Refuse columns without data, or that do not say of which data they are."""
        there = [name for name in _WITH_COLUMNS if getattr(self, name)]
        if self.columns and not there:
            refuse({"columns"}, f"without {', '.join(_WITH_COLUMNS[:-1])} or {_WITH_COLUMNS[-1]}")
        by_data = isinstance(self.columns, dict) and {*self.columns} <= {*there}
        is_map = isinstance(self.columns, dict) and any(isinstance(one, dict) for one in self.columns.values())
        if self.columns and not by_data and (len(there) > 1 or is_map):
            each = ", ".join(f"{name}: {{ROLE: NAME}}" for name in there)
            raise ConfigError(f"columns are of one of {', '.join(there)}: write columns: {{{each}}}", key="columns")

    def columns_of(self, name: str) -> str | dict[str, str] | None:
        """What is said of the columns of `pairs`, `labels`, `turns`, `process_bench` or `prm_bench`."""
        several = sum(bool(getattr(self, one)) for one in _WITH_COLUMNS) > 1
        if not isinstance(self.columns, dict):
            return self.columns
        if several or isinstance(self.columns.get(name), dict):
            found: Any = self.columns.get(name)
        else:
            found = self.columns
        return cast("str | dict[str, str] | None", found)

    @property
    def compares_prompts(self) -> bool:
        """Whether values of different prompts are compared, not only those of the responses to one."""
        return self.benches or any(x is not None for x in (self.prm_bench, self.labels, self.turns, self.best_of_n))

    @property
    def benches(self) -> bool:
        """Whether first errors are looked for."""
        return self.generated is not None or bool(self.process_bench)


BENCHES = ("generated", "process_bench", "prm_bench", "pairs", "labels", "turns", "best_of_n")


def on_own_family(given: dict[str, Any], data: Any) -> dict[str, Any]:
    """An `evaluate` section that names nothing to judge on means new problems of the study's own generated family.

    Args:
        given: the section as it was given.
        data: the `data` section as it was given.
    """
    own = isinstance(data, dict) and (data.get("type", "generated"), given.get("type", "text")) == ("generated", "text")
    if not own or "generated" in given or any(given.get(name) for name in BENCHES):
        return given
    return {**given, "generated": {"families": [data.get("task", {"family": "chain"})]}}


def judged_names(
    train: Iterable[str], third: Iterable[str], only: Sequence[str], section: str = "evaluate.models"
) -> list[str]:
    """The reward models that `guerdon evaluate` judges, by name.

    Args:
        train: names of the `train` section.
        third: names of `section`.
        only: those asked for; empty: all.
        section: where reward models are named that the study does not train.

    Raises:
        ConfigError: a name that does not exist or is repeated; or there is none at all.
    """
    own, others = list(train), list(third)
    if not own and not others:
        raise ConfigError(
            f"there is no reward model to evaluate: name one in the train section or in {section}", key=section
        )
    for name in set(own) & set(others):
        raise ConfigError.about(section, f": {name} is also a model of the train section; call it something else")
    for name in only:
        if name not in (*own, *others):
            raise ConfigError(f"--only {name}: this study has {', '.join([*own, *others])}", key="--only")
    return list(only) or [*own, *others]


def judges_text(given: Mapping[str, Any]) -> bool:
    """Whether the reward models that a study trains, or that it evaluates, are models of text."""

    def value(section: Any, key: str) -> Any:
        return section.get(key) if isinstance(section, Mapping) else getattr(section, key, None)

    train, evaluate = given.get("train"), given.get("evaluate")
    if isinstance(train, Mapping) and train:
        return all(value(one, "type") in TEXT_MODELS for one in train.values())
    keys = EvaluateTextSettings.model_fields.keys() - EvaluateSettings.model_fields.keys()
    return value(evaluate, "type") == "text" or (isinstance(evaluate, Mapping) and bool(keys & evaluate.keys()))
