"""EAGLE-3 heads: directories as their makers publish them, in two layouts, and GGUF files.

A head has one layer, which reads three rows of the model and the next token's embedding. Most know
only the model's commonest tokens: d2t says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.base.drafting_heads import Taps
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import GGUF, HF
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.drafters.own_tensors import (
    OWN,
    check_made_for,
    name_of,
    own_parts,
    with_embedding,
)
from lanewise.loading.families import llama
from lanewise.loading.families.gguf_rope import ROPE_TENSORS
from lanewise.loading.families.table import hf_family
from lanewise.loading.files import gguf
from lanewise.loading.files.weights_files import open_weights, read_sources
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.reference import config_fields

ARCHITECTURE = "eagle3"  # in GGUF files
METHOD = "eagle3"  # in the layout of speculators
LAYER = "transformer_layer_config"  # where that layout has the layer's fields
IDS = "eagle_aux_hidden_state_layer_ids"
# Settings of eagle_config that ask for what is computed.
EAGLE = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
UNUSED = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight")
PREFIXES = ("midlayer.", "layers.0.", "model.layers.0.", "model.midlayer.")
# Names of its layer's norms that other layers call otherwise.
NORMS = {
    Role.MTP_EMBEDDING_NORM: ("input_layernorm.weight", "attn_norm.weight"),
    Role.MTP_HIDDEN_NORM: ("hidden_norm.weight", "attn_norm_2.weight"),
}


def is_config(fields: Fields) -> bool:
    """Whether a config.json is of such a head."""
    names = fields.raw("architectures")
    of_name = isinstance(names, list) and any("Eagle3" in str(name) for name in names)
    return of_name or fields.raw("speculators_model_type") == METHOD


def attach_directory(checkpoint: Checkpoint, path: Path) -> None:
    """Attach the head of a directory."""
    config = path / "config.json"
    values = read_object(config)
    inner = values.get(LAYER)
    if inner is not None and not isinstance(inner, Mapping):
        raise Fields(values, str(config)).fail(LAYER, "an object")
    fields = Fields({**values, **(inner or {}), "pooling": None}, str(config))
    files = open_weights(path)
    checkpoint.also_close(lambda: close_all(files))
    sources = {name: one for name, one in read_sources(files).items() if name not in UNUSED}
    family = hf_family(fields.text("model_type"), fields.source)
    meanings = config_fields(family.name, fields.text("model_type"))
    fields = Fields(fields.values, fields.source, meanings)
    named = {_usual(name): one for name, one in sources.items()}
    model = family.program(ModelFile(fields, named, HF))
    _check_eagle(fields)
    _attach(checkpoint, fields, model, sources, HF, _taps_of(fields, checkpoint.config))


def attach_file(checkpoint: Checkpoint, path: Path) -> None:
    """Attach the head of a GGUF file."""
    file = gguf.GgufFile(path)
    checkpoint.also_close(file.close)
    fields, sources = Fields(file.metadata, str(path)), gguf.read_sources([file])
    config = checkpoint.config
    whole = with_embedding(sources, config.vocab_size, config.hidden_size)
    model = llama.program(ModelFile(fields, whole, GGUF))
    for name in ROPE_TENSORS:
        sources.pop(name, None)
    keys = [f"{ARCHITECTURE}.{key}" for key in ("target_layers", "extract_layers")]
    key = keys[0] if fields.is_set(keys[0]) else keys[1]
    _attach(checkpoint, fields, model, sources, GGUF, _numbers(fields, key, fields.raw(key)))


def _usual(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return f"model.layers.0.{name.removeprefix(prefix)}"
    return name


def _check_eagle(fields: Fields) -> None:
    """Raise for settings that ask for another head than is computed here."""
    eagle = fields.raw("eagle_config")
    if isinstance(eagle, Mapping):
        own = Fields(eagle, f"{fields.source}: eagle_config")
        for name, meant in EAGLE.items():
            if own.flag(name, default=meant) != meant:
                raise own.fail(name, str(meant).lower())
    if fields.flag("norm_output", default=False):
        raise fields.fail("norm_output", "false")


def _taps_of(fields: Fields, model: ModelConfig) -> tuple[int, int, int]:
    """Return the layers in front of which the model's rows are read.

    Heads that say nothing read in front of the third layer, the middle one and the third from the
    end. The numbers of eagle_config are of the layers before.
    """
    if said := fields.raw(IDS):
        return _numbers(fields, IDS, said)
    eagle = fields.raw("eagle_config")
    if isinstance(eagle, Mapping) and eagle.get(IDS):
        own = Fields(eagle, f"{fields.source}: eagle_config")
        low, middle, high = _numbers(own, IDS, eagle[IDS])
        return low + 1, middle + 1, high + 1
    n = model.n_layers
    return 2, n // 2, n - 3


def _numbers(fields: Fields, key: str, said: Any) -> tuple[int, int, int]:
    if not isinstance(said, Sequence) or len(said) != 3 or any(type(n) is not int for n in said):
        raise fields.fail(key, "three numbers of layers")
    return said[0], said[1], said[2]


def _attach(
    checkpoint: Checkpoint,
    fields: Fields,
    head: ModelConfig,
    sources: Sources,
    column: int,
    taps: tuple[int, int, int],
) -> None:
    """Make the only layer of ``head`` the last one of the model."""
    config, n = checkpoint.config, checkpoint.config.n_layers
    prefix = f"{ARCHITECTURE}." if column == GGUF else ""
    _check_fits(checkpoint, fields, head, taps, prefix)
    named = _named(sources, column, n)
    made = Taps(
        taps=taps,
        norm_eps=head.rms_norm_eps,
        fusion_norm=fields.flag(f"{prefix}norm_before_fc", default=False),
        norm_adds=fields.flag(f"{prefix}norm_before_residual", default=False),
        **own_parts(checkpoint, named, column, n),
    )
    ropes = (*config.ropes, *head.ropes)
    attention = head.layers[0].attention
    assert attention is not None
    if attention.rope is not None:
        attention = replace(attention, rope=len(config.ropes) + attention.rope)
    layer = Layer(attention, head.layers[0].ffn, mtp=True, head=made)
    whole = replace(config, ropes=ropes, layers=(*config.layers, layer))
    tensors = bind_tensors(whole, named, column, column == GGUF, fields.source, first_layer=n)
    checkpoint.config = whole
    checkpoint.tensors = [*checkpoint.tensors, *tensors]


def _check_fits(
    checkpoint: Checkpoint,
    fields: Fields,
    head: ModelConfig,
    taps: tuple[int, int, int],
    prefix: str,
) -> None:
    """Raise for a head that was made for another model, or is of a kind that is not read."""
    config = checkpoint.config
    names = (
        {"hidden_size": f"{prefix}embedding_length"} if prefix else {"hidden_size": "hidden_size"}
    )
    rows = (
        (names["hidden_size"], head.hidden_size, config.hidden_size),
        (
            f"{prefix}target_hidden_size",
            fields.integer(f"{prefix}target_hidden_size", default=config.hidden_size),
            config.hidden_size,
        ),
        (f"{prefix}vocab_size", head.vocab_size, config.vocab_size),
    )
    check_made_for(checkpoint, fields.source, rows)
    if len(head.layers) != 1:
        raise ModelFileError(
            f"{fields.source}: the head has {len(head.layers)} layers; accepted: one"
        )
    attention = head.layers[0].attention
    if attention is None or attention.window is not None:
        raise ModelFileError(
            f"{fields.source}: the head's layer has a sliding window; accepted: one that sees all"
            " tokens before"
        )
    for tap in taps:
        if not 1 <= tap <= config.n_layers:
            raise ModelFileError(
                f"{fields.source}: the head reads rows in front of layer {tap}; 1 to"
                f" {config.n_layers} are needed, as of {checkpoint.path}"
            )


def _named(sources: Sources, column: int, layer: int) -> dict[str, SourceTensor]:
    """Return the head's tensors under the names of a model's layer."""
    found: dict[str, SourceTensor] = {}
    own = {name: role for role, names in OWN.items() for name in names[column != HF]}
    norms = {names[column != HF]: role for role, names in NORMS.items()}
    start, prefixes = ("blk", ("blk.0.",)) if column == GGUF else ("model.layers", PREFIXES)
    for name, tensor in sources.items():
        part = next((name.removeprefix(one) for one in prefixes if name.startswith(one)), None)
        if name in own:
            found[name_of(own[name], column, layer)] = tensor
        elif part in norms:
            found[name_of(norms[part], column, layer)] = tensor
        else:
            found[name if part is None else f"{start}.{layer}.{part}"] = tensor
    return found
