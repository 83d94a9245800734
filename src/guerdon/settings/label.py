"""The `label` section: questions, solutions, the labeler of their steps, and a spending limit.

The names are the flags of the seed's script (`method`, `reward`, `num_rollouts`, `num_samples`).

    LabelSettings(labeler="judge", judge=OpenAIJudgeSettings(model="qwen", base_url="http://localhost:8000/v1"))
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from guerdon.config.registry import Registry
from guerdon.errors import ConfigError
from guerdon.network.retry import TRIES
from guerdon.settings.base import (
    COLUMNS,
    OWN_PARAMS,
    PARAMS,
    SET,
    Because,
    ByName,
    Named,
    Seed,
    Settings,
    Unless,
    as_tuple,
    only_with,
    refuse,
)

Reward = Literal["HE", "SE"]
Splitter = Literal["blank_line", "newline", "sentence", "code_block", "tags", "separator"]

LABELERS = Registry(
    "labeler", "guerdon.labelers",
    {
        "judge": "guerdon.labels.labelers:JudgeLabeler", "monte_carlo": "guerdon.labels.labelers:MonteCarloLabeler",
        "binary_search": "guerdon.labels.labelers:BinarySearchLabeler",
        "consensus": "guerdon.labels.labelers:ConsensusLabeler", "exact": "guerdon.labels.labelers:ExactLabeler",
    },
    ("seed",),
)  # fmt: skip
JUDGES = Registry(
    "judge", "guerdon.judges",
    {
        "anthropic": "guerdon.endpoints.llm_client:HttpLLMClient",
        "openai": "guerdon.endpoints.llm_client:HttpLLMClient",
        "local": "guerdon.endpoints.completions:LocalLLMClient",
    },
    ("model",),
)  # fmt: skip
OptionalSetting = Literal[
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty",
    "stream",
]  # fmt: skip
"""Settings of requests that can be left out."""
LIMITS = ("max_tokens", "max_completion_tokens")  # two names of one setting
LEAVE_OUT: Any = Field(
    (),
    description="settings to leave out of requests, for an endpoint that does not accept them; a setting that it "
    "refuses by name (status 400 or 422) is left out of later requests without this",
)
JUDGED, CONTINUED = ("judge", "consensus"), ("monte_carlo", "binary_search", "consensus")
_OWN = {
    "model", "messages", "system", "max_tokens", "max_completion_tokens", "temperature", "stream", "n",
    "response_format", "output_config",
}  # fmt: skip
_RETRIES: Any = Field(
    TRIES - 1,
    ge=0,
    description="requests sent again after a failure that may pass; pauses double, or are as the server says",
)


class _JudgeSettings(Settings):
    """What all judges share."""

    api: str
    model: str | None = Field(None, description="what it is called")
    max_tokens: int = Field(2048, ge=1, description="longest judgement; a longer one is cut, which is a failure")
    temperature: float | None = Field(0.0, ge=0, description="of judgements; null: the endpoint's own")

    @property
    def model_name(self) -> str:
        """Its name, the default filled in."""
        return self.model or self.api

    @property
    def prices(self) -> tuple[float, float]:
        """Dollars per million tokens read and written."""
        return (0.0, 0.0)


class HttpJudgeSettings(_JudgeSettings):
    """What judges behind an HTTP API share.

    Attributes:
        key_variable: environment variable of the key, where `api_key_env` names none.
        default_url: of the API.
        default_prices: dollars per million tokens read and written.
    """

    key_variable: ClassVar[str]
    default_url: ClassVar[str]
    default_prices: ClassVar[tuple[float, float]]

    base_url: str | None = Field(None, description="of the API; null: that of Anthropic or OpenAI")
    api_key_env: str | None = Field(
        None,
        description="environment variable (or line of ./.env) with the key; null: ANTHROPIC_API_KEY or OPENAI_API_KEY. "
        "An endpoint at a base_url of your own needs none",
    )
    concurrency: int = Field(8, ge=1, description="requests under way at a time")
    requests_per_minute: float | None = Field(None, gt=0, description="start no more than these; null: no limit")
    retries: int = _RETRIES
    timeout: float = Field(120.0, gt=0, description="seconds of wall-clock per request")
    response_format: Literal["json_schema", "json_object"] | None = Field(
        None,
        description="hold judgements to JSON where the endpoint has that: json_schema (OpenAI, vLLM, SGLang), "
        "json_object (most others); null: only the prompt asks for it",
    )
    extra_body: dict[str, Any] = Field(
        default_factory=dict,
        description="more fields of every request, such as {chat_template_kwargs: {enable_thinking: false}} (vLLM)",
    )
    leave_out: tuple[OptionalSetting, ...] = LEAVE_OUT
    usd_per_million_in: float | None = Field(
        None, ge=0, description="price of a million tokens read; null: 3 (anthropic) or 0"
    )
    usd_per_million_out: float | None = Field(None, ge=0, description="price of a million reply tokens; null: 15 or 0")

    @field_validator("extra_body")
    @classmethod
    def _fields_are_free(cls, given: dict[str, Any]) -> dict[str, Any]:
        more = {key: value for key, value in given.items() if (key, value) != ("stream", False)}  # sent anyway
        for key in sorted(_OWN & set(more)):
            raise ConfigError(f"extra_body.{key} is set by guerdon or by another key; remove it", key=key)
        return more

    @model_validator(mode="after")
    def _has_both_prices(self) -> Self:
        given = {"usd_per_million_in": self.usd_per_million_in, "usd_per_million_out": self.usd_per_million_out}
        missing = [name for name, price in given.items() if price is None]
        if len(missing) == 1:
            raise ConfigError.about(missing[0], "is missing: give both prices, 0 where it is free")
        return self

    @property
    def url(self) -> str:
        """Where the API is, the default filled in; paths of requests begin with what `default_url` ends with."""
        address, mark, query = (self.base_url or self.default_url).partition("?")
        address = address.rstrip("/")
        return (address if self.default_url.endswith("/v1") else address.removesuffix("/v1")) + mark + query

    @property
    def prices(self) -> tuple[float, float]:
        """Dollars per million tokens read and written."""
        read, written = self.usd_per_million_in, self.usd_per_million_out
        default = self.default_prices
        return (default[0] if read is None else read, default[1] if written is None else written)


class AnthropicJudgeSettings(HttpJudgeSettings):
    """A model behind the Messages API."""

    key_variable, default_url = "ANTHROPIC_API_KEY", "https://api.anthropic.com"
    default_prices = (3.0, 15.0)

    api: Literal["anthropic"] = Field("anthropic", description="the Messages API")
    model: str | None = Field(None, description="name; null: claude-sonnet-4-20250514")
    response_format: Literal["json_schema"] | None = Field(
        None, description="hold judgements to JSON; newer models have that; null: only the prompt asks for it"
    )

    @property
    def model_name(self) -> str:
        """Its name, the default filled in."""
        return self.model or "claude-sonnet-4-20250514"


class OpenAIJudgeSettings(HttpJudgeSettings):
    """A model behind a chat completions endpoint."""

    key_variable, default_url = "OPENAI_API_KEY", "https://api.openai.com/v1"
    default_prices = (0.0, 0.0)

    api: Literal["openai"] = Field("openai", description="any chat completions endpoint (vLLM, SGLang, OpenAI)")
    model: str = Field(description="name")
    token_limit_key: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="what the endpoint calls the limit max_tokens"
    )


class LocalJudgeSettings(_JudgeSettings):
    """A transformers model in this process."""

    api: Literal["local"] = Field("local", description="a transformers model in this process")
    model: str = Field(description="folder or hub id")
    retries: int = _RETRIES


class OwnJudgeSettings(_JudgeSettings):
    """A judge that a user brings."""

    api: Annotated[str, Named(JUDGES)] = Field(description="a factory of your own")
    params: dict[str, Any] = PARAMS

    @model_validator(mode="after")
    def _checked(self) -> Self:
        JUDGES.check(self.api, self.params)
        return self


JudgeSettings = Annotated[
    AnthropicJudgeSettings | OpenAIJudgeSettings | LocalJudgeSettings | OwnJudgeSettings, ByName("api", "anthropic")
]
"""`label.judge`: a language model that says of each step whether it is right."""


def check_budget(max_usd: float | None, judge: JudgeSettings) -> None:
    """Refuse a budget that the calls of a judge cannot be held to.

    Raises:
        ValueError: with the reason.
    """
    if max_usd is not None and not any(judge.prices):
        raise ConfigError.about(
            "max_usd", "would do nothing while both prices of the judge are 0; set usd_per_million_..."
        )
    if max_usd is not None and set(LIMITS) <= set(getattr(judge, "leave_out", ())):
        raise ConfigError.about("max_usd", "needs a limit of tokens in each request, and judge.leave_out removes both")


class MonteCarloSettings(Settings):
    """`label.monte_carlo`: completions of the solution so far show whether it can still be saved."""

    completions: int = Field(8, ge=1, description="per prefix")
    estimate: Literal["hard", "soft"] = Field("soft", description="soft: share of right completions; hard: 1 for any")
    temperature: float = Field(0.7, gt=0, description="of completions")


class MiningSettings(Settings):
    """`label.mining`: keep the questions that the policy fails on often, but not always."""

    attempts: int = Field(8, ge=2, description="solutions per question")
    min_fail_rate: float = Field(0.3, ge=0, le=1, description="smallest share of wrong ones that is kept, inclusive")
    max_fail_rate: float = Field(0.8, ge=0, le=1, description="largest share of wrong ones that is kept, inclusive")
    max_questions: int = Field(5000, ge=1, description="try no more questions than these, however few are kept")

    @model_validator(mode="after")
    def _keeps_something(self) -> MiningSettings:
        low, high, n = self.min_fail_rate, self.max_fail_rate, self.attempts
        if not any(low <= k / n <= high for k in range(n + 1)):
            raise ValueError(f"no question can be kept: {n} attempts have no fail rate from {low} to {high}")
        return self


_GIVEN = Because(None, "solutions.data_path")


class SolutionSettings(Settings):
    """`label.solutions`: the solutions that are labelled: how they get written, or where they are."""

    data_path: str | tuple[str, ...] | None = Field(
        None,
        description="label the solutions that are there, in their steps: files, folders of files, folders that "
        "`datasets` saved, hub ids, in any format that is read; null: they are written",
    )
    columns: str | dict[str, str] = only_with(default_factory=dict, data_path=SET, description=COLUMNS)
    temperature: float = only_with(0.8, gt=0, data_path=_GIVEN, description="of the solutions")
    top_p: float = only_with(0.95, gt=0, le=1, data_path=_GIVEN, description="method 1: of the solutions")
    min_steps: int = Field(2, ge=1, description="leave solutions with fewer steps out")


_WRITTEN = Because(((),), "solutions.data_path")  # data_paths is empty
_JUDGED = Because(True, "a labeler and a method that ask no judge")


class LabelSettings(Settings):
    """`label`: step labels for process reward models; `guerdon label`."""

    save_dir: str = Field("data", description="receives prm_dataset_method{1|2}_{HE|SE}/ and a cache of all replies")
    method: Literal[1, 2] = only_with(
        1, data_paths=_WRITTEN, description="1: the policy writes the solutions; 2: the judge's model does"
    )
    reward: Reward = Field("HE", description="reward of a step: HE needs the whole solution right, SE does not")
    num_samples: int = Field(1000, ge=1, description="questions to label; with solutions.data_path all by default")
    num_rollouts: int = only_with(5, ge=1, data_paths=_WRITTEN, description="solutions per question")
    splitter: Splitter | None = only_with(
        None,
        data_paths=_WRITTEN,
        description="where steps end; null: at the task's own separator (generated data) or at blank lines (others)",
    )
    labeler: Annotated[str, Named(LABELERS)] = Field(
        "judge",
        description="a judge; completions of every prefix; completions in a binary search for the first error; judge "
        "and completions where they agree on the first error; the truth of generated tasks",
    )
    labeler_params: dict[str, Any] = only_with(
        default_factory=dict, labeler=Unless(*LABELERS.builtins), description=OWN_PARAMS
    )
    mining: MiningSettings | None = only_with(
        MiningSettings(), data_paths=_WRITTEN, description="which questions; null: the first num_samples"
    )
    solutions: SolutionSettings = Field(SolutionSettings(), description="how solutions are written")
    judge: JudgeSettings = only_with(
        AnthropicJudgeSettings(), asks_judge=_JUDGED, description="judge of steps; with method 2 also the solver"
    )
    monte_carlo: MonteCarloSettings = only_with(
        MonteCarloSettings(), labeler=CONTINUED, description="how prefixes are completed"
    )
    formats: tuple[Literal["training", "trl", "prm800k", "math_shepherd"], ...] = Field(
        ("training", "trl"), description="also written, in addition to records.jsonl"
    )
    max_usd: float | None = only_with(
        None,
        gt=0,
        asks_judge=_JUDGED,
        description="stop before the calls of this save_dir cost more; in `guerdon compare` those of all tasks",
    )
    max_failure_rate: float = Field(0.5, ge=0, le=1, description="stop when a larger share of measurements fails")
    seed: Seed = Field(0, description="of everything that is drawn")

    @property
    def asks_judge(self) -> bool:
        """Whether a judge's model gets any request."""
        return self.labeler in JUDGED or self.method == 2

    @property
    def data_paths(self) -> tuple[str, ...]:
        """`solutions.data_path` as a tuple; empty where the solutions get written."""
        return as_tuple(self.solutions.data_path)

    @property
    def dataset(self) -> str:
        """Name of the folder of the data set."""
        return f"prm_dataset_{'given' if self.data_paths else f'method{self.method}'}_{self.reward}"

    @model_validator(mode="after")
    def _fits(self) -> LabelSettings:
        if LABELERS.is_own(self.labeler):
            LABELERS.check(self.labeler, self.labeler_params)
        check_budget(self.max_usd, self.judge)
        if self.labeler != "monte_carlo":
            idle = {"estimate"} & self.monte_carlo.model_fields_set
            refuse(idle, f"labeler {self.labeler}, which is hard", "monte_carlo")
        if self.method == 2:
            refuse({"top_p"} & self.solutions.model_fields_set, "method 2", "solutions")
        return self
