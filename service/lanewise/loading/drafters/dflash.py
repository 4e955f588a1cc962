"""DFlash heads: directories as their makers publish them, and GGUF files.

A head has a few layers, whose keys and values are made of the model's rows in several places, and
guesses a block of tokens at once. Its embedding and its output matrix are mostly the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.base.drafting_heads import Blocks
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import GGUF, HF, LAYERS
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.drafters.own_tensors import (
    OWN,
    check_made_for,
    name_of,
    own_parts,
    with_embedding,
)
from lanewise.loading.families import qwen3
from lanewise.loading.families.gguf_rope import ROPE_TENSORS
from lanewise.loading.files import gguf
from lanewise.loading.files.weights_files import open_weights, read_sources
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.native_program import check_program
from lanewise.loading.programs.reference import config_fields

ARCHITECTURE = "dflash"  # in GGUF files, also of its successors
NAME = "DFlashDraftModel"  # in architectures
SUCCESSORS = ("DFlash", "DSpark")  # begin or are in the names of what is not read
SECTION = "dflash_config"
FIRST_BLOCK, MOST_BLOCK = 16, 64  # the size of a block that a file does not tell; the largest
# Tensors besides those that EAGLE-3 heads have, or by other names.
NORM = {
    "hidden_norm.weight": Role.MTP_HIDDEN_NORM,
    "model.hidden_norm.weight": Role.MTP_HIDDEN_NORM,
    "enc.output_norm.weight": Role.MTP_HIDDEN_NORM,
}
# Settings of SECTION that change nothing: the model's own output matrix makes logits.
OF_LOGITS = ("output_multiplier", "final_logit_softcapping")
READ = ("mask_token_id", "target_layer_ids", "block_size", "causal", "input_embedding_scale")
# Keys of GGUF files, and tensors, of heads that compute more.
MORE = ("conv_kernel_size", "selector_rank", "hyper_connection_count", "attention.value_scale")
MORE_TENSORS = ("markov_w1.weight", "selector_hidden.weight")


def is_config(fields: Fields) -> bool:
    """Whether a config.json is of such a head, or of a successor, which is refused by name."""
    names = fields.raw("architectures")
    found = [str(name) for name in names] if isinstance(names, list) else []
    return any(kind in name for kind in SUCCESSORS for name in found)


def attach_directory(checkpoint: Checkpoint, path: Path) -> None:
    """Attach the head of a directory."""
    config = path / "config.json"
    meanings = config_fields(qwen3.FAMILY.name)
    fields = Fields({**read_object(config), "pooling": None}, str(config), meanings)
    section = _section(fields)
    _check_kind(fields, section, path)
    files = open_weights(path)
    checkpoint.also_close(lambda: close_all(files))
    sources = read_sources(files)
    named = {_usual(name): one for name, one in sources.items()}
    model = qwen3.program(ModelFile(fields, named, HF))
    n_layers, key = checkpoint.config.n_layers, "num_target_layers"
    if fields.is_set(key) and fields.raw(key) != n_layers:
        raise fields.fail(key, f"the {n_layers} layers of {checkpoint.path}")
    own = section if section.is_set("target_layer_ids") else fields
    ids = own.raw("target_layer_ids")
    taps = _numbers(own, "target_layer_ids", ids) if ids else _usual_taps(n_layers, model.n_layers)
    size = section if section.is_set("block_size") else fields
    causal = fields.raw("is_causal") if fields.is_set("is_causal") else section.raw("causal")
    head = Blocks(
        taps=tuple(tap + 1 for tap in taps),
        norm_eps=model.rms_norm_eps,
        block=size.integer("block_size", default=FIRST_BLOCK, least=2),
        mask_token=section.integer("mask_token_id", least=0),
        sees_ahead=not causal,
        embedding_scale=section.number(
            "input_embedding_scale", default=checkpoint.config.embedding_scale
        ),
    )
    _attach(checkpoint, fields, model, head, sources, HF)


def attach_file(checkpoint: Checkpoint, path: Path) -> None:
    """Attach the head of a GGUF file."""
    file = gguf.GgufFile(path)
    checkpoint.also_close(file.close)
    fields, sources = Fields(file.metadata, str(path)), gguf.read_sources([file])
    for key in (f"{ARCHITECTURE}.{one}" for one in MORE):
        if fields.is_set(key):
            raise fields.fail(key, f"a file without it, of {NAME},")
    for name in MORE_TENSORS:
        if name in sources:
            raise ModelFileError(f"{path}: has {name!r}; a head of {NAME} without it is needed")
    size = fields.integer(f"{ARCHITECTURE}.embedding_length")
    whole = with_embedding(sources, checkpoint.config.vocab_size, size)
    model = qwen3.program(ModelFile(fields, whole, GGUF))
    for name in ROPE_TENSORS:
        sources.pop(name, None)
    key = f"{ARCHITECTURE}.target_layers"
    head = Blocks(
        taps=_numbers(fields, key, fields.raw(key)),
        norm_eps=model.rms_norm_eps,
        block=fields.integer(f"{ARCHITECTURE}.block_size", default=FIRST_BLOCK, least=2),
        mask_token=fields.integer("tokenizer.ggml.mask_token_id", least=0),
        sees_ahead=not fields.flag(f"{ARCHITECTURE}.attention.causal", default=False),
        embedding_scale=fields.number(
            f"{ARCHITECTURE}.embedding_scale", default=checkpoint.config.embedding_scale
        ),
    )
    _attach(checkpoint, fields, model, head, sources, GGUF)


def _section(fields: Fields) -> Fields:
    values = fields.raw(SECTION) or {}
    if not isinstance(values, Mapping):
        raise fields.fail(SECTION, "an object")
    return Fields(values, f"{fields.source}: {SECTION}")


def _check_kind(fields: Fields, section: Fields, path: Path) -> None:
    """Raise for heads that compute more or otherwise than is done here."""
    names = fields.raw("architectures")
    if NAME not in names:
        raise fields.fail("architectures", f"[{NAME!r}]; its successors compute more, which")
    if fields.is_set("transformer_layer_config"):
        raise fields.fail("transformer_layer_config", "the layout of DFlash's makers, without it,")
    if not fields.flag("rope_is_neox_style", default=True):
        raise fields.fail("rope_is_neox_style", "true")
    for name, value in section.values.items():
        if name not in (*READ, *OF_LOGITS) and value not in (None, False):
            raise section.fail(name, f"a head without it, with {', '.join(READ)} only,")
    if (path / "mask_embedding.pt").exists():
        raise ModelFileError(
            f"{path / 'mask_embedding.pt'}: a mask with an embedding of its own; a head whose mask"
            " has a row of the model's embedding is needed"
        )


def _usual(name: str) -> str:
    return f"model.{name}" if name.startswith("layers.") else name


def _usual_taps(n_layers: int, n_own: int) -> tuple[int, ...]:
    """Return the layers behind which heads read that do not tell: from the second, evenly."""
    if n_own == 1:
        return (n_layers // 2,)
    return tuple(round(1 + i * (n_layers - 4) / (n_own - 1)) for i in range(n_own))


def _numbers(fields: Fields, key: str, said: Any) -> tuple[int, ...]:
    if not isinstance(said, Sequence) or not said or any(type(n) is not int for n in said):
        raise fields.fail(key, "a list of numbers of layers")
    return tuple(said)


def _attach(
    checkpoint: Checkpoint,
    fields: Fields,
    model: ModelConfig,
    head: Blocks,
    sources: Sources,
    column: int,
) -> None:
    """Make the layers of ``model`` the last ones of the checkpoint's."""
    config, n = checkpoint.config, checkpoint.config.n_layers
    _check_fits(checkpoint, fields, model, head, column)
    named = _named(sources, column, n)
    head = replace(head, **own_parts(checkpoint, named, column, n))
    layers = []
    for number, layer in enumerate(model.layers):
        attention = layer.attention
        assert attention is not None
        assert attention.rope is not None
        rope = len(config.ropes) + attention.rope
        attention = replace(attention, rope=rope, sees_ahead=head.sees_ahead)
        first = head if number == 0 else None
        layers.append(Layer(attention, layer.ffn, mtp=True, follows=number > 0, head=first))
    whole = replace(config, ropes=(*config.ropes, *model.ropes), layers=(*config.layers, *layers))
    check_program(whole, fields.source)
    tensors = bind_tensors(whole, named, column, False, fields.source, first_layer=n)
    checkpoint.config = whole
    checkpoint.tensors = [*checkpoint.tensors, *tensors]


