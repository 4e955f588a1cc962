"""How prediction heads that others made for a model differ from one that it brings along."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Taps:
    """How a prediction head that others made for a model (EAGLE-3) differs from the model's own.

    At token t its x is h, and attention reads (norm(embedding of t), norm(h)), of twice the hidden
    size. h is a matrix times the model's x at all taps, in the row before t, or, where the head
    made that row itself, its x.
    """

    taps: tuple[int, int, int]  # the layers of the model in front of which x is read
    norm_eps: float
    fusion_norm: bool = False  # the taps together go through a norm first
    norm_adds: bool = False  # x begins as norm(h)
    own_embedding: bool = False
    outputs: int = 0  # rows of its own output matrix; 0: it has the model's
    chooses: bool = False  # these rows are of some tokens only


@dataclass(frozen=True)
class Blocks:
    """A prediction head of one or more layers that guesses several tokens at once (DFlash).

    Keys and values of a token are made of norm(matrix times the model's x at all taps of the token
    itself), in each layer. The head reads the last known token and masks in the place of those
    behind it, up to ``block`` tokens together; each mask's row makes logits of its token.
    """

    taps: tuple[int, ...]  # the layers of the model in front of which x is read
    norm_eps: float
    block: int  # most tokens that are read together
    mask_token: int
    sees_ahead: bool = True  # each of these tokens sees all the others
    embedding_scale: float = 1.0  # of the model's embeddings
    own_embedding: bool = False
    outputs: int = 0  # rows of its own output matrix; 0: it has the model's
    chooses: bool = False  # these rows are of some tokens only


@dataclass(frozen=True)
class Reader:
    """A prediction head that reads the model's keys and values (Gemma 4's assistant): its rows.

    Its x is a matrix times (embedding of t, h), both as wide as the model; another matrix leads
    back from its rows to h. All its layers share keys with layers of the model, with windows one
    token shorter, since it sees only what the model has stored.
    """

    size: int
    norm_eps: float
