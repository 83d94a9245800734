"""The `data` section: which prompts a language model is trained on, how they are filtered, how answers are verified.

The keys of prompt filtering have the names and defaults of PRIME (2502.01456).

    GeneratedDataSettings(task=SwapSettings(steps=12), n_samples=8, accuracy_lower_bound=0.1)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from guerdon.config.registry import Registry
from guerdon.errors import ConfigError
from guerdon.settings.base import COLUMNS, OWN_PARAMS, Because, ByName, Named, Seed, Settings, Unless, only_with, refuse


class _FamilySettings(Settings):
    """What all generated families share."""

    steps: int = Field(6, ge=1, le=200, description="lines of a solution")
    min_steps: int | None = Field(None, ge=1, description="draw the number of lines from here on; null: always steps")
    seed: Seed = Field(0, description="decides every problem, of training and of validation")

    @model_validator(mode="after")
    def _range_of_steps(self) -> _FamilySettings:
        if self.min_steps is not None and self.min_steps > self.steps:
            raise ConfigError.about("min_steps", f"{self.min_steps} is more than steps {self.steps}")
        return self


def _distinct(text: str) -> str:
    if len(set(text)) != len(text):
        raise ValueError("an operation is repeated")
    return text


class ChainSettings(_FamilySettings):
    """Long arithmetic, one reduction per line: `3+5=?;?*2=?;` is solved by `3+5=8;8*2=6;`."""

    family: Literal["chain"] = Field("chain", description="long arithmetic, one reduction per line")
    modulus: int | None = Field(
        10,
        ge=2,
        le=10**6,
        description="every result is taken modulo this, all numbers get the same width; null: plain integers",
    )
    ops: str = Field("+-*", pattern=r"^[-+*]+$", description="operations drawn from")
    low: int = Field(0, ge=0, description="smallest operand")
    high: int = Field(9, ge=0, le=10**6, description="largest operand")

    any_order: int = Field(
        1,
        ge=1,
        le=200,
        description="so many operations in a row may be applied in any order, so that a step has several right "
        "continuations; above 1 ops may hold + and - only",
    )

    _ops_differ = field_validator("ops")(_distinct)

    @model_validator(mode="after")
    def _range_of_operands(self) -> ChainSettings:
        if self.low > self.high:
            raise ConfigError.about("low", f"{self.low} is more than high {self.high}")
        if self.any_order > 1 and "*" in self.ops:
            raise ConfigError.about(
                "any_order",
                "above 1 needs operations whose order does not change the result: set ops to +- (or + or -)",
            )
        return self


class RegisterSettings(_FamilySettings):
    """Variables that depend on earlier ones: `a=3;b=4;c=a+b=?;d=c*a=?;` is solved by `c=3+4=7;d=7*3=1;`."""

    family: Literal["register"] = Field("register", description="variables that depend on earlier ones")
    inputs: int = Field(2, ge=1, le=25, description="variables that are given")
    modulus: int = Field(10, ge=2, le=10**6, description="values are modulo this; up to 10: one digit")
    ops: str = Field("+-*", pattern=r"^[-+*]+$", description="operations drawn from")

    _ops_differ = field_validator("ops")(_distinct)

    @model_validator(mode="after")
    def _enough_letters(self) -> RegisterSettings:
        if self.inputs + self.steps > 26:
            raise ConfigError.about("inputs", f"{self.inputs} + steps {self.steps} need more than the 26 letters")
        return self


class SwapSettings(_FamilySettings):
    """Track a row of letters: `ABC;12=???;23=???;` is solved by `12=BAC;23=BCA;`."""

    family: Literal["swap"] = Field("swap", description="track a row of letters while two at a time change places")
    items: int = Field(5, ge=2, le=9, description="letters in the row")


class AutomatonSettings(_FamilySettings):
    """Follow a table given in the question: `a=120;b=002;0a=?;?b=?;` is solved by `0a=1;1b=0;`."""

    family: Literal["automaton"] = Field("automaton", description="follow a transition table given in the question")
    states: int = Field(5, ge=2, le=10, description="states of the automaton")
    symbols: int = Field(3, ge=1, le=26, description="letters it reads, a row of the table each")


class StorySettings(_FamilySettings):
    """Word problems: `Mia buys 3 boxes with 4 pears in each box. Mia gives 5 pears to Tom. How many ...`."""

    family: Literal["story"] = Field("story", description="word problems in sentences, a calculation per line")
    steps: int = Field(2, ge=1, le=8, description="calculations of a solution")
    ops: str = Field("+-*", pattern=r"^[-+*/]+$", description="operations drawn from; divisions have no remainder")
    high: int = Field(20, ge=4, le=1000, description="largest amount that is there at first, comes or goes")
    factor: int = Field(5, ge=2, le=12, description="largest factor and divisor")

    _ops_differ = field_validator("ops")(_distinct)


TaskSettings = Annotated[
    ChainSettings | RegisterSettings | SwapSettings | AutomatonSettings | StorySettings,
    Field(discriminator="family"),
]

_NAMES = ("auto", "math", "numeric", "exact", "code")
_IN_PROCESSES = ("auto", "math", "code")
VERIFIERS = Registry("verifier", "guerdon.verifiers", dict.fromkeys(_NAMES, "guerdon.tasks.verifier:Verifier"))
_BY_SHARE = Because(True, "filter_accuracy off")
_FILTERS = Because(True, "both filters off")


class _DataSettings(Settings):
    """What all kinds of data share: how many prompts, how long, and which are left out before the update."""

    val_size: int = Field(
        256,
        ge=0,
        le=10**6,
        description="problems to validate on: made (generated), or held out of the training prompts by question where "
        "neither val_files nor val_split names any",
    )
    system_prompt: str | None = Field(None, description="before the question; null: that of the data set, if any")
    shots: int = Field(
        0,
        ge=0,
        le=64,
        description="worked examples before every question, as turns of the chat: the first training prompts with a "
        "solution, which are not trained on",
    )
    max_prompt_length: int = Field(1024, ge=1, description="tokens; longer prompts are left out and counted")
    max_response_length: int = Field(3072, ge=1, description="tokens; longer responses are truncated")
    train_batch_size: int = Field(32, ge=1, le=65536, description="prompts per update")
    n_samples: int = Field(4, ge=1, le=65536, description="rollouts per prompt")
    filter_truncated: bool = Field(True, description="leave out prompts with a response that reached the length limit")
    oversample_factor: float = only_with(
        1.0, ge=1, filters=_FILTERS, description="draw train_batch_size times this many prompts at a time"
    )
    shortfall: Literal["resample", "fill", "shrink", "error"] = only_with(
        "resample",
        filters=_FILTERS,
        description="too few prompts survive the filters: draw more, fill up with rejected ones, use fewer, or stop",
    )

    @property
    def filters(self) -> bool:
        """Whether prompts are left out before the update."""
        return self.filter_truncated


class _AnsweredDataSettings(_DataSettings):
    """What data with true answers share: prompts are left out by their share of right responses."""

    filter_accuracy: bool = Field(True, description="train on prompts whose share of right rollouts is within bounds")
    accuracy_lower_bound: float = only_with(
        0.2, ge=0, le=1, filter_accuracy=_BY_SHARE, description="smallest share that is kept, inclusive"
    )
    accuracy_upper_bound: float = only_with(
        0.8, ge=0, le=1, filter_accuracy=_BY_SHARE, description="largest share that is kept, inclusive"
    )

    @property
    def filters(self) -> bool:
        """Whether prompts are left out before the update."""
        return self.filter_accuracy or self.filter_truncated

    @model_validator(mode="after")
    def _filters_fit(self) -> Self:
        low, high, n = self.accuracy_lower_bound, self.accuracy_upper_bound, self.n_samples
        if self.filter_accuracy and not any(low <= k / n <= high for k in range(n + 1)):
            raise ConfigError(
                f"no prompt can survive: {n} rollouts have no share of right ones from {low} to {high}; widen the "
                "bounds, raise n_samples, or switch filter_accuracy off",
                key="accuracy_lower_bound",
            )
        return self


class GeneratedDataSettings(_AnsweredDataSettings):
    """Problems made in code, which check themselves."""

    type: Literal["generated"] = Field("generated", description="problems made here, which check themselves")
    task: TaskSettings = Field(ChainSettings(), description="which problems, how hard")
    train_size: int = Field(8192, ge=1, le=10**6, description="different problems to train on")

    verifier: ClassVar[Literal["auto"]] = "auto"
    unparsable: ClassVar[Literal["failure"]] = "failure"


class _ReadDataSettings(_AnsweredDataSettings):
    """What data with true answers to compare with share.

    Attributes:
        validation_key: the key that names prompts to validate on.
    """

    validation_key: ClassVar[str]

    verifier: Annotated[str, Named(VERIFIERS)] = Field(
        "auto",
        description="verifier of answers; auto: programs by their tests, GSM8K numerically, others by math",
    )
    verifier_params: dict[str, Any] = only_with(default_factory=dict, verifier=Unless(*_NAMES), description=OWN_PARAMS)
    verifier_timeout: float = only_with(
        10.0, gt=0, verifier=_IN_PROCESSES, description="math: seconds per answer; code: CPU seconds per test"
    )
    verifier_workers: int = only_with(
        2, ge=1, verifier=_IN_PROCESSES, description="processes that compare answers (math) or run programs (code)"
    )
    verifier_tolerance: float = only_with(
        0.0, ge=0, lt=1, verifier=("auto", "math", "numeric"), description="relative difference of equals"
    )
    unparsable: Literal["failure", "wrong"] = Field(
        "failure",
        description="a response without a readable answer is a failure (dropped and counted) or wrong",
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if getattr(self, self.validation_key):
            refuse({"val_size"} & self.model_fields_set, "validation data of its own")
        if VERIFIERS.is_own(self.verifier):
            VERIFIERS.check(self.verifier, self.verifier_params)
        return self


class FilesDataSettings(_ReadDataSettings):
    """Files with a row per prompt."""

    validation_key = "val_files"

    type: Literal["files"] = Field("files", description="JSONL, Parquet, CSV or TSV")
    train_files: tuple[str, ...] = Field(min_length=1, description="one or several to train on")
    val_files: tuple[str, ...] = Field((), description="one or several to validate on")
    columns: str | dict[str, str] = Field(default_factory=dict, description=COLUMNS)

    @field_validator("train_files", "val_files", mode="before")
    @classmethod
    def _one_file(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given


class _SplitDataSettings(_ReadDataSettings):
    """What data with splits share."""

    validation_key = "val_split"

    path: str = Field(min_length=1, description="gsm8k: folder with its own files; datasets: folder or hub id")
    train_split: str = Field("train", description="split to train on")
    val_split: str | None = Field(None, description="split to validate on; null: hold out val_size")


class GSM8KDataSettings(_SplitDataSettings):
    """The folder of GSM8K's own files."""

    type: Literal["gsm8k"] = Field("gsm8k", description="the folder of GSM8K's own files")


