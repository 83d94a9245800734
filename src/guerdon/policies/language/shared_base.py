"""One copy of a language model's weights that several policies use, each through its own adapter or through none.

With LoRA the base stays frozen: adapter "policy" acts, adapter "prm" rewards, and no adapter is the reference, all
at the memory of one model. Which adapter answers is chosen for a `with` block; where activations are recomputed on
the way back (gradient checkpointing), the adapter of the way there is chosen again, whatever happened in between.

    base = SharedBase(model, tokenizer, settings)
    base.add_adapter("policy", LoraSettings(r=16), seed=0)
    with base.adapter("policy"): hidden = base.hidden(layout)
    with base.adapter(None): reference = base.hidden(layout)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.sharding import Shards
from guerdon.errors import ConfigError, boundary
from guerdon.policies.batches import packing, prompt_sharing
from guerdon.policies.batches.packing import Layout
from guerdon.policies.batches.passes import token_limit
from guerdon.policies.batches.precision import halve_linear, product_of_cast, uses_bf16
from guerdon.policies.batches.ropes import Ropes
from guerdon.policies.batches.tokens import TokenBatch, check_vocabulary
from guerdon.policies.pretrained.adapters import (
    ALL_LINEAR,
    adapter_layers,
    carries,
    fresh_lora,
    import_peft,
    is_kernel,
    linear_targets,
    merged,
    stored_weights,
    untie,
)
from guerdon.policies.pretrained.reading import caps_attention
from guerdon.processes.progress import log_once
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings

# Measured on one core of a CPU with AVX-512 bfloat16, forward and backward. In bfloat16, 9 heads of 64: eager took 0.6
# of sdpa's time at 512 tokens and more than it at 900; where prompts are shared, 0.3 of it at 390. In float32,
# 128 wide: 0.9, 0.95, 1.15, 1.05 and 2.0 at 40, 80, 160, 320 and 640 tokens.
EAGER_UP_TO = {True: 640, False: 96}

T = TypeVar("T")


def _outside(model: Any) -> frozenset[str]:
    """The weights of a model of several inputs that are not of the part that reads and writes text."""
    if not any(hasattr(model.config, key) for key in ("vision_config", "audio_config")):
        return frozenset()
    of_text = {id(p) for part in (packing.body_of(model), model.get_output_embeddings()) if part is not None
               for p in part.parameters()}  # fmt: skip
    return frozenset(name for name, p in model.named_parameters() if id(p) not in of_text)


def _with_parts(config: Any) -> Iterator[Any]:
    """A configuration of transformers and those of its parts."""
    yield config
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            yield from _with_parts(part)


class SharedBase:
    """A causal language model, its tokenizer and the adapters on it.

    Args:
        model: a transformers causal language model in float32.
        tokenizer: its tokenizer.
        settings: how it computes.
        weights: of a model that is on torch's device `meta`, by name, where it is sharded over several processes.

    Attributes:
        device: where the weights are.
        bf16: compute in bfloat16; the weights stay float32, but for frozen ones on a GPU (`freeze`).
        halved: whether linear layers are kept in bfloat16.
        peft: the `PeftModel` around the model once it has an adapter.
        weights: the modules with weights of their own, and the names that these have in a folder without adapters.
        fused: the attention for long sequences: `sdpa`, or `eager` where the model has no other (soft-capped scores).
        width: of the last hidden states.
        ropes: its rotary positions, where they depend on the length of rows.
        outside: names of weights that no text passes through (towers of other inputs): neither trained nor adapted,
            and written as they are.
        steps_checked: whether a step with its cache was seen to give what the whole text gives.
        plain_head: whether logits are the output embedding of the last hidden state, with nothing after it.
        shards: where the weights are spread over several processes (`guerdon.compute.sharding`); None: they are all
            here.

    Raises:
        ConfigError: the tokenizer has ids the model has no embedding for, an option does not fit the model, or its
            logits depend on later tokens, or on more than its last hidden states.
    """

    def __init__(
        self, model: Any, tokenizer: Any, settings: TextPolicySettings, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.peft: Any = None
        self._lock = threading.RLock()  # held while adapter, attention or mode are switched
        self.weights = stored_weights(model)
        self.ropes = Ropes(model)
        self.outside = _outside(model)
        self.steps_checked = False
        self._own: dict[str, list[nn.Parameter]] = {}  # the weights of each adapter
        self._carriers: dict[nn.Module, list[Any]] = {}  # the layers of peft on each module
        self.shards = None
        if distributed.peers() > 1:
            half = uses_bf16(settings.bf16, torch.device(distributed.mesh().device_type))
            self.shards = Shards(model, weights=weights, half=half, offload=settings.cpu_offload)
            distributed.register(self)
        self.device: torch.device = next(model.parameters()).device if self.shards is None else self.shards.device
        self.bf16 = uses_bf16(settings.bf16, self.device)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.halved = False
        self._active: str | None = None
        self._layers: list[Any] = []
        self._attentions: dict[str, list[tuple[Any, Any]]] = {}  # of each, what every configuration of a part says
        self._checkpointed: list[Any] = []  # modules that recompute what is inside them
        self._decoded: Any = None  # what the decoder returns: a class of transformers
        check_vocabulary(tokenizer, self.vocabulary)
        packing.register()
        prompt_sharing.register()
        if settings.use_remove_padding:
            self.check_packs()
        if settings.gradient_checkpointing:
            self._checkpoint_gradients()
        self.model.eval()
        what = f"{type(model).__name__} cannot be read as a causal language model"
        lost = self.shards is not None  # among several processes, a lost one is an error too
        with nullcontext() if lost else boundary(ConfigError, what), self._as_gathered():
            self.fused, self.width, self.plain_head = self.run(self._probed)
        if self.shards is not None:  # here, where all processes are: later some may need it for their part of a batch
            _ = self.packs, self.reads_masks
        if self.fused == "eager":
            log_once(f"{type(model).__name__} has no sdpa attention: attention is computed by plain matrix products")

    def _checkpoint_gradients(self) -> None:
        """Let modules recompute what is inside them on the way back, as it was computed on the way there."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        if not self.model.supports_gradient_checkpointing:
            raise ConfigError(
                f"{type(self.model).__name__} has no gradient_checkpointing; set it to false",
                key="gradient_checkpointing",
            )
        # The newer name first; older versions of transformers have only the other one.
        enable = (
            getattr(self.model, "activation_checkpointing_enable", None) or self.model.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False, "context_fn": self._as_on_the_way_there})
        found = [m for m in self.model.modules() if hasattr(m, "_gradient_checkpointing_func")]
        layers = [m for m in found if isinstance(m, GradientCheckpointingLayer)]
        self._checkpointed = layers or found  # what is around layers only has dropout of its own (layerdrop)
        for module in self._checkpointed:
            inner = module._gradient_checkpointing_func
            module._gradient_checkpointing_func = partial(self._recomputed, module, inner)

    def run(self, call: Callable[[], T]) -> T:
        """What `call` computes with the weights, which must be one call from the first use of them to the last."""
        return call() if self.shards is None else self.shards.run(call)

    def whole(self) -> AbstractContextManager[None]:
        """Inside the block all weights are plain tensors of this process; for reading and for passes without gradients.

        Where they are sharded, every process of the group holds all of them meanwhile.
        """
        return nullcontext() if self.shards is None else self.shards.whole()

    @property
    def decoder(self) -> Any:
        """The part of the model that gives last hidden states."""
        return packing.body_of(self.model)

    @property
    def positions(self) -> int | None:
        """Most tokens that the model has positions for; None: no limit."""
        room = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return None if room is None else int(room)

    def reach(self, longest: int) -> None:
        """Decide which rotary frequencies all rows of a run have; sampling, evaluation and references must agree.

        Args:
            longest: tokens of the longest prompt and response together that there may be.

        Raises:
            ConfigError: as `Ropes.decide`.
        """
        self.ropes.decide(min(longest, self.positions or longest), "this run")

    @property
    def window(self) -> int | None:
        """How many tokens a local layer sees; None: there is no such layer."""
        window = getattr(self.model.config.get_text_config(), "sliding_window", None)
        return None if window is None else int(window)

    @property
    def tokens_per_pass(self) -> int | None:
        """Most tokens in a forward pass, padding included; None: no limit."""
        return token_limit(self.settings.max_tokens_per_pass, self.model, self.device)

    @property
    def rounded(self) -> bool:
        """Whether matrices are bfloat16 where they compute: kept in it, or gathered in it from shards."""
        return self.halved or (self.bf16 and self.shards is not None)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters."""
        return () if self.peft is None else tuple(self.peft.peft_config)

    @cached_property
    def packs(self) -> bool:
        """Whether it can read sequences without padding; tested when first needed."""
        if self.device.type == "meta":
            return True
        with self._lock, self._as_gathered():
            return self.run(lambda: packing.packs(self.model, bf16=self.rounded))

    def freeze(self) -> None:
        """Nobody trains these weights: on a GPU that computes in bfloat16 they are kept in it (`halve_linear`)."""
        under_adapters = self.peft is not None  # frozen when the first was added, and adapters go on being trained
        if self.bf16 and self.device.type == "cuda" and self.shards is None and not under_adapters:
            self.model.requires_grad_(False)
            self.halved = halve_linear(self.model) or self.halved  # it may be frozen already

    def check_packs(self) -> None:
        """Make sure that sequences can be packed.

        Raises:
            ConfigError: the architecture does not take another attention.
        """
        if not self.packs:
            raise ConfigError(
                f"use_remove_padding does not work with {type(self.model).__name__}; set it to false",
                key="use_remove_padding",
            )

    @cached_property
    def reads_masks(self) -> bool:
        """Whether a mask decides which token sees which; tested when first needed."""
        if self.device.type == "meta":
            return True
        with self._lock, self._as_gathered():
            return self.run(lambda: packing.reads_masks(
                self.model, self.decoder, self._in_layers, attention=self.fused, bf16=self.rounded
            ))  # fmt: skip

    def shares_prompts(self, batch: TokenBatch, longest: int) -> bool:
        """Whether reading each prompt of a batch once is possible, wanted, and worth it.

        Args:
            batch: the responses.
            longest: tokens of the longest sequence.
        """
        if not self.settings.share_prompts or (self.window is not None and self.window < longest):
            return False
        return prompt_sharing.worth_sharing(batch, self.device) and self.packs

    def add_adapter(self, name: str, settings: LoraSettings, *, seed: int) -> None:
        """Freeze the weights and put a fresh adapter on them; it changes nothing until it is trained.

        Raises:
            MissingDependencyError: peft is not installed.
            ConfigError: the name is taken, no layer has the names of `target_modules`, or they cannot be merged.
        """
        names, left = self._linear_layers
        is_all = settings.target_modules == ALL_LINEAR
        if is_all and (left or any(map(is_kernel, self.model.modules()))):  # peft's own word knows no kernels
            settings = settings.model_copy(update={"target_modules": names})
        if is_all and left:
            why = "; ".join(f"{reason}: {', '.join(sorted(leaves))}" for reason, leaves in sorted(left.items()))
            log_once(f"{type(self.model).__name__}: lora.target_modules all-linear leaves out layers that are {why}")

        def fresh(model: Any) -> Any:
            with fresh_lora(settings, seed=seed, device=self.device, task_type="CAUSAL_LM") as config:
                if self.peft is None:
                    return import_peft().get_peft_model(model, config, adapter_name=name)
                self.peft.add_adapter(name, config)
            return self.peft

        self.put_adapter(name, fresh)

    @cached_property
    def _linear_layers(self) -> tuple[tuple[str, ...], dict[str, set[str]]]:
        """What `all-linear` names and leaves out; to be read before there is an adapter."""
        paths = {module: path for path, module in self.model.named_modules()}
        inside = paths[self.decoder] if self.outside else ""
        return linear_targets(self.model, inside=inside, called=None if self.device.type == "meta" else self._called())

    @torch.no_grad()
    def _called(self) -> set[str]:
        """The paths of modules that a forward pass of a few tokens calls."""
        found: set[str] = set()
        hooks = [module.register_forward_hook(lambda *_, path=path: found.add(path))
                 for path, module in self.model.named_modules()]  # fmt: skip
        ids = torch.arange(min(4, self.vocabulary), device=self.device)[None]
        try:
            with self._lock, self._as_gathered():
                self.run(lambda: self.model(input_ids=ids, use_cache=False))
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def put_adapter(self, name: str, put: Callable[[Any], Any]) -> None:
        """Freeze the weights and put an adapter on them; every weight of it is trained, stored and merged.

        Args:
            name: of the adapter.
            put: puts it on the model that it gets, and returns the `PeftModel` around it.

        Raises:
            MissingDependencyError: peft is not installed.
            ConfigError: the name is taken, or the adapter has weights that cannot be merged.
        """
        if name in self.adapters:
            raise ConfigError(f"there is an adapter {name!r} already")
        if self.peft is None:
            _ = self._linear_layers
            self.freeze()
        before = {id(p) for p in self.model.parameters()}
        self.peft = put(self.model)
        self._own[name] = [p for p in self.model.parameters() if id(p) not in before]
        self._layers = adapter_layers(self.model)
        self._carriers = {}
        for layer in self._layers:
            self._carriers.setdefault(layer.get_base_layer(), []).append(layer)
        if (head := untie(self.model, self._layers)) is not None:
            if self.shards is not None:
                raise ConfigError(
                    "lora.target_modules names the input or output embedding, which are one matrix: several processes "
                    "cannot train that; leave it out, or train in one process",
                    key="lora.target_modules",
                )
            path = next(path for path, module in self.model.named_modules() if module is head)
            self.weights.setdefault(head, {})["weight"] = f"{path.removesuffix('.base_layer')}.weight"
        self._check_trained()
        self._active = ""  # whatever peft left active, the next switch happens
        self._switch(None)
        self.model.eval()

    def merged(self, owner: nn.Module, adapter: str | None) -> dict[str, Tensor]:
        """The weights of a module with an adapter added in, by their names in the module.

        They are new tensors in float32 where the adapter is on the module, else its own; without an adapter, too.
        """
        own = {leaf: getattr(owner, leaf).detach() for leaf in self.weights.get(owner, ())}
        layers = [layer for layer in self._carriers.get(owner, ()) if adapter and carries(layer, adapter)]
        return own if adapter is None or not layers else own | merged(owner, layers, adapter)

    @distributed.collective
    def stored(self, adapter: str | None) -> dict[str, Tensor]:
        """Copies of all weights in memory of the CPU, by their names in a folder, with an adapter added in.

        Where they are sharded, they are gathered one after the other, and the first process alone gets them.
        """
        found: dict[str, Tensor] = {}
        for owner, names in self.weights.items():
            own = dict(owner._parameters)
            sharded = {leaf: p for leaf, p in own.items() if p is not None and distributed.is_sharded(p)}
            whole = {leaf: nn.Parameter(distributed.whole(p).to(self.device)) for leaf, p in sharded.items()}
            owner._parameters.update(whole)
            try:
                if distributed.is_first():
                    merged = self.merged(owner, adapter)
                    found |= {name: merged[leaf].cpu() for leaf, name in names.items()}
            finally:
                owner._parameters.update(own)
        return found

    def _check_trained(self) -> None:
        """Make sure that every weight with a gradient is of one adapter, on a module whose weights are stored."""
        known = {id(p) for own in self._own.values() for p in own}
        merging = {
            id(p) for layer in self._layers for p in layer.parameters() if layer.get_base_layer() in self.weights
        }
        for name, parameter in self.model.named_parameters():
            if (parameter.requires_grad and id(parameter) not in known) or (
                id(parameter) in known and id(parameter) not in merging
            ):
                raise ConfigError(
                    f"the adapter trains {name}, which guerdon cannot merge: leave it out of the adapter, or merge the "
                    "adapter into its model (peft's merge_and_unload) and name that"
                )

    @contextmanager
    def adapter(self, name: str | None) -> Iterator[None]:
        """Answer through this adapter inside the block; None: through the weights alone. Other threads wait."""
        with self._lock, self._adapter(name):
            yield

    @contextmanager
    def _adapter(self, name: str | None) -> Iterator[None]:
        before = self._active
        self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def adapter_parameters(self, name: str) -> dict[str, nn.Parameter]:
        """The weights of an adapter, by the name of the layer they sit on."""
        own = {id(p) for p in self._own.get(name, ())}
        return {n: p for n, p in self.model.named_parameters() if id(p) in own}

    def hidden(self, layout: Layout, *, dropout: bool = False) -> Tensor:
        """Last hidden states (N, H) of all places of a layout, flattened.

        Args:
            layout: the sequences.
            dropout: where gradients are wanted, draw the dropout of the model and of its adapters.
        """
        if self.ropes.most is not None or self.ropes.long is False:
            self.ropes.check(layout.longest)
        options: dict[str, Any] = {"input_ids": layout.ids, "use_cache": False}
        if layout.packing is not None:
            options |= {"position_ids": layout.positions, "packing": layout.packing}
        elif layout.mask is not None:
            options |= {"position_ids": layout.positions, "attention_mask": self._in_layers(layout)}
        gradients = torch.is_grad_enabled()
        attention = layout.attention or self._padded_attention(layout.ids.shape[1])
        attention = attention if layout.mask is None else self.fused
        half = torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
        with self.attention(attention), half, self.ropes.side():
            self._set_mode(gradients and dropout, checkpointing=gradients)
            out: Tensor = self.decoder(**options).last_hidden_state
        return out.flatten(0, 1)

    def logits(self, hidden_N_H: Tensor) -> Tensor:
        """Logits (N, V) of what `hidden` returned."""
        with self._lock, torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            head = self.model.get_output_embeddings() if self.plain_head else self._behind_decoder
            return head(hidden_N_H)

    def head_cast_once(self) -> Callable[[Tensor], Tensor]:
        """`logits` for the pieces of one pass: their matrix is cast to bfloat16 once, not in each of them."""
        head = self.model.get_output_embeddings() if self.plain_head else None
        if not self.bf16 or self.shards is not None or type(head) is not nn.Linear or head.bias is not None:
            return self.logits
        cast = head.weight.detach().to(torch.bfloat16)
        return lambda hidden_N_H: product_of_cast(hidden_N_H, head.weight, cast)

    def eager_for(self, longest: int) -> bool:
        """Whether attention over so many tokens is computed by plain matrix products."""
        if self.settings.attention != "auto":
            return self.settings.attention == "eager"
        saves = self.bf16
        return self.device.type == "cpu" and longest <= EAGER_UP_TO[saves]

    @contextmanager
    def attention(self, name: str) -> Iterator[None]:
        """Use one of transformers' attention implementations inside the block. Other threads wait."""
        with self._lock, self._attention(name):
            yield

    @contextmanager
    def _attention(self, name: str) -> Iterator[None]:
        before = self.model.config._attn_implementation
        if before == name:
            yield
            return
        self._use_attention(name)
        try:
            yield
        finally:
            self._use_attention(before)

    def _use_attention(self, name: str) -> None:
        """Let all layers use an attention from now on.

        transformers checks and walks through the whole model, which the backward pass of every checkpointed layer would
        wait for twice; so what it writes into the configurations is kept, and written there the next time.
        """
        if name not in self._attentions:
            self.model.set_attn_implementation(name)
            models = (part for part in self.model.modules() if hasattr(part, "set_attn_implementation"))
            found = {id(config): config for model in models for config in _with_parts(model.config)}
            self._attentions[name] = [(one, one._attn_implementation_internal) for one in found.values()]
            return
        for config, value in self._attentions[name]:
            config._attn_implementation_internal = value

    def _padded_attention(self, longest: int) -> str:
        return "eager" if self.eager_for(longest) else self.fused

    def _set_mode(self, training: bool, *, checkpointing: bool) -> None:
        """Training mode for everything (dropout), or only for the modules that check it before they recompute."""
        if self.model.training != training or any(m.training != checkpointing for m in self._checkpointed[-1:]):
            self.model.train(training)
            for module in self._checkpointed:
                module.training = checkpointing

    def _recomputed(
        self, module: nn.Module, recompute: Callable[..., Any], call: Callable[..., Any], *given: Any
    ) -> Any:
        """A call under a module's gradient checkpointing, without dropout in the module's own code where it is off."""
        training = self.model.training

        def computed(*inputs: Any) -> Any:
            module.training = training
            try:
                return call(*inputs)
            finally:
                module.training = True

        return recompute(computed, *given)

    def _switch(self, name: str | None) -> None:
        if name == self._active:
            return
        if name is not None and name not in self.adapters:
            raise ConfigError(f"there is no adapter {name!r}; there are {', '.join(self.adapters) or 'none'}")
        for layer in self._layers:
            if name is not None:
                layer.set_adapter([name])
            layer.enable_adapters(name is not None)
        for own in self._own.values():
            for parameter in own:
                parameter.requires_grad_(True)  # peft freezes those it leaves; here all adapters stay trainable
        self._active = name

    def _as_on_the_way_there(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), self._again(self._active, self.model.config._attn_implementation)

    @contextmanager
    def _again(self, adapter: str | None, attention: str) -> Iterator[None]:
        # without the lock: this runs in a thread of autograd, and the thread that waits for it may hold it
        with self._adapter(adapter), self._attention(attention):
            yield

    def _in_layers(self, layout: Layout) -> Tensor | dict[str, Tensor]:
        """The mask of a layout as the layers take it: cut to the window of local ones, as numbers where they add it."""
        assert layout.mask is not None
        assert layout.positions is not None
        masks, window = {"full_attention": layout.mask}, self.window
        kinds = set(getattr(self.model.config.get_text_config(), "layer_types", None) or ())
        if window is not None:
            near = layout.positions[:, None, :, None] - layout.positions[:, None, None, :] < window
            masks["sliding_attention"] = layout.mask & near
        if self.fused == "eager":
            masks = {name: torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -torch.inf)
                     for name, mask in masks.items()}  # fmt: skip
        if kinds == masks.keys():
            return masks
        return masks["sliding_attention" if window is not None and kinds != {"full_attention"} else "full_attention"]

    def _behind_decoder(self, hidden_N_H: Tensor) -> Tensor:
        """What the model makes of hidden states, in its own words: a forward pass whose decoder gives these.

        So whatever a family does there (soft-capped or scaled logits) is what is computed here.
        """
        decoder = self.decoder
        none = torch.zeros(1, len(hidden_N_H), dtype=torch.int64, device=hidden_N_H.device)
        before = vars(decoder).get("forward")  # of accelerate, where it placed the model
        decoder.forward = lambda *_, **__: self._decoded(last_hidden_state=hidden_N_H[None])
        try:
            return self.model(input_ids=none, use_cache=False).logits[0]  # type: ignore[no-any-return]
        finally:
            del decoder.forward
            if before is not None:
                decoder.forward = before

    def _as_gathered(self) -> AbstractContextManager[object]:
        """Products of `rounded` matrices with float32 states."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.rounded else nullcontext()

    @torch.no_grad()
    def _probed(self) -> tuple[str, int, bool]:
        """`fused`, `width` and `plain_head`, found by forward passes of a few tokens."""
        if self.device.type == "meta":
            return "sdpa", self.model.config.get_text_config().hidden_size, True
        ids = torch.arange(min(4, self.vocabulary), device=self.device)[None]

        allowed = 3e-2 if self.rounded else 1e-4

        def close(a: Tensor, b: Tensor) -> bool:  # two passes may differ in the last bits of the largest terms
            return bool((a - b).abs().max() <= allowed * b.abs().max() + 1e-5)

        fused = "eager" if caps_attention(self.model) else "sdpa"
        try:
            with self.attention(fused):
                logits = self.model(input_ids=ids, use_cache=False).logits[0]
        except (ValueError, ImportError):  # of transformers, where a family has no sdpa or needs what sdpa cannot do
            fused = "eager"
            with self.attention(fused):
                logits = self.model(input_ids=ids, use_cache=False).logits[0]
        with self.attention(fused):
            decoded = self.decoder(input_ids=ids, use_cache=False)
            self._decoded, hidden = type(decoded), decoded.last_hidden_state[0]
            before = self.model(input_ids=ids[:, :-1], use_cache=False).logits[0]
        if not close(before, logits[:-1]):
            raise ConfigError(f"{type(self.model).__name__}: its logits depend on later tokens, so it is not causal")
        if not close(self._behind_decoder(hidden), logits):
            raise ConfigError(
                f"{type(self.model).__name__}: its logits are not a function of its last hidden states alone; guerdon "
                "cannot train it, choose another architecture"
            )
        head = self.model.get_output_embeddings()
        if getattr(head, "in_features", None) != hidden.shape[-1]:
            return fused, hidden.shape[-1], False
        far = hidden * (100 / head(hidden).abs().max().clamp_min(1e-6))  # soft-capping shows at large logits only
        return fused, hidden.shape[-1], close(head(far), self._behind_decoder(far))
