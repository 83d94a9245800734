"""The `algorithm` section of robots that learn from a replay: SAC for continuous actions, DQN for discrete ones.

Keys that LeRobot's SAC has are called as there.

    SACSettings(utd_ratio=20, num_critics=10, num_subsample_critics=2, layer_norm=True)     # RLPD
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.algorithm import ControlAlgorithmSettings, RobotAlgorithmSettings
from guerdon.settings.base import SET, only_with
from guerdon.settings.reward import RewardSettings
from guerdon.settings.reward_source import RobotSource
from guerdon.settings.world import WorldSettings


class ReplayAlgorithmSettings(RobotAlgorithmSettings):
    """What SAC and DQN have in common.

    Attributes:
        learner: `module:class` of the learner, a `ReplayLearner`.
    """

    left_out: ClassVar[frozenset[str]] = frozenset({"buffer_size", "keep_info"})  # so that earlier folders resume
    rollout_steps: int = Field(50, ge=1, le=10**7, description="steps per copy between updates")
    learning_rate: float = Field(3e-4, ge=0, description="of Adam")
    batch_size: int = Field(256, ge=2, description="transitions per gradient step")
    online_step_before_learning: int = Field(
        100, ge=1, description="environment steps in the replay before the first gradient step"
    )
    utd_ratio: int = Field(1, ge=1, description="gradient steps of the critics per environment step")
    tau: float = Field(0.005, gt=0, le=1, description="how far the target networks follow at each gradient step")
    buffer_size: int | None = Field(
        None,
        ge=1,
        description="environment steps that the replay keeps: whole episodes leave, the oldest first, but for those in "
        "which somebody else acted; null: all of the run",
    )
    demonstrations: str | None = Field(None, description="a LeRobot data set that is learned from, too; null: none")
    online_ratio: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="share of every batch that comes from the whole run, where there are demonstrations: those of the "
        "data set, and the steps of the run that somebody else decided (docs/people.md)",
    )
    goal_relabelling: Literal["future", "final"] | None = Field(
        None,
        description="environments with goals: take one that was achieved later in the episode, at any moment or at its "
        "end, for the desired one (HER, 1707.01495); null: not",
    )
    goal_ratio: float = only_with(
        0.8, gt=0, le=1, goal_relabelling=SET, description="share of the transitions with such a goal"
    )

    keep_info: tuple[str, ...] = only_with(
        (),
        goal_relabelling=SET,
        description="keys of the environment's info that its compute_reward reads: numbers of a fixed shape, which are "
        "kept with each step",
    )

    replayed: ClassVar[bool] = True
    learner: ClassVar[str]

    def check_study(self, env: WorldSettings, reward: RewardSettings, *, learners: int) -> None:
        """Refuse what learning from a replay does not go with.

        Raises:
            ValueError: with the key and the reason.
        """
        kind = f"algorithm.type {self.type}"
        if learners > 1:
            raise ConfigError(f"{kind} learns in one process: set cluster.learners to 1", key="cluster.learners")
        sources = reward.of(RobotSource) if reward.use_reward_model else {}
        for name, source in sources.items():
            if source.refitted is not None and source.reward_mode == "episode":
                raise ConfigError(
                    f"{kind} measures single moments again: reward.sources.{name}, which learns, needs another "
                    "reward_mode than episode",
                    key=f"reward.sources.{name}.reward_mode",
                )
            if source.adaptive_weight is not None:
                key = f"reward.sources.{name}.adaptive_weight"
                raise ConfigError(f"{kind} has no advantages, from which {key} learns", key=key)
        if self.goal_relabelling is None:
            return
        if self.keep_info and self.demonstrations is not None:
            raise ConfigError(
                "keep_info is of steps of the run: demonstrations do not record info; remove one of them",
                key="algorithm.keep_info",
            )
        if not reward.env_weight():
            raise ConfigError(
                "goal_relabelling needs the environment's own reward, since models judge the goal that was asked for: "
                "set reward.combine_mode to add",
                key="algorithm.goal_relabelling",
            )
        if getattr(env, "frame_stack", 1) > 1:
            raise ConfigError(
                "goal_relabelling takes goals of one moment: set env.frame_stack to 1", key="algorithm.goal_relabelling"
            )
        if env.native_reward != "dense" or env.end_on_success:
            raise ConfigError(
                "goal_relabelling takes the environment's own reward for another goal, and episodes that go on after "
                "success: set env.native_reward to dense and env.end_on_success to false",
                key="algorithm.goal_relabelling",
            )

    @model_validator(mode="after")
    def _learning_begins(self) -> Self:
        if self.buffer_size is not None and self.buffer_size < self.online_step_before_learning:
            raise ConfigError.about(
                "buffer_size",
                f"{self.buffer_size} is less than online_step_before_learning {self.online_step_before_learning}, so "
                "that nothing would be learned",
            )
        return self

    @model_validator(mode="after")
    def _both_have_a_part(self) -> Self:
        if not 0 < round(self.batch_size * self.online_ratio) < self.batch_size:
            raise ConfigError.about(
                "online_ratio",
                f"{self.online_ratio:g} leaves the run or the demonstrations no part of a batch of {self.batch_size}",
            )
        return self


class SACSettings(ReplayAlgorithmSettings):
    """`algorithm` with `type: sac` (Haarnoja et al. 2018, 1812.05905; RLPD, Ball et al. 2023, 2302.02948)."""

    type: Literal["sac"] = Field("sac", description="robots with continuous actions, off-policy")
    policy_update_freq: int = Field(1, ge=1, description="environment steps per gradient step of the policy")
    num_critics: int = Field(2, ge=1, description="critics in the ensemble")
    num_subsample_critics: int | None = Field(
        None,
        ge=1,
        description="critics, drawn at each gradient step, among which the target takes the smallest, while the policy "
        "follows the mean of all (2101.05982); null: both take the smallest of all",
    )
    layer_norm: bool = Field(False, description="normalise the hidden layers of the critics (RLPD, 2302.02948)")
    temperature_init: float = Field(1.0, gt=0, description="weight of the entropy at the start; it is learned")
    target_entropy: float | None = Field(None, description="of the policy; null: minus the numbers of an action")
    backup_entropy: bool = Field(
        True,
        description="the value of an action counts the entropy of the policy from the next step on; false: rewards "
        "alone, as HIL-SERL has it (2410.21845)",
    )
    bc_weight: float = only_with(
        0.0,
        ge=0,
        demonstrations=SET,
        description="weight of the squared distance of the policy's greedy action to the demonstrated one, over the "
        "part of a batch that was demonstrated, in units of the mean size of the value that the policy follows; 0.4 is "
        "the alpha of 2.5 of TD3+BC (2106.06860)",
    )
    bc_q_filter: bool = only_with(
        False,
        bc_weight=SET,
        description="only where the critics value the demonstrated action above the policy's own (1709.10089)",
    )

    left_out: ClassVar[frozenset[str]] = ReplayAlgorithmSettings.left_out | {
        "backup_entropy", "bc_weight", "bc_q_filter",
    }  # fmt: skip
    learner: ClassVar[str] = "guerdon.rl.off_policy:SACLearner"

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        if self.num_subsample_critics is not None and self.num_subsample_critics > self.num_critics:
            raise ConfigError.about(
                "num_subsample_critics", f"{self.num_subsample_critics} is more than num_critics {self.num_critics}"
            )
        return self


class DQNSettings(ReplayAlgorithmSettings):
    """`algorithm` with `type: dqn` (Mnih et al. 2015; double DQN, van Hasselt et al. 2016, 1509.06461)."""

    type: Literal["dqn"] = Field("dqn", description="robots and games with discrete actions, off-policy")
    learning_rate: float = Field(1e-3, ge=0, description="of Adam; with pictures 1e-4 is usual")
    exploration_fraction: float = Field(
        0.1, gt=0, le=1, description="share of runner.schedule_steps over which that of random actions falls from 1"
    )
    exploration_final_eps: float = Field(0.05, ge=0, le=1, description="share of random actions from then on")

    learner: ClassVar[str] = "guerdon.rl.off_policy:DQNLearner"
    values_sources: ClassVar[bool] = True


RobotAlgorithm = ControlAlgorithmSettings | SACSettings | DQNSettings
