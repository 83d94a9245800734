"""Rotary positions that depend on a whole forward pass: `longrope` and `dynamic`.

transformers takes the frequencies of `longrope` (LongRoPE, Ding et al. 2024, 2402.13753; Phi-3.5, Phi-4-mini) by the
longest row of a pass: those for long texts as soon as one row is longer than `original_max_position_embeddings`. So a
row would have other values beside a long one than alone. Here a run has one side, and rows of files have the side of
their own length and share passes with rows of the same side only.

`dynamic` changes its frequencies with every token beyond `max_position_embeddings`: such rows are refused.

    ropes = Ropes(model)
    ropes.decide(4096, "this run")              # of a run: long, where a row may be longer than the switch
    with ropes.side():
        hidden = model.model(ids).last_hidden_state
    short, long = ropes.apart([900, 5000])      # of files: rows by their length
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.errors import ConfigError, DataError
from guerdon.processes.progress import log_once
from guerdon.types import IntArray


class Ropes:
    """The rotary positions of a network of transformers.

    Args:
        model: of transformers; its modules of `longrope` get hooks.

    Attributes:
        switch: tokens up to which a row has the short frequencies; None: it has one kind only.
        most: tokens of a row, beyond which `dynamic` frequencies would change; None: they do not.
        long: the side of a run; None: each row has that of its length.
    """

    def __init__(self, model: Any) -> None:
        self._name, self._forced = type(model).__name__, False
        kinds = _parts(model.config)
        self.switch = switch_of(model.config)
        dynamic = any("dynamic" in _kind(part) for part in kinds)
        self.most: int | None = model.config.get_text_config().max_position_embeddings if dynamic else None
        self.long: bool | None = None
        for module in model.modules() if self.switch is not None else ():
            if "longrope" in str(getattr(module, "rope_type", "")):
                module.register_forward_pre_hook(self._lengthen, with_kwargs=True)
                module.register_forward_hook(self._cut)

    def decide(self, longest: int, where: str) -> None:
        """Take one side for all passes from here on.

        Args:
            longest: tokens of the longest row that there may be.
            where: names what the rows are of, such as "this run", in the line that says which side it is.

        Raises:
            ConfigError: rows are longer than `most`.
        """
        if self.most is not None and longest > self.most:
            raise ConfigError(
                f"{self._name}: rows of {where} may have {longest} tokens, and its rotary positions (dynamic) depend "
                f"on the longest row of a pass beyond {self.most}: lower data.max_prompt_length or "
                "data.max_response_length, or take a model with other rotary positions (yarn, linear)"
            )
        if self.switch is None or self.long or self.long is (longest > self.switch):
            return
        self.long = longest > self.switch
        side = "long" if self.long else "short"
        log_once(
            f"{self._name}: {side} rotary frequencies (longrope) for all rows of {where}, which have up to {longest} "
            f"tokens; the model switches beyond {self.switch}"
        )

    def check(self, longest: int) -> None:
        """Refuse a row whose frequencies would not be those of the side that was decided.

        Raises:
            DataError: it is too long.
        """
        if self.most is not None and longest > self.most:
            raise DataError(
                f"{self._name}: a row has {longest} tokens, and its rotary positions (dynamic) depend on the longest "
                f"row of a pass beyond {self.most}: leave longer rows out"
            )
        if self.long is False and self.switch is not None and longest > self.switch:
            raise DataError(
                f"{self._name}: a row has {longest} tokens, and this run has the short rotary frequencies (longrope), "
                f"for rows of at most {self.switch}: leave longer rows out"
            )

    @contextmanager
    def side(self) -> Iterator[None]:
        """Passes inside the block have the side that was decided, whatever the length of their rows."""
        before, self._forced = self._forced, bool(self.long)
        try:
            yield
        finally:
            self._forced = before

    def apart(self, lengths_N: Sequence[int] | IntArray) -> list[IntArray]:
        """Indices of rows that may share a pass: all, or the short and the long ones where no side was decided."""
        return sides_of(lengths_N, self.switch if self.long is None else None)

    def _lengthen(
        self, _: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Put a position behind those of a pass from which the long frequencies are taken."""
        if not self._forced:
            return None
        if "position_ids" in given:
            return args, {**given, "position_ids": self._with_far(given["position_ids"])}
        return (args[0], self._with_far(args[1]), *args[2:]), given

    def _with_far(self, positions: Tensor) -> Tensor:
        assert self.switch is not None
        far = positions.new_full((*positions.shape[:-1], 1), self.switch)
        return torch.cat([positions, far], -1)

    def _cut(self, _: nn.Module, __: Any, found: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Leave out the angles of that position."""
        return tuple(angles[..., :-1, :] for angles in found) if self._forced else None


def switch_of(config: Any) -> int | None:
    """Tokens up to which a row has the short frequencies of `longrope`; None: the model has another kind."""
    kinds = [part for part in _parts(config) if _kind(part) == "longrope"]
    return min((int(part["original_max_position_embeddings"]) for part in kinds), default=None)


def sides_of(lengths_N: Sequence[int] | IntArray, switch: int | None) -> list[IntArray]:
    """Indices of rows that have the same frequencies of `longrope`: all, or the short ones and the long ones."""
    lengths = np.asarray(lengths_N, dtype=np.int64)
    if switch is None:
        return [np.arange(len(lengths))]
    return [rows for rows in (np.flatnonzero(lengths <= switch), np.flatnonzero(lengths > switch)) if len(rows)]


def _parts(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of a model: one map, or one for each kind of layer."""
    given = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if "rope_type" in given or not all(isinstance(part, dict) for part in given.values()):
        return [given]
    return list(given.values())


def _kind(part: dict[str, Any]) -> str:
    return str(part.get("rope_type", "default"))
