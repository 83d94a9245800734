"""Gaussian policies for control, on state vectors (MLP) or pixels (CNN), with one value head per reward source.

Acting happens thousands of times a second on a handful of rows, so the state policy acts through plain numpy
copies of its weights; everything that needs gradients goes through torch. Actor and critic share nothing.

    policy = build_policy(settings, observation_shape, action_space, sources=["env"], seed=0)
    actions_B_A = policy.actor().act(observations_B_S, rng).values
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from guerdon.atomic import write_bytes, write_json
from guerdon.devices import resolve_device, seeded
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.finite import load_weights, refuse_to_write
from guerdon.policies.robot import Action, ControlInputs, RobotPolicy
from guerdon.settings.policy import (
    POLICIES,
    CNNPolicySettings,
    ControlPolicySettings,
    GaussianPolicySettings,
    OwnPolicySettings,
)
from guerdon.settings.vla_policy import VLAPolicySettings
from guerdon.types import BoolArray, Evaluated, FloatArray, IntArray

_ACTIVATION, _ACTIVATIONS = "activation", ("tanh", "relu")
_UNITS = "units."  # names of tensors that hold those of the actions
_CLIP = 10.0  # normalised observations beyond ten standard deviations are cut off


class RunningMeanStd:
    """Running mean and variance of rows, for observations and returns.

    Chan, Golub & LeVeque (1979), pairwise update of count, mean and sum of squares, in float64.

    Attributes:
        mean: float64 array of the feature shape; zero before the first update.
        var: float64 array of the feature shape; one before the first update.
        count: rows seen.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean = np.zeros(shape, dtype=np.float64)
        self.var = np.ones(shape, dtype=np.float64)
        self.count = 0.0

    def update(self, rows_N: np.ndarray) -> None:
        """Take in N more rows of the feature shape; none at all changes nothing."""
        n = rows_N.shape[0]
        if n == 0:
            return
        rows = rows_N.astype(np.float64)
        mean, var = rows.mean(axis=0), rows.var(axis=0)
        total = self.count + n
        delta = mean - self.mean
        squares = self.var * self.count + var * n + delta**2 * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var = squares / total
        self.count = total

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, at least 1e-4 so that constant features stay harmless."""
        return np.asarray(np.maximum(np.sqrt(self.var), 1e-4))

    def state_dict(self) -> dict[str, Any]:
        """Arrays to store."""
        return {"mean": self.mean, "var": self.var, "count": np.array(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored arrays."""
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.var = np.array(state["var"], dtype=np.float64)
        self.count = float(np.asarray(state["count"]))


class ActionUnits(NamedTuple):
    """The units of actions whose bounds are finite: -1 is the lower bound, 1 the upper one.

    Attributes:
        centre_A: float32, the middle of the bounds; 0 where there are none.
        half_A: float32, half their distance; 1 where there are none, or where they leave no room.
    """

    centre_A: FloatArray
    half_A: FloatArray

    def executed(self, actions_B_A: np.ndarray) -> FloatArray:
        """Actions of the environment, of those in these units."""
        return np.asarray(self.centre_A + self.half_A * actions_B_A)

    def within(self, actions_B_A: np.ndarray) -> FloatArray:
        """In these units, actions of the environment."""
        return np.asarray((actions_B_A - self.centre_A) / self.half_A, dtype=np.float32)


