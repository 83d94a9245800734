"""What the families of vision-language-action models share: inputs, statistics, value heads, adapters, storage.

A family brings a network and derives from `VLAPolicy`: `token.TokenVLA` (OpenVLA, OpenVLA-OFT),
`regression.RegressionVLA` (OpenVLA-OFT) and `flow.FlowVLA` (SmolVLA, pi0). Observations are pictures, an instruction
and, if wanted, proprioception; a decision is a chunk of actions. Networks work with normalised actions; `action_shift`
and `action_scale` say what those mean in the environment's units.

    policy = build_policy(VLAPolicySettings(tiny=TinyVLASettings()), (39,), space, sources=["env"], seed=0)
    policy.act(observations, rng).values     # (B, C, A)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device
from guerdon.compute.sharding import Shards, blocks_of, recompute
from guerdon.errors import ConfigError, DataError, needs
from guerdon.policies.batches.precision import uses_bf16
from guerdon.policies.pretrained.adapters import fresh_lora, import_peft
from guerdon.policies.robots.robot import ControlInputs, RobotPolicy
from guerdon.policies.vla.vision import cropped
from guerdon.settings.text_policy import LoraSettings
from guerdon.settings.vla_policy import DecodingSettings, VLAPolicySettings
from guerdon.types import Evaluated, FloatArray, IntArray
from guerdon.worlds.eye import resized
from guerdon.worlds.observation import ObservationSpec

T = TypeVar("T")
PAD, BOS, STOP = 0, 1, 2  # ids that a hashed word never has; BOS and STOP are those of Llama 2, too
Normalization = Literal["IDENTITY", "MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10"]
NORMALIZATIONS: dict[Normalization, tuple[str, ...]] = {
    "IDENTITY": (), "MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}  # fmt: skip
"""What data are normalised by, under LeRobot's names, and the statistics that it takes."""
_SMALLEST_SCALE = 1e-3  # of an action or a measurement that hardly changes in the data
_MEASURED: dict[str, Callable[..., Any]] = {
    "mean": partial(np.mean, axis=0), "std": partial(np.std, axis=0),
    "min": partial(np.min, axis=0), "max": partial(np.max, axis=0),
    **{f"q{percent:02}": partial(np.quantile, q=percent / 100, axis=0) for percent in (1, 10, 90, 99)},
}  # fmt: skip
_MICRO = 64  # rows that a model from a checkpoint evaluates together without gradients


def hashed_words(words: int) -> Callable[[str], list[int]]:
    """A tokenizer of instructions for small models: the ids of words are their hashes, so that there is no table.

    Args:
        words: number of ids; different words may share one.
    """

    def encode(task: str) -> list[int]:
        return [3 + zlib.crc32(word.strip(".,").lower().encode()) % (words - 3) for word in task.split()]

    return encode


