"""A policy of robots: what it observes, what it decides, and what a collector and the learner call.

A policy with actions of its own, such as the tokens of a vision-language-action model, derives from `RobotPolicy` and
brings `act`, `evaluate` and, with a critic, `values`. A decision may hold a chunk of several actions, which are
executed one after another before the next observation is decided on. See docs/extend.md.

    action = policy.actor().act(observations, rng)
    world.step(action.values)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.batches.passes import slices
from guerdon.types import BoolArray, Evaluated, FloatArray, IntArray
from guerdon.worlds.observation import ObservationSpec
from guerdon.worlds.spaces import ObservedColumn


@dataclass(frozen=True, eq=False)
class Action:
    """What a policy decides for B robots.

    Attributes:
        values: (B, A) for the environments; (B, C, A) of a policy that decides on chunks of C actions.
        record: (B, ...) what `evaluate` needs of the decision, such as the tokens that were sampled; None: the values.
    """

    values: FloatArray
    record: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class ControlInputs:
    """N decisions of a policy.

    Attributes:
        observations: (N, ...) as the world shows them: rows of numbers, pictures, or the columns of `ObservationSpec`.
        actions: (N, ...) values or records of `Action`.
    """

    observations: np.ndarray
    actions: np.ndarray

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, rows: IntArray) -> ControlInputs:
        """These decisions, in order."""
        return ControlInputs(self.observations[rows], self.actions[rows])


class RobotPolicy(nn.Module):
    """A policy that acts in copies of a world.

    Parameters whose names begin with `vf.` are the critic's, those with `aux.` the auxiliary heads'. Both stay behind
    when a policy starts from another run's.

    Attributes:
        observation_spec: the columns that it observes; None: what `env.observation` says, as a plain array.
        chunk: C, actions of a decision.
        tokens_per_action: D, parts of an action with a log-probability of their own.
        card: what it was made for, as `save_policy` writes it.
    """

    observation_spec: ObservationSpec | None = None
    chunk: int = 1
    tokens_per_action: int = 1
    card: dict[str, Any]
    sharded = False  # whether the weights are sharded over several processes

    @property
    def in_parts(self) -> bool:
        """Whether a decision has more than one action or more than one log-probability."""
        return self.chunk * self.tokens_per_action > 1

    def act(self, observations: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
        """Decide; everything random is drawn from `rng`.

        Args:
            observations: (B, ...) of all copies; of a policy whose decisions have several parts, of the copies where a
                decision is due.
            rng: of the collector.
            greedy: the most likely action, without drawing.
        """
        raise NotImplementedError

    def evaluate(self, inputs: Any, *, entropy: bool = False) -> Evaluated:
        """Log-probabilities (N, C * D) of decisions, their entropy (N, C * D) or a scalar, and values (N, 1, H).

        All D parts of the first action come first, then those of the second. The caller leaves out actions that were
        not executed, and adds up the rest as `algorithm.logprob_type` says. A value is of the observation that was
        decided on.
        Auxiliary heads give `auxiliary` (N, 1, A), of that observation too.

        Args:
            inputs: what `prepared` made of N decisions, or some of its rows.
            entropy: wanted, too.
        """
        raise NotImplementedError

    def values(self, observations: np.ndarray) -> Tensor:
        """(N, H) of the value heads, in the order of the `heads` that the policy was made with."""
        raise NotImplementedError

    def imitation_loss(self, observations: np.ndarray, actions_N_C_A: FloatArray, mask_N_C: BoolArray) -> Tensor:
        """(N,) loss of decisions that are to be imitated, for behaviour cloning.

        Args:
            observations: (N, ...) that were decided on.
            actions_N_C_A: what was done from there on.
            mask_N_C: False where there is no action, because the episode was over: no part of the loss.

        Raises:
            ConfigError: the policy cannot be cloned.
        """
        raise ConfigError(f"{type(self).__name__} has no imitation_loss, which behaviour cloning needs")

    def acting(self) -> AbstractContextManager[None]:
        """`act` is called inside this block: where weights are sharded, they are gathered for it."""
        return nullcontext()

    def actor(self) -> Any:
        """What acts: the policy itself, or a faster copy that does not follow later updates."""
        return self

    def prepared(self, inputs: ControlInputs) -> Any:
        """What `evaluate` takes, computed once for all passes over a rollout."""
        return inputs

    def passes(self, inputs: Any, rows: IntArray, micro: int | None) -> Sequence[slice | IntArray]:
        """Places in `rows` that share a forward pass: `micro` of them, in order; None: all."""
        return slices(len(rows), micro)

    @torch.no_grad()
    def evaluate_all(self, inputs: Any, *, micro: int) -> Evaluated:
        """`evaluate` without gradients, `micro` rows at a time; the result is on the CPU."""
        rows = np.arange(len(inputs))
        parts = [rows[here] for here in slices(len(rows), distributed.even(len(rows), micro))]
        found: dict[str, Tensor] = {}
        for here, counts in distributed.dealt(parts):
            part = self.evaluate(inputs.take(here))
            for name in ("log_probs", "values"):
                if (values := getattr(part, name)) is not None:
                    every = found.setdefault(name, torch.zeros(len(rows), *values.shape[1:], dtype=values.dtype))
                    every[here] += values.cpu() * counts
        return Evaluated(**{name: distributed.total(every) for name, every in found.items()})

    def observe(self, inputs: ControlInputs, mask_B_T: BoolArray) -> None:
        """Update running statistics of what was observed, after an update; by default there are none."""

    def stored(self) -> dict[str, Tensor]:
        """What `tensors` stores and `load_tensors` expects, as it is in use."""
        return self.state_dict()

    def tensors(self) -> dict[str, Tensor]:
        """Everything to store."""
        return {name: distributed.gathered(value) for name, value in self.stored().items()}

    def load_tensors(self, state: dict[str, Tensor], *, critic: bool = True) -> None:
        """Return to stored tensors.

        Args:
            state: from `tensors`.
            critic: False leaves value heads and auxiliary heads as they are, for a start from another reward's policy.

        Raises:
            CheckpointError: names or shapes do not fit.
        """
        own = {k: v for k, v in self.stored().items() if critic or not k.startswith(("vf.", "aux."))}
        wrong = sorted(k for k, v in own.items() if k not in state or state[k].shape != v.shape)
        if wrong:
            have = {k: tuple(state[k].shape) if k in state else "missing" for k in wrong}
            raise CheckpointError(
                f"the policy checkpoint does not fit this configuration: {have}, expected "
                f"{ {k: tuple(own[k].shape) for k in wrong} }; policy.hidden or policy.params and the environment must "
                "be those it was made with"
            )
        with torch.no_grad():
            for name, value in own.items():
                distributed.put(value, state[name])

    def check_fits(
        self,
        observation_shape: tuple[int, ...],
        action_space: gymnasium.Space,
        columns: Sequence[ObservedColumn] | None = None,
    ) -> None:
        """Refuse a world that shows or takes something else than what this policy was made for.

        Raises:
            CheckpointError: with both.
        """
        card, size = self.card, int(np.prod(action_space.shape or ()))
        made = [ObservedColumn(*one) for one in card["columns"]] if "columns" in card else None
        wanted = _in_words(observation_shape, columns), _actions(size, getattr(action_space, "nvec", None))
        own = _in_words(card["observation_shape"], made), _actions(card["action_size"], card.get("actions"))
        if wanted != own:
            raise CheckpointError(
                f"the policy was made for observations {own[0]} and {own[1]}, this environment has "
                f"{wanted[0]} and {wanted[1]}; env.task, env.observation and env.frame_size must be those it was "
                "made with"
            )


def _in_words(shape: Sequence[int], columns: Sequence[ObservedColumn] | None) -> str:
    """What is observed: a shape, or names of columns with theirs."""
    if columns is None or not any(c.name for c in columns):
        return f"{tuple(shape)}{' (one-hot)' if columns and columns[0].kind == 'one_hot' else ''}"
    return ", ".join(f"{c.name} {tuple(c.shape)}" for c in columns if c.kind != "text")


def _actions(size: int, counts: Sequence[int] | None) -> str:
    """Actions in words."""
    return f"{size} actions" + ("" if counts is None else f" (of {', '.join(map(str, counts))} values)")
