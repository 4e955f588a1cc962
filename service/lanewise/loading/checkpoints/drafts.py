"""What a setting ``draft`` names: a head of the model's own, one of others, or a small model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.drafters.attaching import is_head

MTP = "mtp"  # the head that the model brings along


@dataclass(frozen=True)
class Draft:
    """What guesses besides the text itself: one of these, or nothing."""

    mtp: bool = False  # the head that the model brings along
    head: Path | None = None  # one that others made for it
    model: Path | None = None  # a small model


def read_draft(draft: str | None) -> Draft:
    """Return what a setting ``draft`` names, downloading it if necessary."""
    if draft is None:
        return Draft()
    if draft == MTP:
        return Draft(mtp=True)
    try:
        path = resolve_model(draft)
    except ModelFileError as error:
        raise ModelFileError(f"draft: {error}") from None
    return Draft(head=path) if is_head(path) else Draft(model=path)


def read_head(draft: str | None) -> Draft:
    """Return the same where only a head can guess; ModelFileError for a small model."""
    found = read_draft(draft)
    if found.model is not None:
        raise ModelFileError(
            f"{found.model}: a model of its own, which only serving can guess with; accepted:"
            f" {MTP}, or a head that guesses with the model's rows"
        )
    return found