@dataclass(frozen=True, eq=False)
class VLAInputs:
    """N decisions as a network takes them.

    Attributes:
        pictures: (N, cameras, H, W, 3) uint8.
        ids: (N, L) int64 of the instruction, padded on the left.
        mask: (N, L) bool, False where padded.
        proprio: (N, P) float32, normalised; P is 0 without.
        record: (N, ...) of the decisions, where they were made.
    """

    pictures: Tensor
    ids: Tensor
    mask: Tensor
    proprio: Tensor
    record: Tensor | None = None

    def __len__(self) -> int:
        return len(self.pictures)

    def take(self, rows: IntArray) -> VLAInputs:
        """These decisions, in order."""
        index = torch.from_numpy(np.asarray(rows))
        return self._mapped(lambda column: column[index])

    def to(self, device: torch.device) -> VLAInputs:
        """The same on a device."""
        return self._mapped(lambda column: column.to(device))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> VLAInputs:
        record = None if self.record is None else change(self.record)
        return VLAInputs(change(self.pictures), change(self.ids), change(self.mask), change(self.proprio), record)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What normalised actions and measurements stand for: x = shift + scale * normalised.

    Attributes:
        action: shift and scale, (A,) float32 each.
        proprio: shift and scale, (P,) each; None: as measured.
        modes: how actions and measurements of cloned data are normalised; None: as the family does.
    """

    action: tuple[np.ndarray, np.ndarray]
    proprio: tuple[np.ndarray, np.ndarray] | None = None
    modes: tuple[Normalization, Normalization] | None = None


def affine(
    mode: Normalization, numbers: Mapping[str, np.ndarray], size: int, *, eps: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Shift and scale of `Statistics`, (X,) each, from the statistics of `NORMALIZATIONS`.

    `MEAN_STD` makes the mean 0 and the standard deviation 1, the others make a lower and an upper bound -1 and 1.

    Args:
        mode: the kind of normalization.
        numbers: (X,) by name.
        size: X.
        eps: added to a standard deviation, and in the place of a distance of 0 between bounds.
    """
    if mode == "IDENTITY":
        return np.zeros(size), np.ones(size)
    first, second = (numbers[name] for name in NORMALIZATIONS[mode])
    if mode == "MEAN_STD":
        return first, second + eps
    half = np.where(second == first, eps, second - first) / 2
    return first + half, half


def bounds_as_statistics(space: gymnasium.Space) -> Statistics:
    """Normalised actions are -1 and 1 at the bounds of a `Box`, and themselves where there are none."""
    low, high = (np.asarray(getattr(space, name), dtype=np.float32).ravel() for name in ("low", "high"))
    finite = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
    return Statistics(((low + high) / 2, (high - low) / 2))


