"""A text on its way through a model: hidden states, and what layers read beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.program import ModelConfig

Floats = npt.NDArray[np.float32]

CHUNK_TOKENS = 2048  # rows computed at a time, which bounds what is held beside the hidden states


@dataclass(frozen=True)
class States:
    """Windows of one length that do not see each other; what is computed is written in place."""

    x: Floats  # [windows, tokens, hidden]
    # What layers have of tokens for themselves [windows, tokens, layers * per_layer_size]; at first
    # the tokens' rows of the table, and None where layers have nothing.
    own: Floats | None
    # K and V of layers that others read, by the layer [2, windows, kv heads, tokens, head_dim].
    stored: dict[int, Floats]

    @staticmethod
    def of(config: ModelConfig, x: Floats, own: Floats | None = None) -> States:
        """Embedded windows before the first layer."""
        stored = {}
        for layer in config.layers:
            if layer.attention is not None and (number := layer.attention.kv_layer) is not None:
                source = config.layers[number].attention
                assert source is not None
                shape = (2, x.shape[0], source.n_kv_heads, x.shape[1], source.head_dim)
                stored[number] = np.empty(shape, np.float32)
        return States(x, own, stored)

    @staticmethod
    def together(all_: Sequence[States]) -> States:
        """The windows of all, one after the other."""
        first = all_[0]
        own = (
            None
            if first.own is None
            else np.concatenate([one.own for one in all_ if one.own is not None])
        )
        stored = {n: np.concatenate([one.stored[n] for one in all_], axis=1) for n in first.stored}
        return States(np.concatenate([one.x for one in all_]), own, stored)

    def chunks(self) -> Iterator[States]:
        """Views of whole windows of about CHUNK_TOKENS tokens, one after the other."""
        for part in self.parts():
            yield self.part(part)

    def part(self, windows: slice) -> States:
        """A view of some windows."""
        own = None if self.own is None else self.own[windows]
        return States(self.x[windows], own, {n: kv[:, windows] for n, kv in self.stored.items()})

    def parts(self) -> list[slice]:
        """The windows of each of :meth:`chunks`."""
        windows, tokens = self.x.shape[:2]
        step = max(1, CHUNK_TOKENS // tokens)
        return [slice(i, i + step) for i in range(0, windows, step)]

    def copied(self) -> States:
        """The hidden states as they are now, beside the same of everything else."""
        return replace(self, x=self.x.copy())

    def apart(self) -> States:
        """A copy that can go another way from here on."""
        stored = {number: both.copy() for number, both in self.stored.items()}
        return States(self.x.copy(), self.own, stored)
