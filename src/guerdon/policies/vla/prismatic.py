"""The network of OpenVLA and OpenVLA-OFT (a Prismatic model): vision towers, a projector and a Llama.

The sequence is: begin of text, patches of each camera, proprioception (one token), instruction, action tokens. OpenVLA
predicts the action tokens one after the other. OpenVLA-OFT puts placeholders without an embedding in their places, and
a stop token after them, lets everything attend to everything, and predicts all of them in one pass. In both, a token is
predicted from the hidden state of the place before it. From the same hidden states, `L1Head` predicts the numbers of
actions themselves.

    network = PrismaticNetwork(ConvTower(64), LlamaConfig(...), vocabulary=768, bins=256, image_size=64)
    hidden_N_K_h = network(pixels_N_3_H_W, inputs, tokens=32)
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from guerdon.policies.vla.policy import BOS, STOP, VLAInputs


class L1Head(nn.Module):
    """The head of OpenVLA-OFT that was trained by L1 regression: hidden states of an action's tokens to its numbers.

    Args:
        width: of a hidden state.
        numbers: of an action.
    """

    def __init__(self, width: int, numbers: int) -> None:
        super().__init__()
        self.numbers = numbers
        self.layer_norm1, self.fc1 = nn.LayerNorm(numbers * width), nn.Linear(numbers * width, width)
        blocks = (nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(2))
        self.mlp_resnet_blocks = nn.ModuleList(nn.ModuleDict({"ffn": block}) for block in blocks)
        self.layer_norm2, self.fc2 = nn.LayerNorm(width), nn.Linear(width, numbers)

    def forward(self, hidden_N_K_h: Tensor) -> Tensor:
        """(N, C, A) actions from the hidden states of their K = C * A tokens."""
        n, tokens, _ = hidden_N_K_h.shape
        x = functional.relu(self.fc1(self.layer_norm1(hidden_N_K_h.reshape(n, tokens // self.numbers, -1))))
        for block in self.mlp_resnet_blocks:
            x = x + block["ffn"](x)  # type: ignore[index]
        found: Tensor = self.fc2(self.layer_norm2(x))
        return found


class PrismaticNetwork(nn.Module):
    """Pictures, an instruction and proprioception to hidden states of action tokens.

    Args:
        tower: (N, 3, H, W) pictures in [0, 1] to (N, P, d) features, with `width` d.
        config: of transformers' Llama.
        vocabulary: its tokens without padding; the last `bins` are those of actions.
        bins: values of a number of an action.
        image_size: height and width of a picture, in pixels.
        proprio_size: measurements; 0: none.
        fused: the projector of two towers (three layers, the first four times as wide), else that of one (two layers).
        numbers: of an action that an `L1Head` predicts; 0: there are action tokens.
        modulated: the mean embedding of the instruction modulates the tower.

    Attributes:
        width: of the hidden states.
        padded: pictures keep their ratio; they are resized to a square here.
    """

    padded = False

    def __init__(
        self, tower: nn.Module, config: Any, *, vocabulary: int, bins: int, image_size: int, proprio_size: int = 0,
        fused: bool = False, numbers: int = 0, modulated: bool = False,
    ) -> None:  # fmt: skip
        from transformers import LlamaModel

        super().__init__()
        self.vocabulary, self.bins, self.image_size, self.proprio_size = vocabulary, bins, image_size, proprio_size
        self.modulated = modulated
        width = self.width = int(config.hidden_size)
        features = int(tower.width)  # type: ignore[arg-type]
        self.vision_backbone = tower
        widths = (features, 4 * features, width, width) if fused else (features, width, width)
        self.projector = nn.ModuleDict({f"fc{i}": nn.Linear(a, b) for i, (a, b) in enumerate(pairwise(widths), 1)})
        self.proprio_projector = None
        if proprio_size:
            self.proprio_projector = nn.ModuleDict(
                {"fc1": nn.Linear(proprio_size, width), "fc2": nn.Linear(width, width)}
            )
        self.language_model = LlamaModel(config)
        if numbers:
            self.action_head: nn.Module = L1Head(width, numbers)
            return
        self.action_head = nn.Linear(width, bins, bias=False)  # rows of the output embedding, the first bin first
        nn.init.normal_(self.action_head.weight, std=0.02)

    def forward(self, pixels: Tensor, inputs: VLAInputs, tokens: int, given_N_K: Tensor | None = None) -> Tensor:
        """(N, K, h) hidden states that K action tokens are predicted from.

        Args:
            pixels: (N * cameras, 3, H, W) in [0, 1].
            inputs: instruction and proprioception.
            tokens: K.
            given_N_K: bins of the tokens, each of which sees those before it; None: all are predicted in one pass.
        """
        prompt, mask = self._prompt(pixels, inputs)
        n, length = mask.shape
        if given_N_K is None:
            stop = self._embedded(torch.full((n, 1), STOP, device=mask.device))
            after = torch.cat([stop.new_zeros(n, tokens, self.width), stop], dim=1)
        else:
            after = self._embedded(self._ids(given_N_K[:, : tokens - 1]))
        mask = torch.cat([mask, mask.new_ones(n, after.shape[1])], dim=1)
        attend = mask[:, None, None].expand(-1, 1, mask.shape[1], -1)
        found = self._language(
            torch.cat([prompt, after], dim=1), attend if given_N_K is None else attend.tril(), mask.cumsum(1) - 1
        )
        return found.last_hidden_state[:, length - 1 : length - 1 + tokens]  # type: ignore[no-any-return]

    def decode(self, pixels: Tensor, inputs: VLAInputs, tokens: int, pick: Callable[[Tensor], Tensor]) -> Tensor:
        """(N, K) bins, one after the other; `pick` takes logits (N, 1, bins) and chooses."""
        from transformers import DynamicCache

        embedded, mask = self._prompt(pixels, inputs)
        cache, chosen = DynamicCache(), []
        positions, attend = mask.cumsum(1) - 1, mask[:, None, None].expand(-1, 1, mask.shape[1], -1).tril()
        for _ in range(tokens):
            found = self._language(embedded, attend, positions, past_key_values=cache, use_cache=True)
            chosen.append(pick(self.logits(found.last_hidden_state[:, -1:])))
            embedded, positions = self._embedded(self._ids(chosen[-1])), positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            attend = mask[:, None, None]
        return torch.cat(chosen, dim=1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., bins) of the action tokens; of an `L1Head`, actions (N, C, A)."""
        found: Tensor = self.action_head(hidden)
        return found

    def _language(self, embedded: Tensor, attend: Tensor, positions: Tensor, **options: Any) -> Any:
        return self.language_model(
            inputs_embeds=embedded, attention_mask=attend, position_ids=positions, **{"use_cache": False, **options}
        )

    def _embedded(self, ids: Tensor) -> Tensor:
        found: Tensor = self.language_model.get_input_embeddings()(ids)
        return found

    def _ids(self, bins: Tensor) -> Tensor:
        return self.vocabulary - 1 - bins

    def _prompt(self, pixels: Tensor, inputs: VLAInputs) -> tuple[Tensor, Tensor]:
        """Embeddings (N, S, h) of all that comes before the actions, and (N, S) where there is something."""
        n = len(inputs)
        begin, words = self._embedded(torch.full((n, 1), BOS, device=pixels.device)), self._embedded(inputs.ids)
        x = self.vision_backbone(pixels, *self._modulation(begin, words, inputs.mask, len(pixels) // n))
        x = x.reshape(n, -1, x.shape[-1])  # the patches of one camera after those of the other
        for i, layer in enumerate(self.projector.values()):
            x = layer(functional.gelu(x) if i else x)
        parts = [begin, x]
        if self.proprio_projector is not None:
            hidden = functional.gelu(self.proprio_projector["fc1"](inputs.proprio))
            parts.append(self.proprio_projector["fc2"](hidden)[:, None])
        before = inputs.mask.new_ones(n, sum(part.shape[1] for part in parts))
        parts.append(words)
        return torch.cat([part.to(x.dtype) for part in parts], dim=1), torch.cat([before, inputs.mask], dim=1)

    def _modulation(self, begin: Tensor, words: Tensor, mask: Tensor, cameras: int) -> tuple[Tensor, ...]:
        """The mean embedding (N * cameras, h) of begin of text, instruction and stop token, where it modulates."""
        if not self.modulated:
            return ()
        stop = self._embedded(torch.full_like(mask[:, :1], STOP, dtype=torch.int64))
        total = (words * mask[..., None]).sum(1) + begin[:, 0] + stop[:, 0]
        return ((total / (mask.sum(1, keepdim=True) + 2)).repeat_interleave(cameras, dim=0),)