class HubDataSettings(_SplitDataSettings):
    """A data set of the `datasets` library."""

    type: Literal["datasets"] = Field("datasets", description="a local folder of the datasets library or a hub id")
    name: str | None = Field(None, description="the configuration of a data set that has several")
    columns: str | dict[str, str] = Field(default_factory=dict, description=COLUMNS)


class PromptsDataSettings(_DataSettings):
    """Prompts whose answers are not known: nothing verifies a response, and true success is unknown."""

    type: Literal["prompts"] = Field("prompts", description="prompts without known answers, for reward models alone")
    path: str = Field(min_length=1, description="file, folder of files or of datasets, or hub id, a row per prompt")
    columns: str | dict[str, str] = Field(default_factory=dict, description=COLUMNS)

    filter_accuracy: ClassVar[bool] = False
    accuracy_lower_bound: ClassVar[float] = 0.0
    accuracy_upper_bound: ClassVar[float] = 1.0
    unparsable: ClassVar[Literal["failure"]] = "failure"


DataSettings = Annotated[
    GeneratedDataSettings | FilesDataSettings | GSM8KDataSettings | HubDataSettings | PromptsDataSettings,
    ByName("type", "generated"),
]
"""`data`: prompts, generated or read, with known answers or without, and what happens to them before the update."""


def run_prompts(data: DataSettings | None) -> DataSettings:
    """The `data` section of a run with a language model.

    Raises:
        ConfigError: there is none.
    """
    if data is None:
        raise ConfigError(
            "a language model runs on prompts: add a data section (what they are, how answers are verified)", key="data"
        )
    return data
