"""The learner from a replay: soft actor-critic (SAC) and deep Q-learning (DQN), with a critic per source of reward.

Every source has an output of its own in each critic, with its discount and its missing measurements; SAC has one more
for the entropy of the policy. What the policy follows is their weighted sum, and where the smallest of several critics
is taken, it is the one whose weighted sum is smallest, with all of its outputs. So no two sources are added before.

    learner = SACLearner(policy, settings, terms, {}, memory=Replay(folder, terms), seed=0)
    metrics = learner.update(rollout, rewards, terms, progress=0.1)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute.devices import seeded
from guerdon.compute.generators import LEARNING, generator
from guerdon.compute.optimizers import FlatAdam, flatten, under
from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.robots.control import ControlPolicy
from guerdon.policies.robots.heads import LOG_STD_MAX, LOG_STD_MIN, QValues, Squashed
from guerdon.policies.robots.robot import ControlInputs
from guerdon.rewards.refit import RefittedReward
from guerdon.rewards.source import SourceTerms
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.critics import Critics, Layers, layers_of
from guerdon.rl.replay import Replay, relabel, remember
from guerdon.rl.sac_step import (
    Cloning,
    PlainNetworks,
    cloning_facts,
    cloning_gradient,
    gradient_step,
)
from guerdon.rl.sampling import DrawnRows, GoalRewards, Transitions, gathered, in_hindsight
from guerdon.settings.off_policy import DQNSettings, ReplayAlgorithmSettings, SACSettings
from guerdon.settings.policy import OwnPolicySettings
from guerdon.types import BoolArray, FloatArray, Metrics, Rewards, Rollout

_OWN_WIDTHS = (256, 256)  # of critics behind networks of a user's own
ENTROPY = "entropy"  # what the last output of a critic of SAC is about
_OUTSIDE = 1e-3  # in the policy's units, by which an action is outside of its space


def smallest(values_M_N_H: Tensor, weights_H: Tensor) -> Tensor:
    """(N, H) all outputs of the critic with the smallest weighted sum, row by row."""
    chosen = _lowest(values_M_N_H, weights_H)
    return values_M_N_H.gather(0, chosen[None, :, None].expand(1, *values_M_N_H.shape[1:]))[0]


def _lowest(values_M_N_H: Tensor, weights_H: Tensor) -> Tensor:
    """(N,) the critic with the smallest weighted sum; `argmin` over a dimension of 2 takes several times as long."""
    return (values_M_N_H @ weights_H).min(0).indices


def sac_targets(
    rewards_N_H: Tensor, goes_on_N_1: Tensor, next_N_H: Tensor, next_log_probs_N: Tensor, gammas_H: Tensor
) -> Tensor:
    """(N, H) what the critics are fitted to; the last output is the entropy of the policy from the next step on.

    Args:
        rewards_N_H: of the sources; of the entropy 0.
        goes_on_N_1: 0 where the action ended the task.
        next_N_H: values of the next observation and an action of the policy there.
        next_log_probs_N: of that action.
        gammas_H: discounts.
    """
    later = next_N_H.clone()
    later[:, -1] -= next_log_probs_N
    return torch.addcmul(rewards_N_H, gammas_H * goes_on_N_1, later)


def dqn_targets(
    rewards_N_H: Tensor,
    goes_on_N_1: Tensor,
    target_N_A_H: Tensor,
    online_N_A_H: Tensor,
    weights_H: Tensor,
    gammas_H: Tensor,
    allowed_N_A: Tensor | None = None,
) -> Tensor:
    """(N, H) what the network is fitted to: it chooses the next action, the target network values it (1509.06461).

    Args:
        rewards_N_H: of the sources.
        goes_on_N_1: 0 where the action ended the task.
        target_N_A_H, online_N_A_H: values of all choices at the next observation, by both networks.
        weights_H: of the sources.
        gammas_H: discounts.
        allowed_N_A: choices that there are at the next observation; None: all, as where there is none (after the last
            step of an episode a mask may be empty).
    """
    totals = online_N_A_H @ weights_H
    if allowed_N_A is not None:
        totals = totals.masked_fill(~allowed_N_A & allowed_N_A.any(1, keepdim=True), -torch.inf)
    best = totals.argmax(1)
    later = target_N_A_H[torch.arange(len(best), device=best.device), best]
    return torch.addcmul(rewards_N_H, gammas_H * goes_on_N_1, later)


def squared_error(values: Tensor, targets_N_H: Tensor, share_N_H: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over outputs (and critics) of half the mean squared error where it is known, and its gradient.

    Args:
        values: (N, H), or (M, N, H).
        targets_N_H: what they are fitted to.
        share_N_H: `shares` of the known targets, times the weight of the output.
    """
    errors = values - targets_N_H
    gradient = errors * share_N_H
    return 0.5 * torch.dot(gradient.reshape(-1), errors.reshape(-1)), gradient