def _check_fits(
    checkpoint: Checkpoint, fields: Fields, model: ModelConfig, head: Blocks, column: int
) -> None:
    """Raise for a head that was made for another model."""
    config, in_gguf = checkpoint.config, column == GGUF
    width = f"{ARCHITECTURE}.embedding_length" if in_gguf else "hidden_size"
    rows = (
        (width, model.hidden_size, config.hidden_size),
        ("vocab_size", model.vocab_size, config.vocab_size),
    )
    check_made_for(checkpoint, fields.source, rows)
    windows = [layer.attention and layer.attention.window for layer in model.layers]
    window = min((one for one in windows if one), default=head.block)
    if window < head.block:
        key = f"{ARCHITECTURE}.attention.sliding_window" if in_gguf else "sliding_window"
        raise fields.fail(key, f"at least the size of a block, {head.block},")
    if head.block > MOST_BLOCK:
        raise ModelFileError(
            f"{fields.source}: block_size is {head.block}; at most {MOST_BLOCK} is needed"
        )
    for tap in head.taps:
        if not 1 <= tap <= config.n_layers:
            raise ModelFileError(
                f"{fields.source}: the head reads rows behind layer {tap - 1}, of 0 to"
                f" {config.n_layers - 1} of {checkpoint.path}"
            )
    if head.mask_token >= config.vocab_size:
        raise ModelFileError(
            f"{fields.source}: mask_token_id is {head.mask_token}; a token below"
            f" {config.vocab_size} is needed, as of {checkpoint.path}"
        )


def _named(sources: Sources, column: int, layer: int) -> dict[str, SourceTensor]:
    """Return the head's tensors under the names of a model's layers from ``layer`` on."""
    found: dict[str, SourceTensor] = {}
    own = {name: role for role, names in OWN.items() for name in names[column != HF]} | NORM
    start = LAYERS[column]
    for name, tensor in sources.items():
        usual = _usual(name) if column == HF else name
        number, _, rest = usual.removeprefix(start).partition(".")
        if name in own:
            found[name_of(own[name], column, layer)] = tensor
        elif usual.startswith(start) and number.isdecimal():
            found[f"{start}{layer + int(number)}.{rest}"] = tensor
        else:
            found[name] = tensor
    return found