def action_units(space: gymnasium.Space) -> ActionUnits | None:
    """The units of a Box; None where they are those of the environment: bounds of -1 and 1, or none at all.

    A bound at the end of float32 is none.
    """
    low, high = (np.asarray(getattr(space, name), np.float64).reshape(-1) for name in ("low", "high"))
    finite = (np.maximum(abs(low), abs(high)) < np.finfo(np.float32).max) & (low < high)
    low, high = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
    units = ActionUnits(((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32))
    return None if (units.centre_A == 0).all() and (units.half_A == 1).all() else units


class Actor:
    """A frozen copy of a policy, for acting.

    Args:
        layers: weight (out, in) and bias (out,) of each linear layer.
        activation: between the layers.
        log_std_A: logarithm of the standard deviation of each action.
        shift_S, factor_S: observation normalisation: subtract one, multiply by the other.
        units: of the actions; None: those of the environment.
    """

    def __init__(
        self,
        layers: list[tuple[np.ndarray, np.ndarray]],
        activation: str,
        log_std_A: np.ndarray,
        shift_S: np.ndarray,
        factor_S: np.ndarray,
        units: ActionUnits | None = None,
    ) -> None:
        self._units = units
        self._layers = [(np.ascontiguousarray(w.T), b) for w, b in layers]
        self._act = np.tanh if activation == "tanh" else _relu
        self._std = np.exp(log_std_A).astype(np.float32)
        self._shift = shift_S.astype(np.float32)
        self._factor = factor_S.astype(np.float32)

    def mean(self, observations_B_S: np.ndarray) -> np.ndarray:
        """(B, A) most likely actions, in the policy's units."""
        x = (observations_B_S.astype(np.float32) - self._shift) * self._factor
        x = np.clip(x, -_CLIP, _CLIP)
        for weight, bias in self._layers[:-1]:
            x = self._act(x @ weight + bias)
        weight, bias = self._layers[-1]
        return np.asarray(x @ weight + bias)

    def act(self, observations_B_S: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
        """Sampled or most likely actions; the record has them in the policy's units."""
        return _gaussian(self.mean(observations_B_S), self._std, rng, greedy, self._units)


@dataclass(frozen=True, eq=False)
class StateInputs:
    """N steps of a Gaussian policy, ready for its networks.

    Attributes:
        observations: as the networks take them (`GaussianPolicy.prepare`).
        actions: (N, A) in the policy's units.
    """

    observations: Tensor
    actions: Tensor

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, rows: IntArray) -> StateInputs:
        """These steps, in order."""
        index = torch.from_numpy(rows).to(self.actions.device)
        return StateInputs(self.observations.index_select(0, index), self.actions.index_select(0, index))


class GaussianPolicy(RobotPolicy):
    """Actor and critic.

    Where the bounds of an action are finite, networks and standard deviations work in units of the bounds: a sample of
    -1 is executed as the lower bound, 1 as the upper one, what lies beyond as the bound. Log-probabilities are those of
    the sample. The units are stored with the weights, and a policy that takes over weights takes over their units.

    Attributes:
        units: of the actions; None: those of the environment.
        sources: names of the value heads, in order; empty means no critic is built.
        auxiliary: names of the auxiliary heads, which look at the last hidden layer of the actor, in order.
        normalizer: running statistics of state observations, or None.
    """

    def __init__(
        self,
        settings: GaussianPolicySettings,
        observation_shape: tuple[int, ...],
        action_size: int,
        sources: Sequence[str],
        auxiliary: Sequence[str] = (),
        units: ActionUnits | None = None,
    ) -> None:
        super().__init__()
        self.settings, self.units = settings, units
        self.observation_shape = observation_shape
        self.action_size = action_size
        self.sources, self.auxiliary = tuple(sources), tuple(auxiliary)
        self.normalizer: RunningMeanStd | None = None
        pixels = len(observation_shape) == 3
        if not isinstance(settings, CNNPolicySettings) and settings.normalize_observations and not pixels:
            self.normalizer = RunningMeanStd(observation_shape)
        self.device = resolve_device(settings.device)
        self._shift = torch.zeros(observation_shape, device=self.device)
        self._factor = torch.ones(observation_shape, device=self.device)
        self.pi = _body(settings, observation_shape, action_size, last_gain=0.01)
        self.vf = _body(settings, observation_shape, len(sources), last_gain=1.0) if sources else None
        self.log_std = nn.Parameter(torch.full((action_size,), settings.log_std_init))
        self.pixels = pixels
        self.aux: nn.Module | None = None
        if auxiliary:
            last = self.pi[-1] if isinstance(self.pi, nn.Sequential) and len(self.pi) > 1 else None
            if not isinstance(last, nn.Linear):
                raise ConfigError(
                    "algorithm.auxiliary_losses needs a network whose last layer is linear, behind others, in one "
                    f"nn.Sequential; policy.type {settings.type} makes another"
                )
            self.aux = _orthogonal(nn.Linear(last.in_features, len(auxiliary)), 1.0)
        self.to(self.device)

    def prepare(self, observations: np.ndarray) -> Tensor:
        """Observations as the networks take them: normalised states, or (N, C, H, W) in [0, 1]."""
        if self.pixels:
            pixels = torch.from_numpy(np.ascontiguousarray(observations)).to(self.device)
            return pixels.permute(0, 3, 1, 2).float() / 255.0
        x = torch.from_numpy(np.ascontiguousarray(observations, dtype=np.float32)).to(self.device)
        return ((x - self._shift) * self._factor).clamp_(-_CLIP, _CLIP)

    def refresh_normalizer(self) -> None:
        """Make the running statistics the ones in use. Between calls they stay fixed, for acting and learning alike."""
        if self.normalizer is not None:
            factor = (1.0 / self.normalizer.std.astype(np.float32)).astype(np.float32)
            self._shift = torch.from_numpy(self.normalizer.mean.astype(np.float32)).to(self.device)
            self._factor = torch.from_numpy(factor).to(self.device)

    def action_mean(self, x: Tensor) -> Tensor:
        """(N, A) means for prepared observations, in the policy's units."""
        mean: Tensor = self.pi(x)
        return mean

    @torch.inference_mode()
    def mean(self, observations: np.ndarray) -> np.ndarray:
        """(B, A) most likely actions, in the policy's units."""
        return np.asarray(self.action_mean(self.prepare(observations)).cpu().numpy())

    def act(self, observations: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
        """Sampled or most likely actions; the record has them in the policy's units."""
        return _gaussian(self.mean(observations), self.log_std.detach().exp().cpu().numpy(), rng, greedy, self.units)

    def log_prob(self, x: Tensor, actions_N_A: Tensor) -> Tensor:
        """(N,) log-density of actions in the policy's units at prepared observations."""
        return self._log_density(self.action_mean(x), actions_N_A)

    def _log_density(self, mean_N_A: Tensor, actions_N_A: Tensor) -> Tensor:
        z = (actions_N_A - mean_N_A) * (-self.log_std).exp()
        constant = 0.5 * self.action_size * math.log(2 * math.pi)
        return -0.5 * (z * z).sum(-1) - self.log_std.sum() - constant

    def entropy(self) -> Tensor:
        """Entropy of the action distribution; the same at every state."""
        return self.log_std.sum() + 0.5 * self.action_size * (1 + math.log(2 * math.pi))

    def value(self, x: Tensor) -> Tensor:
        """(N, K) value of each source at prepared observations."""
        if self.vf is None:
            raise ConfigError("this policy was built without a critic")
        value: Tensor = self.vf(x)
        return value

    def values(self, observations: np.ndarray) -> Tensor:
        """(N, K) value of each source."""
        return self.value(self.prepare(observations))

    def prepared(self, inputs: ControlInputs) -> StateInputs:
        """The steps of a rollout with observations as the networks take them."""
        return StateInputs(self.prepare(inputs.observations), torch.from_numpy(inputs.actions).to(self.device))

    def observe(self, inputs: ControlInputs, mask_B_T: BoolArray) -> None:
        """Update the running statistics of observations and make them the ones in use."""
        if self.normalizer is not None:
            self.normalizer.update(inputs.observations[mask_B_T.reshape(-1)])
            self.refresh_normalizer()

    def evaluate(self, inputs: StateInputs, *, entropy: bool = False) -> Evaluated:
        """Log-probabilities (N, 1), values (N, 1, H), auxiliary (N, 1, A), and the entropy, the same at every step."""
        x, auxiliary = inputs.observations, None
        if self.aux is None:
            mean = self.action_mean(x)
        else:
            assert isinstance(self.pi, nn.Sequential)
            features = self.pi[:-1](x)
            mean, auxiliary = self.pi[-1](features), self.aux(features)[:, None]
        return Evaluated(
            self._log_density(mean, inputs.actions)[:, None],
            self.entropy() if entropy else None,
            None if self.vf is None else self.value(x)[:, None],
            auxiliary,
        )

    @torch.no_grad()
    def evaluate_all(self, inputs: StateInputs, *, micro: int) -> Evaluated:
        """`evaluate` without gradients, all steps at once: control policies are small."""
        found = self.evaluate(inputs)
        return Evaluated(found.log_probs.cpu(), values=None if found.values is None else found.values.cpu())

    def actor(self) -> Actor | GaussianPolicy:
        """A copy in numpy to act with, of the networks on states; pictures and networks of users go through torch."""
        if self.pixels or isinstance(self.settings, OwnPolicySettings):
            return self
        layers = [
            (m.weight.detach().cpu().numpy().copy(), m.bias.detach().cpu().numpy().copy())
            for m in self.pi.modules()
            if isinstance(m, nn.Linear)
        ]
        return Actor(
            layers,
            self.settings.activation,
            self.log_std.detach().cpu().numpy().copy(),
            self._shift.cpu().numpy().copy(),
            self._factor.cpu().numpy().copy(),
            self.units,
        )

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
        self.units = ActionUnits(**units) if units else None
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
) -> RobotPolicy:
    """A fresh policy with weights drawn from the seed; global random state is left alone.

    Args:
        settings: the `policy` section.
        observation_shape: what the world shows, without columns of the policy's own choice.
        action_space: a Box.
        sources: names of the value heads.
        seed: of the run.
        auxiliary: names of the auxiliary heads.
        proprioception_size: measurements of the robot's own that the world gives; 0: it does not say which they are.

    Raises:
        ConfigError: the policy type does not fit the observations, or a user's factory cannot make it.
    """
    wanted = 3 if isinstance(settings, CNNPolicySettings) else 1
    if len(observation_shape) != wanted and not isinstance(settings, OwnPolicySettings | VLAPolicySettings):
        hint = "set env.observation to pixels"
        if wanted == 1:
            hint = (
                "to see pictures, set policy.type to cnn and env.observation to pixels; to act on states, set "
                "env.observation to state, of an environment whose own observations are vectors "
                "(gymnasium.wrappers.FlattenObservation makes them such)"
            )
        raise ConfigError(
            f"policy.type {settings.type} takes {'pictures' if wanted == 3 else 'vectors'}, and the environment gives "
            f"observations of shape {observation_shape}: {hint}"
        )
    size = int(np.prod(action_space.shape or ()))
    with seeded(seed):
        policy: RobotPolicy
        offered = {"action_space": action_space, "heads": tuple(sources), "auxiliary": tuple(auxiliary)}
        offered["proprioception_size"] = proprioception_size
        if isinstance(settings, VLAPolicySettings):
            policy = POLICIES.factory(settings.type)(settings, **offered)
        elif isinstance(settings, OwnPolicySettings) and settings.whole:
            offered["observation_shape"] = observation_shape
            if auxiliary and "auxiliary" not in signature(POLICIES.factory(settings.type)).parameters:
                raise ConfigError(
                    f"algorithm.auxiliary_losses: the policy {settings.type} has no auxiliary heads; its factory must "
                    "take `auxiliary` (docs/extend.md)"
                )
            policy = POLICIES.build(settings.type, settings.params, RobotPolicy, **offered)
            for name in ("chunk", "tokens_per_action"):
                if not isinstance(count := getattr(policy, name), int) or count < 1:
                    raise ConfigError(f"{settings.type}: {name} must be a whole number from 1 on, it is {count!r}")
        else:
            units = action_units(action_space)
            policy = GaussianPolicy(settings, observation_shape, size, sources, auxiliary, units)
    policy.card = {
        "settings": settings.model_dump(mode="json", exclude={"device"}),  # it may be read on another machine
        "observation_shape": list(observation_shape),
        "action_size": size,
        "sources": list(sources),
        **({"auxiliary": list(auxiliary)} if auxiliary else {}),
        "proprioception_size": proprioception_size,
    }
    bounds = {"low": action_space.low, "high": action_space.high}
    policy.card |= {k: [float(x) if np.isfinite(x) else None for x in v] for k, v in bounds.items()}
    return policy


def start_from_policy(policy: RobotPolicy, folder: Path) -> str:
    """Take over the actor of a stored policy. The critic starts fresh: it was trained on other rewards.

    Returns:
        A line that says what was done.

    Raises:
        CheckpointError: the policy does not fit.
    """
    policy.load_tensors(load_policy(folder).tensors(), critic=False)
    if isinstance(policy, GaussianPolicy) and "log_std_init" in policy.settings.model_fields_set:
        policy.log_std.data.fill_(policy.settings.log_std_init)
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

    card, weights = folder / "policy.json", folder / "policy.safetensors"
    if not card.is_file() or not weights.is_file():
        inside = folder / "policy"
        hint = f"; do you mean {inside}?" if (inside / "policy.json").is_file() else ""
        raise CheckpointError(f"{folder} is not a policy folder: it lacks policy.json or policy.safetensors{hint}")
    with boundary(CheckpointError, f"the policy in {folder} cannot be read"):
        spec: dict[str, Any] = json.loads(card.read_text(encoding="utf-8"))
        settings = TypeAdapter(ControlPolicySettings).validate_python(spec["settings"])
        low, high = (
            np.array([x if x is not None else sign * np.inf for x in spec.get(name, [None] * spec["action_size"])])
            for name, sign in (("low", -1), ("high", 1))
        )
        space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        shape = tuple(spec["observation_shape"])
        policy = build_policy(
            settings,
            shape,
            space,
            sources=spec["sources"],
            auxiliary=spec.get("auxiliary", ()),
            seed=0,
            proprioception_size=spec.get("proprioception_size", 0),
        )
        policy.load_tensors(load_weights(weights))
    return policy


def _gaussian(
    mean_B_A: np.ndarray, std_A: np.ndarray, rng: np.random.Generator, greedy: bool, units: ActionUnits | None
) -> Action:
    sample = mean_B_A
    if not greedy:
        sample = np.asarray(mean_B_A + std_A * rng.standard_normal(mean_B_A.shape, dtype=np.float32))
    return Action(sample) if units is None else Action(units.executed(sample), sample)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x, 0))


