"""The `agent` section of a language study: how a conversation of several calls of the model goes on between the calls.

Tools of guerdon or of the user, any program that speaks to an OpenAI-compatible address, or a world of messages.

    ToolAgentSettings(tools=("calculator", "my_package.tools:search"))
    CommandAgentSettings(command=("python", "my_agent.py"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from guerdon.config.registry import Registry
from guerdon.errors import ConfigError
from guerdon.settings.algorithm import ESTIMATORS
from guerdon.settings.base import PARAMS, ByName, Named, Settings

if TYPE_CHECKING:
    from guerdon.settings.data import DataSettings

TOOLS = Registry(
    "tool",
    "guerdon.tools",
    {"calculator": "guerdon.tasks.tools:calculator", "python": "guerdon.tasks.tools:python"},
)
AGENTS = Registry(
    "agent",
    "guerdon.agents",
    {
        "tools": "guerdon.collect.agents:ToolAgent",
        "command": "guerdon.collect.command_agent:CommandAgent",
        "textworld": "guerdon.worlds.textworld:TextWorld",
        "bfcl": "guerdon.worlds.bfcl:BFCL",
    },
)


class _AgentSettings(Settings):
    """What all agents share."""

    max_turns: int = Field(8, ge=1, le=1000, description="calls of the model in a conversation")
    max_tokens: int | None = Field(
        None, ge=1, description="tokens that the model writes in a conversation; null: what max_turns allows"
    )
    episode_timeout: float = Field(
        600.0, gt=0, description="seconds of a conversation, without those in which the model writes"
    )
    log_tokens: bool = Field(
        False, description="write token ids and log-probabilities of every call to conversations.jsonl"
    )

    judges: ClassVar[bool] = True  # whether the agent itself can say what a conversation earned

    def longest(self, data: DataSettings) -> int:
        """Most tokens that the model writes in a conversation."""
        most = self.max_turns * data.max_response_length
        return most if self.max_tokens is None else min(most, self.max_tokens)


class ToolAgentSettings(_AgentSettings):
    """The model calls functions until it answers without a call."""

    type: Literal["tools"] = Field("tools", description="the model calls functions until it answers without a call")
    tools: tuple[Annotated[str, Named(TOOLS)], ...] = Field(
        description="calculator, python, or functions with types and a docstring: package.module:function"
    )
    max_result_tokens: int = Field(
        1024, ge=1, description="tokens of a result; longer ones are cut, marked and counted"
    )
    call_timeout: float = Field(30.0, gt=0, description="seconds of a call of a tool")
    calls_at_once: int = Field(4, ge=1, le=1024, description="calls of tools at a time, each in a process of its own")

    judges: ClassVar[bool] = False

    @field_validator("tools")
    @classmethod
    def _differ(cls, tools: tuple[str, ...]) -> tuple[str, ...]:
        if not tools:
            raise ValueError("there is no tool: name calculator, python or package.module:function")
        twice = sorted({tool for tool in tools if tools.count(tool) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice; remove one of them")
        return tools


class CommandAgentSettings(_AgentSettings):
    """A program leads the conversation."""

    type: Literal["command"] = Field("command", description="a program that calls the model at OPENAI_BASE_URL")
    command: tuple[str, ...] = Field(
        min_length=1, description="the program and its arguments, started once for each conversation"
    )
    processes_at_once: int = Field(64, ge=1, le=4096, description="conversations, and processes, at a time")


class OwnAgentSettings(_AgentSettings):
    """A world of messages, guerdon's or one that a user brings."""

    type: Annotated[str, Named(AGENTS)] = Field(
        description="a world of messages: textworld, bfcl, or a factory of your own, package.module:factory"
    )
    params: dict[str, Any] = PARAMS

    @model_validator(mode="after")
    def _checked(self) -> OwnAgentSettings:
        AGENTS.check(self.type, self.params)
        return self


AgentSettings = Annotated[ToolAgentSettings | CommandAgentSettings | OwnAgentSettings, ByName("type", "tools")]
"""`agent`: what a conversation is between the calls of the model."""


def check_agent(agent: AgentSettings | None, study: Any) -> None:
    """Refuse what an agent does not go with, and without one an estimator that compares turns.

    Args:
        agent: the `agent` section, or None.
        study: of a language model.

    Raises:
        ConfigError: with the key and the reason.
    """
    algorithm = study.algorithm
    if agent is None:
        if algorithm.adv_estimator == "turn_rloo":
            raise ConfigError.about(
                "algorithm.adv_estimator",
                "turn_rloo compares turns of conversations, and there is no agent: set it to rloo, or add the section "
                "agent",
            )
        return
    own = ESTIMATORS.is_own(algorithm.adv_estimator)
    per_turn = own or algorithm.adv_estimator in ("turn_rloo", "reinforce", "reinforce_pp", "gae")
    for name, source in study.text_sources.items():
        key = "reward_model" if study.reward_model is not None else f"reward.sources.{name}"
        _check_source(key, source, algorithm.adv_estimator, per_turn=per_turn, verified=study.verified)
    if study.generation.engine != "local":
        raise ConfigError.about("generation.engine", "must be local with an agent; other engines are not supported yet")
    if algorithm.kl_coef and algorithm.kl_in == "reward" and not per_turn:
        raise ConfigError.about(
            "algorithm.kl_in",
            f"reward pays every turn, for which {algorithm.adv_estimator} is biased: set it to loss, or adv_estimator "
            "to turn_rloo",
        )
    if not study.verified and not study.text_sources:
        raise ConfigError.about(
            "data.type", "prompts has no answers, and tools measure nothing, so nothing would train the policy"
        )


def _check_source(key: str, source: Any, estimator: str, *, per_turn: bool, verified: bool) -> None:
    """Refuse a source of rewards that cannot score conversations.

    Args:
        key: of the source.
        source: an entry of `reward.sources`.
        estimator: of advantages.
        per_turn: whether it is unbiased where every turn has a reward.
        verified: whether the data has answers.

    Raises:
        ConfigError: with the key and the reason.
    """
    kind = source.model.model_type
    if kind == "prime" and source.model.prime_granularity == "step":
        raise ConfigError.about(
            key, ": prime_granularity step does nothing with an agent, which pays turns: take token"
        )
    if kind == "prime" and source.model.prime_model.replay_size:
        raise ConfigError.about(f"{key}.prime_model.replay_size", "is of single responses; set it to 0 with an agent")
    if kind == "exact" and not verified:
        raise ConfigError.about(key, "asks the verifier, and data.type prompts has no answers: remove it")
    if source.model.compares:
        why = ": it compares responses to one prompt, and each turn has a prompt of its own; take one that judges alone"
        raise ConfigError.about(key, why)
    if source.side == "text" and source.scores_steps:
        why = f"{source.reward_mode} scores steps of one response: set it to per_turn or terminal with an agent"
        raise ConfigError.about(f"{key}.reward_mode", why)
    if source.dense and not per_turn:
        why = f": every turn is paid, for which {estimator} is biased: set algorithm.adv_estimator to turn_rloo"
        raise ConfigError.about(key, why)