def _of_stops(name: str, success_N: np.ndarray) -> Metrics:
    """How many steps N a model would have ended the episode at, and how many of these before any true success.

    Args:
        name: of the model.
        success_N: 1 after a success, 0 before it, -1 where it is not known.
    """
    silent = len(success_N) and (success_N < 0).all()
    return {
        f"reward_model/{name}/stops": float(len(success_N)),
        f"reward_model/{name}/false_stops": None if silent else float((success_N == 0).sum()),
    }


class ReplayLearner:
    """A policy that learns from all that was ever done. `Learner` of `guerdon.rl.parts`.

    Args:
        policy: what acts.
        settings: the `algorithm` section.
        terms: how each source counts.
        learning: of the sources those whose model learns: their rewards are made current before they are used.
        memory: what happens in the run.
        demonstrations: what is learned from, too; None: nothing.
        goal_rewards: the environment's reward for a goal, with `goal_relabelling`; the source `env` is the first one.
        seed: of the run.

    Attributes:
        version: updates so far, one per rollout.
        source_weights: of the last update.
        steps: gradient steps so far.
    """

    settings: ReplayAlgorithmSettings
    outputs: tuple[str, ...]  # of a critic

    def __init__(
        self,
        policy: ControlPolicy,
        settings: ReplayAlgorithmSettings,
        terms: Mapping[str, SourceTerms],
        learning: Mapping[str, RefittedReward],
        *,
        memory: Replay,
        demonstrations: Replay | None = None,
        goal_rewards: GoalRewards | None = None,
        seed: int,
    ) -> None:
        self.policy, self.settings, self.terms, self.learning = policy, settings, dict(terms), dict(learning)
        self.memory, self.demonstrations, self.goal_rewards = memory, demonstrations, goal_rewards
        self._replays = {"memory": memory} | ({} if demonstrations is None else {"demonstrations": demonstrations})
        # A resumed run computes features again. With other goals they are found by picture, not by row: see `gathered`
        policy.encoder.compute_pictures_alone(keep=settings.goal_relabelling is not None)
        self.rng = generator(seed, LEARNING)
        self.version, self.steps, self._skipped = 0, 0, 0
        self.source_weights: dict[str, float] = {}
        self._values = torch.zeros(0)
        gammas = [self.terms[name].gamma if name in self.terms else settings.gamma for name in self.outputs]
        self._gammas = torch.tensor(gammas, device=policy.device)
        with seeded(seed):
            self.critic = self._critic()
        self.critic.to(policy.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.optimizers = {"critic": FlatAdam(self.critic, settings.learning_rate, eps=1e-8)}
        self._target_flat = flatten(list(self.target.parameters()))
        self._modules = {"critic": self.critic, "target": self.target}  # that are stored, besides the policy

    # What an algorithm brings.

    def _critic(self) -> nn.Module:
        raise NotImplementedError

    def _step(
        self, batch: Transitions, noise: FloatArray, weights_H: Tensor, *, act: bool
    ) -> dict[str, Tensor | float]:
        """A gradient step; `act`: the policy takes one, too."""
        raise NotImplementedError

    def _noise(self, count: int) -> FloatArray:
        """(count, ...) random numbers that gradient steps need."""
        return np.zeros((count, 0), np.float32)

    def _explore(self, progress: float) -> Metrics:
        """Set how much the policy explores in the next rollout, `progress` being the share of the run that is over."""
        return {}

    # An update.

    @property
    def skipped_in_a_row(self) -> int:
        """Gradient steps skipped in a row up to now, because they were not finite."""
        return max(one.skipped.in_a_row for one in self.optimizers.values())

    def update(
        self,
        rollout: Rollout[ControlInputs],
        rewards: Mapping[str, Rewards],
        terms: Mapping[str, SourceTerms],
        *,
        progress: float,
    ) -> Metrics:
        """Remember a rollout, and take `utd_ratio` gradient steps for each of its environment steps.

        Args:
            rollout: with `ends`.
            rewards: source to its rewards.
            terms: source to how it counts.
            progress: share of the run that is over.
        """
        self.source_weights = {name: one.weight(progress) for name, one in terms.items()}
        before = len(self.memory.transitions)
        found = self.remember(self.memory, rollout, rewards)
        self.policy.observe(rollout.inputs, rollout.mask)
        self.version += 1
        count = (len(self.memory.transitions) - before) * self.settings.utd_ratio
        if len(self.memory.transitions) < self.settings.online_step_before_learning:
            count = 0
        self.memory.leave()
        weighted = {f"reward_weight/{name}": weight for name, weight in self.source_weights.items()}
        return self._learn(count) | weighted | found | self._explore(progress)

    def remember(self, replay: Replay, rollout: Rollout[ControlInputs], rewards: Mapping[str, Rewards]) -> Metrics:
        """Append a rollout to a replay, with what is needed to measure its rewards again.

        Returns:
            `intervention_rate`, the share of its steps that somebody else decided, and `interventions`, all of them in
            the replay, where the environment reports them; `interventions_outside`, those of them whose action is not
            within the action space. Of each model that ends episodes `stops` in the rollout and
            `false_stops`, those before any true success; None where it is not known of any.
        """
        assert rollout.actions is not None
        units = self.policy.units
        actions = rollout.actions if units is None else units.within(rollout.actions)
        if isinstance(self.policy.head, Squashed):
            inside = np.clip(actions, -1.0, 1.0)
            actions = inside if rollout.intervened is None else np.where(rollout.intervened[..., None], actions, inside)
        after, first = replay.add(rollout, actions.astype(np.float32), rewards)
        if self.goal_rewards is not None and replay is self.memory:
            self.goal_rewards.check(replay, after[after >= 0])
        if self.policy.encoder.has_backbone and self.goal_rewards is None and len(replay):
            replay.features(self.policy.encoder.numbers)  # before the encoder drops those that acting computed
        for name, source in self.learning.items():
            if name in rewards:
                remember(replay, source, rollout, rewards[name], after, first)
        metrics = {} if rollout.intervened is None else self._of_interventions(replay, rollout, rollout.intervened)
        for name, found in rewards.items():
            if found.ends is not None:
                metrics |= _of_stops(name, replay.rows("success")[after[found.ends & (after >= 0)]])
        return metrics

    def _of_interventions(self, replay: Replay, rollout: Rollout[ControlInputs], intervened_B_T: BoolArray) -> Metrics:
        """How often somebody else decided, and how many of these actions are not within the action space."""
        here = intervened_B_T[rollout.mask]
        metrics: Metrics = {"intervention_rate": float(here.mean()) if len(here) else None}
        metrics["interventions"] = float(len(replay.interventions))
        if isinstance(self.policy.head, Squashed):
            theirs = replay.rows("actions")[replay.interventions]
            metrics["interventions_outside"] = float((np.abs(theirs) > 1.0 + _OUTSIDE).any(axis=1).sum())
        return metrics

    def _learn(self, count: int) -> Metrics:
        """So many gradient steps."""
        self._skipped = 0
        found: list[dict[str, Tensor | float]] = []
        metrics: Metrics = {}
        if count:
            drawn = self._draw(count)
            metrics |= self._relabel(drawn)
            weights = [self.source_weights.get(name, 0.0) for name in self.outputs]
            weights_H = torch.tensor(weights, device=self.policy.device)
            noise = self._noise(count)
            every = self.settings.utd_ratio * getattr(self.settings, "policy_update_freq", 1)
            for n, batch in enumerate(gathered(self.policy, drawn, self.outputs, self.terms, self.goal_rewards)):
                self.steps += 1
                found.append(self._step(batch, noise[n], weights_H, act=self.steps % every == 0))
                self._target_flat.lerp_(self.optimizers["critic"].flat, self.settings.tau)
        for name in dict.fromkeys(name for one in found for name in one):
            values = [float(one[name]) for one in found if name in one]
            metrics[name] = float(np.mean(values))
        if count:
            means = self._values.reshape(-1, len(self.outputs)).mean(0).tolist()  # of the last gradient step
            metrics |= {f"q/{name}": mean for name, mean in zip(self.outputs, means, strict=True)}
            if not getattr(self.settings, "backup_entropy", True):
                del metrics[f"q/{ENTROPY}"]  # of an output that has no loss
        return metrics | {"updates": float(count), "skipped_updates": float(self._skipped)}

    def _take(self, part: str, loss: float) -> None:
        """A step of an optimizer, from the gradients as they are."""
        self._skipped += self.optimizers[part].step(loss, float("inf")) is None

    def _draw(self, count: int) -> list[DrawnRows]:
        """Of each replay (count, n) rows, a batch per gradient step.

        Demonstrations are those of the data set and the interventions in the run, which share their part of a batch by
        their numbers.
        """
        size, strategy, helped = self.settings.batch_size, self.settings.goal_relabelling, self.memory.interventions
        shown = np.zeros(0, np.int64) if self.demonstrations is None else self.demonstrations.transitions
        own = round(size * self.settings.online_ratio) if len(shown) or len(helped) else size
        among = size - own  # of the data set
        if len(helped):
            among = int(self.rng.binomial(among, len(shown) / (len(shown) + len(helped)))) if len(shown) else 0
        parts = [(self.memory, self.memory.transitions, own, False)]
        if self.demonstrations is not None and among:
            parts.append((self.demonstrations, shown, among, True))
        if size > own + among:
            parts.append((self.memory, helped, size - own - among, True))
        drawn = []
        for replay, rows, n, by_others in parts:
            one = DrawnRows(replay, rows[self.rng.integers(len(rows), size=(count, n))], shown=by_others)
            if strategy is not None:
                one = in_hindsight(one, self.rng, share=self.settings.goal_ratio, strategy=strategy)
            drawn.append(one)
        return drawn

    def _relabel(self, drawn: Sequence[DrawnRows]) -> Metrics:
        """Make the rewards of all rows that are used current."""
        metrics: Metrics = {}
        for name, source in self.learning.items():
            for one in () if source.terms.over else drawn:
                rows = one.rows.reshape(-1) if one.goals is None else one.rows[one.goals < 0]
                for key, value in relabel(one.replay, source, rows).items():
                    whole = f"reward_model/{name}/{key}"
                    metrics[whole] = (metrics.get(whole) or 0.0) + (value or 0.0)
        return metrics

    # State.

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values of everything that decides the next update; rows of replays are in files."""
        tensors = {f"policy.{name}": tensor for name, tensor in self.policy.tensors().items()}
        for part, module in self._modules.items():
            tensors |= {f"{part}.{k}": v.detach().cpu().clone() for k, v in module.state_dict().items()}
        for part, one in self.optimizers.items():
            tensors |= {f"{part}_optimizer.{k}": v for k, v in one.tensors().items()}
        values: dict[str, Any] = {
            "sources": list(self.terms), "rng": self.rng.bit_generator.state, "version": self.version,
            "steps": self.steps,
        }  # fmt: skip
        if self.goal_rewards is not None:
            values["reached"] = [self.goal_rewards.reached_over, self.goal_rewards.reached_on]
        for part, replay in self._replays.items():
            more, values[part] = replay.state()
            tensors |= {f"{part}.{name}": tensor for name, tensor in more.items()}
        return tensors, values

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state.

        Raises:
            CheckpointError: it does not fit, or rows of a replay are missing or altered.
        """
        self.policy.load_tensors(under("policy", tensors))
        self._load(tensors)
        self.rng.bit_generator.state = values["rng"]
        self.version, self.steps = int(values["version"]), int(values["steps"])
        if self.goal_rewards is not None:
            self.goal_rewards.reached_over, self.goal_rewards.reached_on = values.get("reached", (0, 0))
        for part, replay in self._replays.items():
            if part not in values:
                raise CheckpointError("the checkpoint is of a run without algorithm.demonstrations")
            replay.restore(under(part, tensors), values[part])

    def saved(self, keep: int) -> None:
        """A checkpoint is whole, of which so many are kept."""
        self.memory.saved(keep)

    def _load(self, tensors: dict[str, Tensor]) -> None:
        """Critics and optimisers."""
        for part, module in self._modules.items():
            stored = under(part, tensors)
            for name, value in module.state_dict().items():
                if name not in stored or stored[name].shape != value.shape:
                    raise CheckpointError(f"the checkpoint's critics do not fit this configuration: {part}.{name}")
                value.copy_(stored[name])
        for part, one in self.optimizers.items():
            one.load_tensors(under(f"{part}_optimizer", tensors))

    def start_from(self, folder: Path) -> str:
        """Second stage: take over the policy of another run, and its critics where the sources of reward are the same.

        Raises:
            CheckpointError: there is no whole checkpoint, or the policy does not fit.
        """
        path = ckpt.find_checkpoint(folder)
        tensors, values = ckpt.load_checkpoint(path)
        self.policy.load_tensors(under("policy", tensors), critic=False)
        if not under("target", tensors) or values["sources"] != list(self.terms):
            return f"stage 2 starts from {path}: policy; the critics start fresh, because they were of other rewards"
        self._load(tensors)
        return f"stage 2 starts from {path}: policy, critics and optimisers; the replay starts empty"


class _Temperature(nn.Module):
    """The weight of the entropy, by its logarithm."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(start)]))


class _Critic(nn.Module):
    """An ensemble of critics behind one network that looks at pictures, or at what a user's own network takes."""

    def __init__(self, trunk: nn.Module | None, heads: Critics) -> None:
        super().__init__()
        self.trunk, self.heads = trunk, heads

    def features(self, x: Any) -> Tensor:
        """(N, F) of prepared observations."""
        found: Tensor = x if self.trunk is None else self.trunk(x)
        return found


class SACLearner(ReplayLearner):
    """Soft actor-critic (1812.05905) with a learned temperature, and an ensemble of critics (RLPD, 2302.02948)."""

    settings: SACSettings
    critic: _Critic
    target: _Critic

    def __init__(self, policy: ControlPolicy, settings: SACSettings, terms: Mapping[str, SourceTerms], *rest: Any,
                 **given: Any) -> None:  # fmt: skip
        assert isinstance(policy.head, Squashed), "a policy is built for its algorithm"
        self.outputs, self.head = (*terms, ENTROPY), policy.head
        super().__init__(policy, settings, terms, *rest, **given)
        self.temperature = _Temperature(settings.temperature_init)  # learned together with the policy
        self._modules["temperature"] = self.temperature.to(policy.device)
        self._actor = nn.ModuleList([policy, self.temperature])
        self.optimizers["policy"] = FlatAdam(self._actor, settings.learning_rate, eps=1e-8)
        self._pi = layers_of(policy.pi) if policy.encoder.acts_in_numpy else None
        self._layers, self._target_layers = self.critic.heads.layers(), self.target.heads.layers()
        self._ones = torch.ones(len(terms), device=policy.device)
        self._networks: PlainNetworks | None = None
        plain = self._pi is not None and self._pi.plain and self._layers.plain and self.critic.trunk is None
        self._computes_plainly = plain and settings.num_subsample_critics is None
        own = settings.target_entropy
        self.target_entropy = float(-self.head.size if own is None else own)
        if self.target_entropy >= (most := self.head.size * math.log(2.0)):
            raise ConfigError.about(
                "algorithm.target_entropy",
                f"{self.target_entropy:g}: actions of {self.head.size} numbers between -1 and "
                f"1 have less than {most:.3g}, so that the temperature would grow without end; minus their number is "
                "usual",
            )

    def start_from(self, folder: Path) -> str:
        """As for the base class; the line says at which temperature it starts, which may be the other run's."""
        found = super().start_from(folder)
        return f"{found}; the temperature starts at {math.exp(self.temperature.log.item()):.3g}"

    def _critic(self) -> _Critic:
        encoder, given = self.policy.encoder, self.policy.settings
        own = isinstance(given, OwnPolicySettings)
        hidden = _OWN_WIDTHS if isinstance(given, OwnPolicySettings) else given.hidden
        plain = not own and not encoder.pictures
        features = encoder.size if plain else hidden[-1]
        heads = Critics(
            features + self.head.size, hidden, outputs=len(self.outputs), members=self.settings.num_critics,
            activation=given.activation, layer_norm=self.settings.layer_norm,
        )  # fmt: skip
        return _Critic(None if plain else encoder.network(features, last_gain=1.0), heads)

    def _noise(self, count: int) -> FloatArray:
        return self.rng.standard_normal((count, 2 * self.settings.batch_size, self.head.size), dtype=np.float32)

    def _step(
        self, batch: Transitions, noise: FloatArray, weights_H: Tensor, *, act: bool
    ) -> dict[str, Tensor | float]:
        if self._computes_plainly:
            return self._plain_step(batch, noise, weights_H, act=act)
        temperature, count = self.temperature.log.detach().exp(), len(batch.actions)
        later = temperature if self.settings.backup_entropy else torch.zeros_like(temperature)
        weights = torch.cat([weights_H[:-1], later])
        outputs, back = self._outputs(batch.x, batch.next_x)
        with torch.no_grad():  # the policy's actions at both observations of every transition
            drawn = torch.from_numpy(noise).to(outputs.device)
            actions, log_probs = self.head.sample(outputs, drawn)
        loss, features = self._fit_critics(batch, actions[count:], log_probs[count:], weights)
        facts: dict[str, Tensor | float] = {"critic_loss": loss}
        if act:
            here = outputs[:count], drawn[:count], actions[:count]
            gradient, values = self._policy_step(features, *here, weights, temperature)
            if (cloning := self._cloning(batch)) is not None:
                facts |= self._clone(cloning, batch, features, outputs, values, weights, gradient)
            back(gradient)
            entropy = -log_probs[:count].mean()
            assert self.temperature.log.grad is not None
            self.temperature.log.grad.copy_(entropy - self.target_entropy)
            self._take("policy", 0.0)
            facts |= {"entropy": entropy, "temperature": temperature}
        return facts

    def _plain_step(
        self, batch: Transitions, noise: FloatArray, weights_H: Tensor, *, act: bool
    ) -> dict[str, Tensor | float]:
        """The same in numpy, as far as it is small."""
        count = len(batch.actions)
        if self._networks is None:
            assert self._pi is not None
            networks = self._pi.fixed(2 * count, count), *(one.fixed(count, count) for one in self._both)
            self._networks = PlainNetworks(*networks)
        weights, temperature = weights_H.numpy().copy(), np.exp(self.temperature.log.detach().numpy()[0])
        weights[-1] = temperature if self.settings.backup_entropy else 0.0
        found = gradient_step(
            self._networks, batch, noise, weights, self._gammas.numpy(), temperature=temperature, act=act,
            update_critics=partial(self._take, "critic"), cloning=self._cloning(batch),
        )  # fmt: skip
        self._values = torch.from_numpy(found.values)
        if found.entropy is None:
            return {"critic_loss": found.loss}
        assert self.temperature.log.grad is not None
        self.temperature.log.grad.fill_(found.entropy - self.target_entropy)
        self._take("policy", 0.0)
        return {
            "critic_loss": found.loss, "entropy": found.entropy, "temperature": float(temperature), **found.cloned,
        }  # fmt: skip

    def _cloning(self, batch: Transitions) -> Cloning | None:
        """The cloning term for this batch; None: there is none."""
        settings = self.settings
        if not settings.bc_weight or batch.own in (None, len(batch.actions)):
            return None
        return Cloning(settings.bc_weight, settings.bc_q_filter)

    @property
    def _both(self) -> tuple[Layers, Layers]:
        """Critics and targets."""
        return self._layers, self._target_layers

    def _outputs(self, x: Any, next_x: Any) -> tuple[Tensor, Callable[[Tensor], object]]:
        """(2 N, O) of the policy's network at both observations, and what takes the gradient of the first N of them."""
        if self._pi is not None:
            pi, (whole, kept) = self._pi, self._pi.forward(torch.cat([x, next_x]))
            first = [one.rows(slice(len(x))) for one in kept]
            return whole[0], lambda gradient: pi.backward(first, gradient[None], parameters=True, inputs=False)
        with torch.no_grad():
            later = self.policy.pi(next_x)
        outputs = self.policy.pi(x)

        def back(gradient: Tensor) -> None:
            self.optimizers["policy"].zero_grad()
            torch.autograd.backward(outputs, gradient)

        return torch.cat([outputs.detach(), later]), back

    def _fit_critics(
        self, batch: Transitions, actions: Tensor, log_probs: Tensor, weights: Tensor
    ) -> tuple[float, Tensor]:
        """A step of the critics: the loss, and (N, F) features of the observations before it.

        Args:
            batch: the transitions.
            actions, log_probs: of the policy at their next observations.
            weights: (H,) of the outputs.
        """
        trunk, members = self.critic.trunk, None
        if self.settings.num_subsample_critics is not None:
            chosen = self.rng.permutation(self.settings.num_critics)[: self.settings.num_subsample_critics]
            members = torch.from_numpy(chosen).to(self.policy.device)
        with torch.no_grad():
            following = torch.cat([self.target.features(batch.next_x), actions], 1)
            later, _ = self._target_layers.forward(following, members)
            targets = sac_targets(batch.rewards, batch.goes_on, smallest(later, weights), log_probs, self._gammas)
            scale = torch.cat([self._ones, weights[-1:] ** 2])  # an error of the entropy counts as it does in the sum
        features = self.critic.features(batch.x)
        values, kept = self._layers.forward(torch.cat([features.detach(), batch.actions], 1))
        loss, gradient = squared_error(values, targets, batch.share * scale)
        if trunk is not None:
            self.optimizers["critic"].zero_grad()
        along = self._layers.backward(kept, gradient, parameters=True, inputs=trunk is not None)
        if along is not None:
            torch.autograd.backward(features, along[:, : features.shape[1]])
        number = float(loss)
        self._take("critic", number)
        self._values = values
        return number, features.detach()

    @torch.no_grad()
    def _policy_step(
        self, features: Tensor, outputs: Tensor, noise: Tensor, actions: Tensor, weights: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(N, 2 A) gradient of the outputs of the policy's network, and (M, N, H) values of its actions.

        That of a squashed normal action is in closed form: with b = mean + deviation * noise and a = tanh(b) the
        log-probability changes by 2 a with b, and by -1 with the logarithm of the deviation.
        """
        values, kept = self._layers.forward(torch.cat([features, actions], 1))
        gradient = policy_gradient(values, weights, mean=self.settings.num_subsample_critics is not None)
        along = self._layers.backward(kept, gradient, parameters=False, inputs=True)
        assert along is not None
        each = temperature / len(noise)
        _, raw = outputs.chunk(2, 1)
        log_std = raw.clamp(LOG_STD_MIN, LOG_STD_MAX)
        slope = along[:, features.shape[1] :]
        of_before = torch.addcmul(2.0 * each * actions, slope, 1.0 - actions * actions)
        of_log_std = torch.where(log_std == raw, of_before * log_std.exp() * noise - each, 0.0)
        return torch.cat([of_before, of_log_std], 1), values

    @torch.no_grad()
    def _clone(
        self,
        cloning: Cloning,
        batch: Transitions,
        features: Tensor,
        outputs: Tensor,
        values_M_N_H: Tensor,
        weights: Tensor,
        gradient: Tensor,
    ) -> dict[str, float]:
        """Add the gradient of the cloning term to that of the outputs of the policy's network; `cloning_facts`.

        Args:
            cloning: the term.
            batch: the transitions.
            features, outputs: of their observations, which come first.
            values_M_N_H: of the policy's actions.
            weights: (H,) of the outputs of a critic.
            gradient: (N, 2 A), which is changed.
        """
        rows, size = slice(batch.own, len(batch.actions)), batch.actions.shape[1]
        followed, shown = self._followed(values_M_N_H, weights), batch.actions[rows]
        greedy, kept = outputs[rows, :size].tanh(), torch.ones_like(followed[rows])
        if cloning.q_filter:
            of_shown, _ = self._layers.forward(torch.cat([features[rows], shown], 1))
            kept = (self._followed(of_shown, weights) > followed[rows]).to(kept.dtype)
        weight = cloning.weight * float(followed.abs().mean())
        gradient[rows, :size] += cloning_gradient(greedy, shown, kept, weight)
        return cloning_facts(greedy, shown, kept, q_filter=cloning.q_filter)

    def _followed(self, values_M_N_H: Tensor, weights_H: Tensor) -> Tensor:
        """(N,) the weighted sums that the policy follows: of the mean of all critics, or of the smallest of them."""
        sums_M_N = values_M_N_H @ weights_H
        return sums_M_N.mean(0) if self.settings.num_subsample_critics is not None else sums_M_N.min(0).values


def policy_gradient(values_M_N_H: Tensor, weights_H: Tensor, *, mean: bool) -> Tensor:
    """(M, N, H) gradient of minus the value that the policy follows, a mean over the rows.

    Args:
        values_M_N_H: of the policy's actions.
        weights_H: of the outputs.
        mean: it follows the mean of all critics; False: the smallest of them.
    """
    members, rows, _ = values_M_N_H.shape
    if mean:
        return (weights_H / -(members * rows)).expand(values_M_N_H.shape).contiguous()
    chosen = _lowest(values_M_N_H, weights_H)
    picked = chosen == torch.arange(members, device=chosen.device)[:, None]
    return picked[..., None] * (weights_H / -rows)


class DQNLearner(ReplayLearner):
    """Deep Q-learning with double targets (1509.06461); the policy's network gives the values of all choices."""

    settings: DQNSettings

    def __init__(self, policy: ControlPolicy, settings: DQNSettings, terms: Mapping[str, SourceTerms], *rest: Any,
                 **given: Any) -> None:  # fmt: skip
        assert isinstance(policy.head, QValues), "a policy is built for its algorithm"
        self.outputs, self.head = tuple(terms), policy.head
        super().__init__(policy, settings, terms, *rest, **given)

    def _critic(self) -> nn.Module:
        return self.policy.pi

    def _explore(self, progress: float) -> Metrics:
        s = self.settings
        share = min(progress / s.exploration_fraction, 1.0)
        self.head.epsilon.fill_(1.0 + share * (s.exploration_final_eps - 1.0))
        self.head.weights.copy_(torch.tensor([self.source_weights.get(name, 0.0) for name in self.outputs]))
        return {"exploration": float(self.head.epsilon)}

    def _step(
        self, batch: Transitions, noise: FloatArray, weights_H: Tensor, *, act: bool
    ) -> dict[str, Tensor | float]:
        with torch.no_grad():
            later = self.head.values(self.target(batch.next_x))
            online = self.head.values(self.policy.pi(batch.next_x))
            targets = dqn_targets(batch.rewards, batch.goes_on, later, online, weights_H, self._gammas, batch.allowed)
        self.optimizers["critic"].zero_grad()
        whole = self.head.values(self.policy.pi(batch.x))
        rows = torch.arange(len(whole), device=whole.device)
        values = whole[rows, batch.actions[:, 0].long()]
        loss, gradient = squared_error(values.detach(), targets, batch.share)
        torch.autograd.backward(values, gradient)
        self._take("critic", float(loss))
        self._values = values.detach()
        return {"critic_loss": loss}
