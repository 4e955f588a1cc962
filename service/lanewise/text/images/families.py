"""Which families have towers, and what each does with images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lanewise.text.images.gemma3 import gemma3
from lanewise.text.images.gemma4 import gemma4, gemma4_unified
from lanewise.text.images.idefics3 import idefics3
from lanewise.text.images.layouts import Family, PreprocessorError
from lanewise.text.images.lfm2_vl import lfm2_vl
from lanewise.text.images.pixtral import pixtral
from lanewise.text.images.qwen import qwen

MAKERS: dict[str, Callable[[dict[str, Any], str], Family]] = {
    "gemma3": gemma3,
    "gemma4": gemma4,
    "gemma4_unified": gemma4_unified,
    "idefics3": idefics3,
    "lfm2_vl": lfm2_vl,
    "mistral3": pixtral,
    "qwen3_5": qwen,
    "qwen3_5_moe": qwen,
    "qwen3_vl": qwen,
    "qwen3_vl_moe": qwen,
    "smolvlm": idefics3,
}


def family_of(facts: dict[str, Any], placeholder: str) -> Family:
    """What a model with these facts does with images; PreprocessorError if that is not known.

    ``placeholder`` is the name of the token that stands for rows of images.
    """
    make = MAKERS.get(facts["family"])
    if make is None:
        raise PreprocessorError(
            f"{facts['family']}: how its images are prepared is not known; accepted:"
            f" {', '.join(MAKERS)}"
        )
    return make(facts, placeholder)