def _body(settings: GaussianPolicySettings, shape: tuple[int, ...], out: int, *, last_gain: float) -> nn.Module:
    if isinstance(settings, OwnPolicySettings):
        pixels = (shape[2], *shape[:2]) if len(shape) == 3 else shape
        own: nn.Module = POLICIES.build(
            settings.type, settings.params, nn.Module, observation_shape=pixels, outputs=out
        )
        return own
    act = nn.Tanh if settings.activation == "tanh" else nn.ReLU
    layers: list[nn.Module] = []
    width = shape[0]
    if isinstance(settings, CNNPolicySettings):
        channels, height, width = shape[2], *shape[:2]
        for i, c in enumerate(settings.channels):
            kernel, stride = ((8, 4), (4, 2), (3, 1))[min(i, 2)]
            layers += [_orthogonal(nn.Conv2d(channels, c, kernel, stride), math.sqrt(2)), act()]
            channels, height, width = c, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if min(height, width) < 1:
                raise ConfigError(
                    f"the {len(settings.channels)} convolutions of policy.channels do not fit pictures of "
                    f"{shape[0]}x{shape[1]}: take larger ones (env.frame_size), or fewer convolutions"
                )
        layers.append(nn.Flatten())
        width *= channels * height
    for h in settings.hidden:
        layers += [_orthogonal(nn.Linear(width, h), math.sqrt(2)), act()]
        width = h
    layers.append(_orthogonal(nn.Linear(width, out), last_gain))
    return nn.Sequential(*layers)


def _orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
