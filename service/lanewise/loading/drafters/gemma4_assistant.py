"""Gemma 4's assistants: small models whose layers read the keys and values of their target.

They are published as directories, and as GGUF files of an architecture of their own. Some bring a
short list of tokens for each guess (centroids), which saves time on other machines; the guess is
the best of all tokens here, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.base.drafting_heads import Reader
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import GGUF, HF, LAYERS
from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.drafters.own_tensors import check_made_for
from lanewise.loading.families import gemma3, gemma4
from lanewise.loading.families.gguf_rope import ROPE_TENSORS
from lanewise.loading.files import gguf
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.files.weights_files import open_weights, read_sources
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.reference import config_fields

ARCHITECTURE = "gemma4-assistant"  # in GGUF files
MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
# What all layers share is said by the number of layers, which other models must not have.
SHARING = "num_kv_shared_layers"
# Tensors of the head itself: in directories, in GGUF files.
OWN: Mapping[Role, tuple[str, str]] = {
    Role.MTP_PROJECTION: ("pre_projection.weight", "nextn.pre_projection.weight"),
    Role.HEAD_RETURN: ("post_projection.weight", "nextn.post_projection.weight"),
    Role.MTP_NORM: ("model.norm.weight", "output_norm.weight"),
    Role.HEAD_OUTPUT: ("model.embed_tokens.weight", "token_embd.weight"),
}
UNUSED = (
    *("masked_embedding.centroids.weight", "masked_embedding.token_ordering", "lm_head.weight"),
    *("masked_embd_centroids.weight", "masked_embd_ordering", *ROPE_TENSORS),
)


def is_config(fields: Fields) -> bool:
    """Whether a config.json is of an assistant."""
    return fields.raw("model_type") in MODEL_TYPES


def attach_directory(checkpoint: Checkpoint, path: Path) -> None:
    """Attach the assistant of a directory."""
    config = path / "config.json"
    whole = Fields(read_object(config), str(config))
    text = whole.raw("text_config")
    if not isinstance(text, Mapping):
        raise whole.fail("text_config", "an object")
    files = open_weights(path)
    checkpoint.also_close(lambda: close_all(files))
    meanings = config_fields(gemma4.FAMILY.name, gemma4.FAMILY.name)
    fields = Fields({**text, SHARING: 0}, f"{config}: text_config", meanings)
    sources = read_sources(files)
    head = gemma4.program(ModelFile(fields, sources, HF))
    size = whole.integer("backbone_hidden_size")
    _attach(checkpoint, whole, ("backbone_hidden_size", size), head, sources, HF)


def attach_file(checkpoint: Checkpoint, path: Path) -> None:
    """Attach the assistant of a GGUF file."""
    file = gguf.GgufFile(path)
    checkpoint.also_close(file.close)
    sources, key = gguf.read_sources([file]), f"{ARCHITECTURE}.embedding_length_out"
    fields = Fields(file.metadata, str(path))
    shared = {f"{ARCHITECTURE}.attention.shared_kv_layers": 0}
    own = Fields({**file.metadata, **shared}, str(path))
    head = gemma4.program(ModelFile(own, sources, GGUF))
    _attach(checkpoint, fields, (key, fields.integer(key)), head, sources, GGUF)


def _attach(
    checkpoint: Checkpoint,
    fields: Fields,
    width: tuple[str, int],
    head: ModelConfig,
    sources: Sources,
    column: int,
) -> None:
    """Make the layers of ``head`` the last ones of the model."""
    config, first = checkpoint.config, checkpoint.config.n_layers
    rows = (
        (*width, config.hidden_size),
        ("vocab_size", head.vocab_size, config.vocab_size),
        ("hidden_size_per_layer_input", head.per_layer_size, 0),
    )
    check_made_for(checkpoint, fields.source, rows)
    if head.hidden_size > config.hidden_size:
        raise ModelFileError(
            f"{fields.source}: hidden_size is {head.hidden_size}; at most the model's"
            f" {config.hidden_size} is needed"
        )
    if any(not isinstance(layer.ffn, Gated) for layer in head.layers):
        raise ModelFileError(f"{fields.source}: enable_moe_block is true; false is needed")
    layers = [
        Layer(
            _reading(checkpoint, fields, layer, config.layers),
            layer.ffn,
            result_norms=True,
            output_scale=layer.output_scale,
            mtp=True,
            follows=number > 0,
        )
        for number, layer in enumerate(head.layers)
    ]
    whole = replace(
        config,
        ropes=(*config.ropes, *head.ropes),
        layers=(*config.layers, *layers),
        reader=Reader(head.hidden_size, head.rms_norm_eps),
    )
    named = _named(sources, head, column, first)
    tensors = bind_tensors(whole, named, column, False, fields.source, first_layer=first)
    checkpoint.config = whole
    checkpoint.tensors = [*checkpoint.tensors, *tensors]


def _reading(
    checkpoint: Checkpoint, fields: Fields, layer: Layer, model: Sequence[Layer]
) -> Attention:
    """Return attention to the keys of the model's last layer of the same kind."""
    own = layer.attention
    assert own is not None
    is_windowed = own.window is not None
    kind = "sliding_attention" if is_windowed else "full_attention"
    found = [
        (number, one.attention)
        for number, one in enumerate(model)
        if one.attention is not None
        and one.attention.kv_layer is None
        and (one.attention.window is not None) == is_windowed
    ]
    if not found or found[-1][1].latent_rank:
        raise ModelFileError(
            f"{fields.source}: a layer is of {kind}; {checkpoint.path}, which it is to guess for,"
            " has no keys of such layers"
        )
    number, of = found[-1]
    theirs, ours = (of.n_kv_heads, of.head_dim), (own.n_kv_heads, own.head_dim)
    if theirs != ours:
        raise ModelFileError(
            f"{fields.source}: layers of {kind} have {ours[0]} KV heads of {ours[1]};"
            f" {theirs[0]} of {theirs[1]} are needed, as of {checkpoint.path}"
        )
    if (of.window is not None and own.window != of.window) or of.window == 1:
        raise ModelFileError(
            f"{fields.source}: sliding_window is {own.window}; the {of.window} of"
            f" {checkpoint.path} is needed, and above 1"
        )
    assert own.rope is not None
    return replace(
        own,
        kv_layer=number,
        window=None if of.window is None else of.window - 1,
        rope=len(checkpoint.config.ropes) + own.rope,
        values_are_keys=False,
        value_norm=False,
        sees_ahead=False,
    )


def _named(sources: Sources, head: ModelConfig, column: int, first: int) -> dict[str, SourceTensor]:
    """Return the head's tensors under the names of the model's last layers."""
    named = Rearranged(sources, column)
    named.drop(*UNUSED)
    for role, names in OWN.items():
        named.rename(names[column != HF], f"{role.name} ")
    prefix = LAYERS[column]
    for number in range(head.n_layers):
        named.drop(gemma4.SCALES[column].format(number))
        if column == HF:
            for name, role in gemma3.OF_LAYER.items():
                named.rename(f"{prefix}{number}.{name}.weight", named.usual(role, number))
    found: dict[str, SourceTensor] = {}
    for name, tensor in named.out.items():
        layer, _, rest = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and layer.isdecimal():
            name = f"{prefix}{first + int(layer)}.{rest}"
        found[name] = tensor
    for role in OWN:
        if f"{role.name} " in found:
            found[named.usual(role, first)] = found.pop(f"{role.name} ")
    return found