class VLAPolicy(RobotPolicy):
    """A vision-language-action model.

    Args:
        settings: the `policy` section.
        network: of the family, with the attributes `width` of hidden states, `image_size`, `proprio_size` and `padded`
            (`ObservationSpec`); every linear layer of it gets an adapter with `use_lora`.
        encode: an instruction to ids of the language model, without the one that begins a text.
        statistics: what normalised actions are.
        heads: names of the value heads.
        auxiliary: names of the auxiliary heads, which look at the hidden state that the critic looks at.

    Attributes:
        chunk: actions per decision, C.
        tokens_per_action: log-probabilities per action, D.
        clip_proprio: normalised measurements are cut off at -1 and 1.
        normalization: of actions and measurements, where the statistics do not say another.
    """

    decoding: DecodingSettings
    action_shift: Tensor
    action_scale: Tensor
    proprio_shift: Tensor
    proprio_scale: Tensor
    chunk: int = 1
    tokens_per_action: int = 1
    clip_proprio = False
    normalization: Normalization
    heads_left_alone: tuple[str, ...] = ()  # linear layers of the network that no adapter is put on

    def __init__(
        self,
        settings: VLAPolicySettings,
        network: nn.Module,
        encode: Callable[[str], list[int]],
        statistics: Statistics,
        heads: Sequence[str],
        auxiliary: Sequence[str] = (),
    ) -> None:
        super().__init__()
        facts: Any = network
        self.settings, self.encode, self.decoding = settings, encode, settings.decoding
        self.chunk = settings.num_action_chunks
        self.image_size = (facts.image_size, facts.image_size)
        self.observation_spec = ObservationSpec(
            frames=self.image_size, cameras=settings.num_images_in_input, proprioception=facts.proprio_size > 0,
            task=True, padded=facts.padded,
        )  # fmt: skip
        self.prompt: Callable[[str, np.ndarray], str] | None = getattr(network, "prompt", None)
        self.modes = statistics.modes or (self.normalization, self.normalization)
        self.shards: Shards | None = getattr(network, "shards", None)
        if settings.gradient_checkpointing:
            recompute(blocks_of(network))
        self.model: nn.Module = self._adapted(network) if settings.use_lora else network
        self.vf: nn.Module | None = value_head(facts.width, settings.value_hidden, len(heads)) if heads else None
        self.aux: nn.Module | None = nn.Linear(facts.width, len(auxiliary)) if auxiliary else None
        none = (np.zeros(facts.proprio_size), np.ones(facts.proprio_size))
        # a measurement that is constant in the data has a scale of 5e-9, which float32 loses beside the shift
        kinds = (("action", statistics.action, np.float32), ("proprio", statistics.proprio or none, np.float64))
        for name, pair, kind in kinds:
            for part, numbers in zip(("shift", "scale"), pair, strict=True):
                self.register_buffer(f"{name}_{part}", torch.from_numpy(np.array(numbers, dtype=kind)))
        distributed.register(self)

    @property
    def sharded(self) -> bool:  # type: ignore[override]
        """Whether the weights are sharded over several processes."""
        return self.shards is not None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.action_shift.device

    @property
    def action_size(self) -> int:
        """Numbers of an action, A."""
        return len(self.action_shift)

    # What the loop calls.

    def prepared(self, inputs: ControlInputs) -> VLAInputs:
        """The decisions of a rollout with instructions as ids; pictures stay bytes."""
        return self.inputs(inputs.observations, inputs.actions)

    def inputs(self, observations: np.ndarray, record: np.ndarray | None = None) -> VLAInputs:
        """Observations (N,) of `observation_spec` as the network takes them.

        Raises:
            DataError: a measurement is not finite.
        """
        assert self.observation_spec is not None
        frames = observations["frames"]
        frames = frames[:, None] if frames.ndim == 4 else frames
        if frames.shape[2:4] != self.image_size:
            padded = self.observation_spec.padded
            small = [resized(x, self.image_size, padded=padded) for x in frames.reshape(-1, *frames.shape[2:])]
            frames = np.stack(small).reshape(*frames.shape[:2], *self.image_size, 3)
        proprio = torch.zeros(len(frames), 0)
        if self.observation_spec.proprioception:
            measured = np.ascontiguousarray(observations["proprioception"], dtype=np.float64)
            if not (known := np.isfinite(measured)).all():
                row, place = np.argwhere(~known)[0]
                raise DataError(
                    f"proprioception {place} of observation {row} is {measured[row, place]}: a policy cannot act on "
                    "it; correct the environment or leave out the data"
                )
            shifted = torch.from_numpy(measured) - self.proprio_shift.cpu()
            proprio = (shifted / self.proprio_scale.cpu()).float()
            proprio = proprio.clamp(-1, 1) if self.clip_proprio else proprio
        tasks, which_N = np.unique(self._read(observations["task"], proprio), return_inverse=True)
        texts = [self.encode(str(task)) for task in tasks]
        longest = max(map(len, texts))
        ids = torch.tensor([[PAD] * (longest - len(text)) + text for text in texts], dtype=torch.int64)
        mask = torch.tensor([[False] * (longest - len(text)) + [True] * len(text) for text in texts], dtype=torch.bool)
        which = torch.from_numpy(which_N.reshape(-1))
        pictures = torch.from_numpy(np.ascontiguousarray(frames))
        decided = None if record is None else torch.from_numpy(np.ascontiguousarray(record))
        return VLAInputs(pictures, ids[which], mask[which], proprio, decided)

    def _read(self, tasks_N: np.ndarray, proprio_N_P: Tensor) -> np.ndarray:
        """(N,) what the language model reads: the instructions, or what `prompt` makes of them and the states."""
        if self.prompt is None:
            return tasks_N
        return np.array([self.prompt(str(task), row) for task, row in zip(tasks_N, proprio_N_P.numpy(), strict=True)])

    def evaluate(self, inputs: VLAInputs, *, entropy: bool = False) -> Evaluated:
        """Log-probabilities of decisions (N, C * D), their entropies, values (N, 1, H), auxiliary predictions."""
        inputs = inputs.to(self.device)

        def found() -> tuple[Tensor | None, ...]:
            *parts, hidden = self.evaluated(inputs, entropy=entropy)
            return *parts, None if self.vf is None else self.estimate(hidden)[:, None], self.predict(hidden)

        return Evaluated(*self.run(found))  # type: ignore[arg-type]

    @distributed.collective
    def values(self, observations: np.ndarray) -> Tensor:
        """(N, H) of the value heads."""
        inputs = self.inputs(observations).to(self.device)
        return self.run(lambda: self.estimate(self.summary(inputs)))

    @distributed.collective
    @torch.no_grad()
    def evaluate_all(self, inputs: VLAInputs, *, micro: int) -> Evaluated:
        """`evaluate` without gradients, a few rows at a time; the result is on the CPU."""
        return super().evaluate_all(inputs, micro=micro if self.settings.tiny is not None else min(micro, _MICRO))

    def acting(self) -> AbstractContextManager[None]:
        """All weights are here inside the block, where they are sharded."""
        return nullcontext() if self.shards is None else self.shards.whole()

    @distributed.collective
    def tensors(self) -> dict[str, Tensor]:
        """Everything to store; shards are put together, tensor by tensor, in the first process."""
        return super().tensors()

    def stored(self) -> dict[str, Tensor]:
        """Weights and statistics; of a checkpoint's model, without frozen weights, which are in `vla_path`."""
        if self.settings.tiny is not None:
            return self.state_dict()
        kept = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        kept |= {name for name, _ in self.named_buffers(recurse=False)}
        return {name: value for name, value in self.state_dict().items() if name in kept}

    # Cloning.

    def fit_statistics(self, actions_N_A: FloatArray, proprio_N_P: FloatArray | None) -> None:
        """Take what normalised actions are from data that are to be cloned."""
        for name, mode, data_N_X in zip(("action", "proprio"), self.modes, (actions_N_A, proprio_N_P), strict=True):
            if data_N_X is None or not data_N_X.shape[1]:
                continue
            numbers = {statistic: _MEASURED[statistic](data_N_X) for statistic in NORMALIZATIONS[mode]}
            shift, scale = affine(mode, numbers, data_N_X.shape[1])
            getattr(self, f"{name}_shift").copy_(torch.from_numpy(np.asarray(shift, dtype=np.float32)))
            wide = np.maximum(np.asarray(scale, dtype=np.float32), _SMALLEST_SCALE)
            getattr(self, f"{name}_scale").copy_(torch.from_numpy(wide))

    # For the families.

    def evaluated(self, inputs: VLAInputs, *, entropy: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Log-probabilities and entropies as `evaluate` returns them, and `summary`, of inputs on the device."""
        raise NotImplementedError

    def summary(self, inputs: VLAInputs) -> Tensor:
        """(N, h) the hidden state that values are estimated from, of inputs on the device."""
        raise NotImplementedError

    def run(self, call: Callable[[], T]) -> T:
        """What `call` computes with the weights, in one call from the first use of them to the last."""
        return call() if self.shards is None else self.shards.run(call)

    def computing(self, *, dropout: bool = False) -> AbstractContextManager[object]:
        """The precision to compute in; `dropout`: of model and adapters, where gradients are wanted (cloning only)."""
        self.model.train(dropout and torch.is_grad_enabled())
        return torch.autocast(self.device.type, torch.bfloat16, enabled=computes_in_bf16(self.settings, self.device))

    def pixels(self, inputs: VLAInputs, *, augment: bool = False) -> Tensor:
        """(N * cameras, 3, H, W) float in [0, 1], cropped as configured; `augment`: each at a random place."""
        crop = "random" if augment else "center"
        return cropped(inputs.pictures.flatten(0, 1), crop if self.settings.crops else None)

    def normalise(self, actions_N_C_A: FloatArray) -> Tensor:
        """Actions in units of the network, on its device."""
        actions = torch.from_numpy(np.asarray(actions_N_C_A, dtype=np.float32)).to(self.device)
        return (actions - self.action_shift) / self.action_scale

    def executed(self, normalised_B_C_A: Tensor) -> np.ndarray:
        """Actions in units of the environment: (B, C, A), or (B, A) where a decision is one action."""
        actions = normalised_B_C_A.float() * self.action_scale + self.action_shift
        found: np.ndarray = actions.cpu().numpy()
        return found[:, 0] if self.chunk == 1 else found

    def estimate(self, hidden_N_h: Tensor) -> Tensor:
        """(N, H) values of hidden states."""
        if self.vf is None:
            raise ConfigError("this policy was built without a critic")
        hidden = hidden_N_h.detach() if self.settings.detach_critic_input else hidden_N_h
        values: Tensor = self.vf(hidden.float())
        return values

    def predict(self, hidden_N_h: Tensor) -> Tensor | None:
        """(N, 1, A) of the auxiliary heads; None without any."""
        return None if self.aux is None else self.aux(hidden_N_h.float())[:, None]

    def _adapted(self, network: nn.Module) -> nn.Module:
        """The network with its weights frozen and an adapter on every linear layer but those left alone."""
        settings = self.settings
        names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
        drawn: tuple[str, ...] = getattr(network, "drawn", ())  # projections without a training, see `drawn_anew`
        targets = tuple(name for name in names if name not in (*self.heads_left_alone, *drawn))
        lora = LoraSettings(
            r=settings.lora_rank, alpha=float(min(settings.lora_rank, 16)), dropout=settings.lora_dropout,
            target_modules=targets,
        )  # fmt: skip
        with fresh_lora(lora, seed=torch.initial_seed() % 2**63) as config:
            adapted: nn.Module = import_peft().inject_adapter_in_model(config, network)
        for name in drawn:
            adapted.get_submodule(name).requires_grad_(requires_grad=True)
        for parameter in adapted.parameters():  # peft makes them as the weights are that they sit on
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        return adapted


def computes_in_bf16(settings: VLAPolicySettings, device: torch.device) -> bool:
    """Whether a policy computes in bfloat16 on a device: as configured, or on a GPU that has it."""
    if settings.bf16 == "auto":
        return device.type == "cuda" and uses_bf16("auto", device)
    return settings.bf16


def sharding(settings: VLAPolicySettings) -> dict[str, Any]:
    """Options of `Shards` that the `policy` section says."""
    return {"half": computes_in_bf16(settings, resolve_device(settings.device)), "offload": settings.cpu_offload}


def quantize(network: nn.Module, left_alone: Sequence[str], compute: torch.dtype) -> None:
    """Put linear layers of 4 bits (nf4; QLoRA, Dettmers et al. 2023, 2305.14314) in the place of a network's.

    Their weights become 4 bits when the network is moved to its device.

    Args:
        network: changed in place.
        left_alone: names of linear layers that stay.
        compute: what the products are computed in.

    Raises:
        MissingDependencyError: bitsandbytes is not installed.
    """
    with needs("policy.use_quantization needs bitsandbytes: pip install bitsandbytes"):
        from bitsandbytes.nn import Linear4bit, Params4bit
    for name, old in list(network.named_modules()):
        if isinstance(old, nn.Linear) and name not in left_alone:
            new = Linear4bit(1, 1, bias=False, compute_dtype=compute, quant_type="nf4")
            new.in_features, new.out_features, new.bias = old.in_features, old.out_features, old.bias
            new.weight = Params4bit(old.weight.data, requires_grad=False, quant_type="nf4", module=new)
            network.set_submodule(name, new)
    network.is_loaded_in_4bit = True  # type: ignore[assignment]  # peft reads it


def value_head(width: int, hidden: Sequence[int], heads: int) -> nn.Module:
    """Hidden states (N, width) to values (N, heads), which are 0 at the start."""
    layers: list[nn.Module] = []
    for wide in hidden:
        layers += [nn.Linear(width, wide), nn.GELU()]
        width = wide
    last = nn.Linear(width, heads)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)
