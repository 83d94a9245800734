"""Control policies: networks on what a world shows, a head that makes actions of them, a value head per reward source.

Acting happens thousands of times a second on a handful of rows, so a policy that sees numbers alone acts through plain
numpy copies of its weights; everything that needs gradients goes through torch. Actor and critic share nothing, but
with `policy.shared` all layers except for the last.

    policy = build_policy(settings, observation_shape, action_space, sources=["env"], seed=0)
    actions_B_A = policy.actor().act(observations_B_S, rng).values
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from guerdon.compute.devices import resolve_device, seeded
from guerdon.compute.finite import load_weights, refuse_to_write
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.files.atomic import write_bytes, write_json
from guerdon.policies.robots.encoders import CLIP, Encoder, Prepared, RunningMeanStd, orthogonal, select
from guerdon.policies.robots.heads import (
    ActionUnits,
    Categorical,
    Draw,
    Gaussian,
    Head,
    QValues,
    Squashed,
    action_units,
    check_bounds,
)
from guerdon.policies.robots.robot import Action, ControlInputs, RobotPolicy
from guerdon.settings.policy import POLICIES, ControlPolicySettings, GaussianPolicySettings, OwnPolicySettings
from guerdon.settings.vla_policy import VLAPolicySettings
from guerdon.types import BoolArray, Evaluated, IntArray
from guerdon.worlds.spaces import ObservedColumn, choices, columns_of_shape

_ACTIVATION, _ACTIVATIONS = "activation", ("tanh", "relu")
_UNITS = "units."  # names of tensors that hold those of the actions


class Actor:
    """A frozen copy of a policy on numbers, for acting.

    Args:
        layers: weight (out, in) and bias (out,) of each linear layer.
        activation: between the layers.
        encoder: gives the numbers, and what is allowed.
        draw: makes actions of the outputs.
    """

    def __init__(
        self, layers: list[tuple[np.ndarray, np.ndarray]], activation: str, encoder: Encoder, draw: Draw
    ) -> None:
        self._encoder, self._draw = encoder, draw
        self._layers = [(np.ascontiguousarray(w.T), b) for w, b in layers]
        self._act = np.tanh if activation == "tanh" else _relu
        self._shift, self._factor = encoder.shift.cpu().numpy().copy(), encoder.factor.cpu().numpy().copy()

    def mean(self, observations_B: np.ndarray) -> np.ndarray:
        """(B, O) outputs of the network: of a Gaussian the most likely actions, in the policy's units."""
        x = (self._encoder.numbers(observations_B).astype(np.float32) - self._shift) * self._factor
        x = np.clip(x, -CLIP, CLIP)
        for weight, bias in self._layers[:-1]:
            x = self._act(x @ weight + bias)
        weight, bias = self._layers[-1]
        return np.asarray(x @ weight + bias)

    def act(self, observations_B: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
        """Sampled or most likely actions; the record has what the policy's head needs of them."""
        return self._draw(self.mean(observations_B), rng, greedy, self._encoder.allowed(observations_B))


@dataclass(frozen=True, eq=False)
class StateInputs:
    """N steps of a control policy, ready for its networks.

    Attributes:
        observations: as the networks take them (`ControlPolicy.prepare`); with `policy.shared` see `Encoder.unscaled`.
        actions: (N, A) records of the head.
        allowed: (N, O) bool, values of discrete actions that were allowed; None: all.
    """

    observations: Prepared
    actions: Tensor
    allowed: Tensor | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, rows: IntArray) -> StateInputs:
        """These steps, in order."""
        index = torch.from_numpy(rows).to(self.actions.device)
        allowed = None if self.allowed is None else self.allowed.index_select(0, index)
        return StateInputs(select(self.observations, index), self.actions.index_select(0, index), allowed)


class ControlPolicy(RobotPolicy):
    """Actor and critic.

    Where the bounds of a Box are finite, networks and standard deviations work in units of the bounds: a sample of
    -1 is executed as the lower bound, 1 as the upper one, what lies beyond as the bound. Log-probabilities are those of
    the sample. The units are stored with the weights, and a policy that takes over weights takes over their units.

    Args:
        settings: the `policy` section.
        columns: that the world shows.
        actions: numbers of a Box, or the values of each choice of discrete actions.
        sources: see below.
        auxiliary: see below.
        units: of a Box.
        algorithm: `control`; `sac`: actions are squashed by a tanh; `dqn`: the network gives values of choices.

    Attributes:
        encoder: what the networks take of an observation.
        head: makes actions of their outputs.
        sources: names of the value heads, in order; empty means no critic is built.
        auxiliary: names of the auxiliary heads, which look at the last hidden layer of the actor, in order.
    """

    def __init__(
        self,
        settings: GaussianPolicySettings,
        columns: Sequence[ObservedColumn],
        actions: int | tuple[int, ...],
        sources: Sequence[str],
        auxiliary: Sequence[str] = (),
        units: ActionUnits | None = None,
        algorithm: str = "control",
    ) -> None:
        super().__init__()
        self.settings = settings
        self.sources, self.auxiliary = tuple(sources), tuple(auxiliary)
        self.device = resolve_device(settings.device)
        self.encoder = Encoder(columns, settings, self.device)
        self.head: Head = self._head(actions, units, algorithm)
        self.pi = self.encoder.network(self.head.outputs, last_gain=0.01)
        critic = bool(sources) and algorithm != "dqn"
        self.shared: bool = getattr(settings, "shared", False)
        if self.shared and not critic:
            raise ConfigError.about("policy.shared", "would do nothing: this policy has no critic; remove it")
        self.vf: nn.Module | None = None
        if self.shared:
            self.vf = self._behind_actor(len(sources), "policy.shared")
        elif critic:
            self.vf = self.encoder.network(len(sources), last_gain=1.0)
        self.aux = self._behind_actor(len(auxiliary), "algorithm.auxiliary_losses") if auxiliary else None
        self.to(self.device)

    def _behind_actor(self, outputs: int, key: str) -> nn.Module:
        """A linear layer on what the last layer of the actor looks at; `key` asks for it."""
        last = self.pi[-1] if isinstance(self.pi, nn.Sequential) and len(self.pi) > 1 else None
        if not isinstance(last, nn.Linear):
            raise ConfigError.about(
                key,
                "needs a network whose last layer is linear, behind others, in one "
                f"nn.Sequential; policy.type {self.settings.type} makes another",
            )
        return orthogonal(nn.Linear(last.in_features, outputs), 1.0)

    def _head(self, actions: int | tuple[int, ...], units: ActionUnits | None, algorithm: str) -> Head:
        """What makes actions of the outputs of the network."""
        if self.settings.log_std_init and (algorithm != "control" or not isinstance(actions, int)):
            why = (
                "the environment's actions are discrete" if algorithm == "control" else f"algorithm.type is {algorithm}"
            )
            raise ConfigError.about("policy.log_std_init", f"would do nothing: {why}; remove it")
        if algorithm != "control" and isinstance(actions, int) != (algorithm == "sac"):
            kind, other = ("continuous", "sac") if isinstance(actions, int) else ("discrete", "dqn")
            raise ConfigError.about(
                "algorithm.type",
                f"{algorithm} does not go with this environment, whose actions are {kind}: take {other} or control",
            )
        if algorithm == "sac":
            assert isinstance(actions, int)
            return Squashed(actions, units)
        if isinstance(actions, int):
            self.log_std = nn.Parameter(torch.full((actions,), self.settings.log_std_init))
            return Gaussian(self.log_std, units)
        if algorithm == "dqn":
            weights, epsilon = torch.ones(len(self.sources), device=self.device), torch.ones((), device=self.device)
            self.register_buffer("weights", weights)
            self.register_buffer("epsilon", epsilon)
            return QValues(actions, weights, epsilon)
        return Categorical(actions)

    @property
    def normalizer(self) -> RunningMeanStd | None:
        """Running statistics of numbers that are observed."""
        return self.encoder.normalizer

    @property
    def units(self) -> ActionUnits | None:
        """Of the actions; None: those of the environment, or they are discrete."""
        return self.head.units if isinstance(self.head, Gaussian | Squashed) else None

    @property
    def pixels(self) -> bool:
        """Whether the networks look at pictures."""
        return bool(self.encoder.pictures)

    def prepare(self, observations: np.ndarray) -> Prepared:
        """Observations as the networks take them: see `Encoder.prepare`."""
        return self.encoder.prepare(observations)

    def refresh_normalizer(self) -> None:
        """Make the running statistics the ones in use. Between calls they stay fixed, for acting and learning alike."""
        self.encoder.refresh()

    def action_mean(self, x: Prepared) -> Tensor:
        """(N, O) outputs for prepared observations: means in the policy's units, or logits."""
        mean: Tensor = self.pi(x)
        return mean

    @torch.inference_mode()
    def mean(self, observations: np.ndarray) -> np.ndarray:
        """(B, O) the same for observations of a world."""
        return np.asarray(self.action_mean(self.prepare(observations)).cpu().numpy())

    def act(self, observations: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
        """Sampled or most likely actions; the record has what the head needs of them."""
        return self.head.act(self.mean(observations), rng, greedy, self.encoder.allowed(observations))

    def value(self, x: Prepared) -> Tensor:
        """(N, K) value of each source at prepared observations."""
        if self.vf is None:
            raise ConfigError("this policy was built without a critic")
        if self.shared:
            assert isinstance(self.pi, nn.Sequential)
            x = self.pi[:-1](x)
        value: Tensor = self.vf(x)
        return value

    def values(self, observations: np.ndarray) -> Tensor:
        """(N, K) value of each source."""
        return self.value(self.prepare(observations))

    def prepared(self, inputs: ControlInputs) -> StateInputs:
        """The steps of a rollout with observations as the networks take them."""
        allowed = self.encoder.allowed(inputs.observations)
        return StateInputs(
            self.encoder.unscaled(inputs.observations) if self.shared else self.prepare(inputs.observations),
            torch.from_numpy(inputs.actions).to(self.device),
            None if allowed is None else torch.from_numpy(np.ascontiguousarray(allowed)).to(self.device),
        )

    def observe(self, inputs: ControlInputs, mask_B_T: BoolArray) -> None:
        """Update the running statistics of observations and make them the ones in use."""
        self.encoder.observe(inputs.observations[mask_B_T.reshape(-1)])
        self.refresh_normalizer()

    def evaluate(self, inputs: StateInputs, *, entropy: bool = False) -> Evaluated:
        """Log-probabilities (N, 1), values (N, 1, H), auxiliary (N, 1, A), and the entropy.

        The entropy is a scalar where it is the same at every step, else (N, 1).
        """
        x, auxiliary, values = inputs.observations, None, None
        if self.aux is None and not self.shared:
            mean = self.action_mean(x)
        else:
            assert isinstance(self.pi, nn.Sequential)
            features = self.pi[:-1](self.encoder.scaled(x) if self.shared else x)
            mean = self.pi[-1](features)
            auxiliary = None if self.aux is None else self.aux(features)[:, None]
            values = self.vf(features)[:, None] if self.shared and self.vf is not None else None
        if self.vf is not None and values is None:
            values = self.value(x)[:, None]
        spread = None
        if entropy and isinstance(self.head, Gaussian | Categorical):  # learners of the others do not ask for it
            spread = self.head.entropy(mean, inputs.allowed)
        return Evaluated(
            self.head.log_prob(mean, inputs.actions, inputs.allowed)[:, None],
            spread if spread is None or not spread.ndim else spread[:, None],
            values,
            auxiliary,
        )

    @torch.no_grad()
    def evaluate_all(self, inputs: StateInputs, *, micro: int) -> Evaluated:
        """`evaluate` without gradients; all steps at once but with `policy.shared`: others are small."""
        parts = [inputs]
        if self.shared and len(inputs):
            parts = [inputs.take(rows) for rows in np.array_split(np.arange(len(inputs)), -(-len(inputs) // micro))]
        found = [self.evaluate(one) for one in parts]
        values = [one.values.cpu() for one in found if one.values is not None]
        log_probs = torch.cat([one.log_probs.cpu() for one in found])
        return Evaluated(log_probs, values=torch.cat(values) if values else None)

    def actor(self) -> Actor | ControlPolicy:
        """A copy in numpy to act with, of networks on numbers; pictures and networks of users go through torch."""
        if not self.encoder.acts_in_numpy or isinstance(self.settings, OwnPolicySettings):
            return self
        layers = [
            (m.weight.detach().cpu().numpy().copy(), m.bias.detach().cpu().numpy().copy())
            for m in self.pi.modules()
            if isinstance(m, nn.Linear)
        ]
        return Actor(layers, self.settings.activation, self.encoder, self.head.frozen())

    def tensors(self) -> dict[str, Tensor]:
        """Everything to store: weights, statistics, units, and which activation the weights were made for."""
        state = super().tensors()
        if self.units is not None:
            state |= {f"{_UNITS}{name}": torch.from_numpy(array.copy()) for name, array in self.units._asdict().items()}
        state[_ACTIVATION] = torch.tensor([_ACTIVATIONS.index(self.settings.activation)], dtype=torch.uint8)
        if self.normalizer is not None:
            state |= {f"normalizer.{k}": torch.from_numpy(np.array(v)) for k, v in self.normalizer.state_dict().items()}
        return state

    def load_tensors(self, state: dict[str, Tensor], *, critic: bool = True) -> None:
        """Return to stored tensors.

        Args:
            state: from `tensors`.
            critic: False leaves the value heads as they are, for a start from another reward's policy.

        Raises:
            CheckpointError: names, shapes, activation or normalisation do not fit.
        """
        self._check_kind(state)
        super().load_tensors(state, critic=critic)
        units = {k.removeprefix(_UNITS): v.cpu().numpy() for k, v in state.items() if k.startswith(_UNITS)}
        if isinstance(self.head, Gaussian | Squashed):
            self.head.units = ActionUnits(**units) if units else None
        if self.normalizer is not None:
            prefix = "normalizer."
            self.normalizer.load_state_dict(
                {k.removeprefix(prefix): v.cpu().numpy() for k, v in state.items() if k.startswith(prefix)}
            )
            self.refresh_normalizer()

    def _check_kind(self, state: dict[str, Tensor]) -> None:
        """Check what shapes do not show: weights mean something else under another activation or normalisation."""
        stored = _ACTIVATIONS[int(state[_ACTIVATION])] if _ACTIVATION in state else self.settings.activation
        if stored != self.settings.activation:
            raise CheckpointError(
                f"the policy checkpoint was made with activation {stored}: set policy.activation={stored}"
            )
        normalised = "normalizer.mean" in state
        if normalised != (self.normalizer is not None):
            raise CheckpointError(
                f"the policy checkpoint was made {'with' if normalised else 'without'} normalised observations: "
                f"set policy.normalize_observations={str(normalised).lower()}"
            )


def build_policy(
    settings: ControlPolicySettings,
    observation_shape: tuple[int, ...],
    action_space: gymnasium.Space,
    *,
    sources: Sequence[str],
    seed: int,
    auxiliary: Sequence[str] = (),
    proprioception_size: int = 0,
    columns: Sequence[ObservedColumn] | None = None,
    algorithm: str = "control",
    other_data: bool = False,
) -> RobotPolicy:
    """A fresh policy with weights drawn from the seed; global random state is left alone.

    Args:
        settings: the `policy` section.
        observation_shape: what the world shows, without columns of the policy's own choice.
        action_space: a Box or a MultiDiscrete.
        sources: names of the value heads.
        seed: of the run.
        auxiliary: names of the auxiliary heads.
        proprioception_size: measurements of the robot's own that the world gives; 0: it does not say which they are.
        columns: what the world shows; None: one array.
        algorithm: `type` of the section of that name, which decides on what the outputs of the network mean.
        other_data: see `build_vla`.

    Raises:
        ConfigError: the policy type does not fit the observations, or a user's factory cannot make it.
    """
    columns = columns_of_shape(observation_shape) if columns is None else tuple(columns)
    offered: dict[str, Any] = {
        "action_space": action_space,
        "heads": tuple(sources),
        "auxiliary": tuple(auxiliary),
        "proprioception_size": proprioception_size,
    }
    policy: RobotPolicy
    with seeded(seed):
        if isinstance(settings, VLAPolicySettings):
            policy = _vla_policy(settings, offered | ({"other_data": True} if other_data else {}))
        elif isinstance(settings, OwnPolicySettings) and settings.whole:
            policy = _own_policy(settings, {**offered, "observation_shape": observation_shape})
        else:
            policy = _control_policy(settings, columns, action_space, sources, auxiliary, algorithm)
    policy.card = {
        "settings": settings.model_dump(mode="json", exclude={"device", "cpu_offload"}),  # of this machine
        "observation_shape": list(observation_shape),
        "action_size": _action_size(action_space),
        "sources": list(sources),
    }
    if auxiliary:
        policy.card["auxiliary"] = list(auxiliary)
    if algorithm != "control":
        policy.card["algorithm"] = algorithm
    policy.card["proprioception_size"] = proprioception_size
    if columns != columns_of_shape(observation_shape):
        policy.card["columns"] = [list(column) for column in columns]
    counts = choices(action_space)
    if counts is None:
        policy.card |= {"low": _finite(action_space.low), "high": _finite(action_space.high)}
    else:
        policy.card["actions"] = list(counts)
    return policy


def _vla_policy(settings: VLAPolicySettings, offered: Mapping[str, Any]) -> RobotPolicy:
    """A vision-language-action policy, whose actions are numbers."""
    if choices(offered["action_space"]) is not None:
        raise ConfigError.about(
            "policy.type", "vla gives numbers, and the environment's actions are discrete: take mlp or cnn"
        )
    policy: RobotPolicy = POLICIES.factory(settings.type)(settings, **offered)
    return policy


def _own_policy(settings: OwnPolicySettings, offered: Mapping[str, Any]) -> RobotPolicy:
    """A policy that a user's factory makes from what is offered to it."""
    if offered["auxiliary"] and "auxiliary" not in signature(POLICIES.factory(settings.type)).parameters:
        raise ConfigError.about(
            "algorithm.auxiliary_losses",
            f": the policy {settings.type} has no auxiliary heads; its factory must take `auxiliary` (docs/extend.md)",
        )
    policy: RobotPolicy = POLICIES.build(settings.type, settings.params, RobotPolicy, **offered)
    for name in ("chunk", "tokens_per_action"):
        count = getattr(policy, name)
        if not isinstance(count, int) or count < 1:
            raise ConfigError(
                f"{settings.type}: {name} must be a whole number from 1 on, it is {count!r}", key="policy.type"
            )
    return policy


def _control_policy(
    settings: GaussianPolicySettings,
    columns: tuple[ObservedColumn, ...],
    action_space: gymnasium.Space,
    sources: Sequence[str],
    auxiliary: Sequence[str],
    algorithm: str,
) -> ControlPolicy:
    """A policy with an encoder, a head for the kind of its actions, and value heads."""
    counts = choices(action_space)
    if counts is not None:
        return ControlPolicy(settings, columns, counts, sources, auxiliary, None, algorithm)
    if algorithm == "sac":
        check_bounds(action_space)
    units = action_units(action_space)
    return ControlPolicy(settings, columns, _action_size(action_space), sources, auxiliary, units, algorithm)


def _action_size(action_space: gymnasium.Space) -> int:
    """Numbers of an action."""
    return int(np.prod(action_space.shape or ()))


def _finite(bounds_A: np.ndarray) -> list[float | None]:
    """Bounds of actions for a JSON file; None where there is none."""
    return [float(bound) if np.isfinite(bound) else None for bound in bounds_A]


def start_from_policy(policy: RobotPolicy, folder: Path) -> str:
    """Take over the actor of a stored policy. The critic starts fresh: it was trained on other rewards.

    Returns:
        A line that says what was done.

    Raises:
        CheckpointError: the policy does not fit.
    """
    weights = _files(folder)[1]
    with boundary(CheckpointError, f"the policy in {folder} cannot be read"):
        policy.load_tensors(load_weights(weights, states=True), critic=False)
    if isinstance(policy, ControlPolicy) and isinstance(policy.head, Gaussian):
        settings = policy.settings
        if "log_std_init" in settings.model_fields_set:
            policy.head.log_std.data.fill_(settings.log_std_init)
    return f"policy starts from {folder}"


def save_policy(policy: RobotPolicy, folder: Path) -> None:
    """Write a policy alone (`policy.safetensors`, `policy.json`), for collecting, cloning and warm starts.

    Raises:
        NonFiniteError: a weight is not finite; an existing policy stays.
    """
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    weights = policy.tensors()
    refuse_to_write(weights, folder / "policy.safetensors")
    write_bytes(folder / "policy.safetensors", save(weights))
    write_json(folder / "policy.json", policy.card)


def load_policy(folder: Path) -> RobotPolicy:
    """Read what `save_policy` wrote.

    Raises:
        CheckpointError: files are missing, cannot be read or do not fit.
    """
    import json

    card, weights = _files(folder)
    with boundary(CheckpointError, f"the policy in {folder} cannot be read"):
        spec: dict[str, Any] = json.loads(card.read_text(encoding="utf-8"))
        settings = TypeAdapter(ControlPolicySettings).validate_python(spec["settings"])
        policy = build_policy(
            settings,
            tuple(spec["observation_shape"]),
            _actions_of_card(spec),
            sources=spec["sources"],
            auxiliary=spec.get("auxiliary", ()),
            seed=0,
            proprioception_size=spec.get("proprioception_size", 0),
            columns=[ObservedColumn(name, kind, tuple(shape)) for name, kind, shape in spec["columns"]]
            if "columns" in spec
            else None,
            algorithm=spec.get("algorithm", "control"),
            other_data=True,
        )
        policy.load_tensors(load_weights(weights, states=True))
    return policy


def _files(folder: Path) -> tuple[Path, Path]:
    """Card and weights of a policy."""
    card, weights = folder / "policy.json", folder / "policy.safetensors"
    if not card.is_file() or not weights.is_file():
        inside = folder / "policy"
        hint = f"; do you mean {inside}?" if (inside / "policy.json").is_file() else ""
        raise CheckpointError(f"{folder} is not a policy folder: it lacks policy.json or policy.safetensors{hint}")
    return card, weights


def _actions_of_card(spec: dict[str, Any]) -> gymnasium.Space:
    """The actions that a policy was made for; cards without `actions` mean a Box."""
    if "actions" in spec:
        return gymnasium.spaces.MultiDiscrete(spec["actions"])
    low, high = (
        np.array([x if x is not None else sign * np.inf for x in spec.get(name, [None] * spec["action_size"])])
        for name, sign in (("low", -1), ("high", 1))
    )
    return gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))


def _relu(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x, 0))
