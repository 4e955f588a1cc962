"""The table of model families, and what follows from it: tensor names, shapes and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lanewise.loading.checkpoint import (
    MATRIX_TYPES,
    VECTOR_TYPES,
    Converted,
    ModelConfig,
    ModelFileError,
    Packing,
    Role,
    Tensor,
    TensorType,
)

MAX_HEAD_DIM = 256
REMOVED_TYPES = {31, 32, 33, 36, 37, 38}  # repacked forms that GGUF once had


@dataclass(frozen=True)
class Family:
    """What distinguishes one model family from the others; a new family is a new row."""

    name: str
    gguf: str | None  # general.architecture
    hf: str  # model_type
    qkv_bias: bool | None  # None: the file decides
    qk_norm: bool
    gguf_interleaved_rope: bool  # Q and K rows of GGUF files alternate the halves of each head


FAMILIES = (
    Family("llama", "llama", "llama", None, qk_norm=False, gguf_interleaved_rope=True),
    Family("mistral", None, "mistral", False, qk_norm=False, gguf_interleaved_rope=True),
    Family("qwen2", "qwen2", "qwen2", True, qk_norm=False, gguf_interleaved_rope=False),
    Family("qwen3", "qwen3", "qwen3", None, qk_norm=True, gguf_interleaved_rope=False),
)

# Role to tensor name in GGUF and in Hugging Face files; {} is the layer.
TENSOR_NAMES: Mapping[Role, tuple[str, str]] = {
    Role.TOKEN_EMBEDDING: ("token_embd.weight", "model.embed_tokens.weight"),
    Role.OUTPUT: ("output.weight", "lm_head.weight"),
    Role.OUTPUT_NORM: ("output_norm.weight", "model.norm.weight"),
    Role.ATTN_NORM: ("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    Role.ATTN_Q: ("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight"),
    Role.ATTN_K: ("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight"),
    Role.ATTN_V: ("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight"),
    Role.ATTN_Q_BIAS: ("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias"),
    Role.ATTN_K_BIAS: ("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias"),
    Role.ATTN_V_BIAS: ("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias"),
    Role.ATTN_Q_NORM: ("blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"),
    Role.ATTN_K_NORM: ("blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"),
    Role.ATTN_OUTPUT: ("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight"),
    Role.FFN_NORM: ("blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    Role.FFN_GATE: ("blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"),
    Role.FFN_UP: ("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"),
    Role.FFN_DOWN: ("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"),
    Role.ATTN_INPUT_ORDER: ("blk.{}.attn_input_order", "model.layers.{}.self_attn.input_order"),
    Role.ATTN_OUTPUT_ORDER: ("blk.{}.attn_output_order", "model.layers.{}.self_attn.output_order"),
    Role.FFN_INPUT_ORDER: ("blk.{}.ffn_input_order", "model.layers.{}.mlp.input_order"),
}
GGUF, HF = 0, 1  # columns of TENSOR_NAMES

BIASES = (Role.ATTN_Q_BIAS, Role.ATTN_K_BIAS, Role.ATTN_V_BIAS)
HEAD_NORMS = (Role.ATTN_Q_NORM, Role.ATTN_K_NORM)
ORDERS = (Role.ATTN_INPUT_ORDER, Role.ATTN_OUTPUT_ORDER, Role.FFN_INPUT_ORDER)  # optional
PER_MODEL = (Role.TOKEN_EMBEDDING, Role.OUTPUT_NORM, Role.OUTPUT)


def gguf_family(architecture: str, source: str) -> Family:
    """Return the family of a GGUF file's general.architecture."""
    known = {family.gguf: family for family in FAMILIES if family.gguf}
    if architecture not in known:
        raise ModelFileError(
            f"{source}: general.architecture {architecture!r} is not supported;"
            f" accepted are {', '.join(known)}"
        )
    return known[architecture]


def hf_family(model_type: str, source: str) -> Family:
    """Return the family of a config.json's model_type."""
    known = {family.hf: family for family in FAMILIES}
    if model_type not in known:
        raise ModelFileError(
            f"{source}: model_type {model_type!r} is not supported; accepted are {', '.join(known)}"
        )
    return known[model_type]


def check_config(config: ModelConfig, source: str) -> ModelConfig:
    """Return the config if its numbers fit together."""
    if config.n_heads % config.n_kv_heads:
        raise ModelFileError(
            f"{source}: {config.n_heads} attention heads are not a multiple of"
            f" {config.n_kv_heads} key/value heads"
        )
    if config.head_dim % 2 or config.head_dim > MAX_HEAD_DIM:
        raise ModelFileError(
            f"{source}: head dimension {config.head_dim} is not supported;"
            f" it must be even and at most {MAX_HEAD_DIM}"
        )
    return config


def shape_of(role: Role, config: ModelConfig) -> tuple[int, int]:
    """Return the rows and columns a tensor must have; vectors are one row."""
    hidden, head = config.hidden_size, config.head_dim
    queries, keys = config.n_heads * head, config.n_kv_heads * head
    return {
        Role.TOKEN_EMBEDDING: (config.vocab_size, hidden),
        Role.OUTPUT: (config.vocab_size, hidden),
        Role.OUTPUT_NORM: (1, hidden),
        Role.ATTN_NORM: (1, hidden),
        Role.ATTN_Q: (queries, hidden),
        Role.ATTN_K: (keys, hidden),
        Role.ATTN_V: (keys, hidden),
        Role.ATTN_Q_BIAS: (1, queries),
        Role.ATTN_K_BIAS: (1, keys),
        Role.ATTN_V_BIAS: (1, keys),
        Role.ATTN_Q_NORM: (1, head),
        Role.ATTN_K_NORM: (1, head),
        Role.ATTN_OUTPUT: (hidden, queries),
        Role.FFN_NORM: (1, hidden),
        Role.FFN_GATE: (config.ffn_size, hidden),
        Role.FFN_UP: (config.ffn_size, hidden),
        Role.FFN_DOWN: (hidden, config.ffn_size),
        Role.ATTN_INPUT_ORDER: (1, hidden),
        Role.ATTN_OUTPUT_ORDER: (1, queries),
        Role.FFN_INPUT_ORDER: (1, hidden),
    }[role]


def is_vector(role: Role) -> bool:
    """Return whether a role is a vector, stored with one dimension."""
    return role in BIASES or role in ORDERS or "NORM" in role.name


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of either kind of file; ``shape`` is row-major."""

    where: str  # file, for errors
    shape: tuple[int, ...]
    type: TensorType | str  # a string when the file's dtype has no number here
    data: memoryview | Converted
    release: Callable[[], None]
    packing: Packing | None = None
    table: bytes | None = None

    def view(self) -> memoryview:
        """Return the bytes."""
        return self.data if isinstance(self.data, memoryview) else self.data.view()


def bind_tensors(
    config: ModelConfig,
    sources: Mapping[str, SourceTensor],
    column: int,
    interleaved_rope: bool,
    source: str,
) -> list[Tensor]:
    """Give each tensor of the file its role, in the order of the forward step.

    A missing, unknown, misshapen or unreadable tensor is an error that names it.
    """
    wanted = [
        (role, layer)
        for role, layer in _wanted(config)
        if role not in ORDERS or TENSOR_NAMES[role][column].format(layer) in sources
    ]
    names = [TENSOR_NAMES[role][column].format(layer) for role, layer in wanted]
    missing = [name for name in names if name not in sources]
    if missing:
        raise ModelFileError(f"{source}: {_listed('missing tensor', missing)}")
    extra = sorted(set(sources) - set(names))
    if extra:
        raise ModelFileError(
            f"{source}: {_listed('unknown tensor', extra)}; not part of a {config.architecture}"
            " model as served here"
        )
    heads = {Role.ATTN_Q: config.n_heads, Role.ATTN_Q_BIAS: config.n_heads}
    heads |= {Role.ATTN_K: config.n_kv_heads, Role.ATTN_K_BIAS: config.n_kv_heads}
    tensors = []
    for (role, layer), name in zip(wanted, names, strict=True):
        item = sources[name]
        kind = _checked_type(item, name, is_vector(role))
        rows, cols = shape_of(role, config)
        if item.shape != ((cols,) if is_vector(role) else (rows, cols)):
            needed = [cols] if is_vector(role) else [rows, cols]
            raise ModelFileError(
                f"{item.where}: tensor {name!r} has shape {list(item.shape)}"
                f" (outputs first); the config needs {needed}"
            )
        rope_heads = heads.get(role, 0) if interleaved_rope else 0
        place = (item.data, rope_heads, item.release, item.packing, item.table)
        tensors.append(Tensor(name, role, layer, kind, rows, cols, *place))
    return tensors


def _wanted(config: ModelConfig) -> list[tuple[Role, int]]:
    per_layer = [role for role in Role if role not in PER_MODEL]
    if not config.qkv_bias:
        per_layer = [role for role in per_layer if role not in BIASES]
    if not config.qk_norm:
        per_layer = [role for role in per_layer if role not in HEAD_NORMS]
    wanted = [(Role.TOKEN_EMBEDDING, 0)]
    wanted += [(role, layer) for layer in range(config.n_layers) for role in per_layer]
    wanted.append((Role.OUTPUT_NORM, 0))
    if not config.tied_embeddings:
        wanted.append((Role.OUTPUT, 0))
    return wanted


def _checked_type(item: SourceTensor, name: str, vector: bool) -> TensorType:
    accepted = VECTOR_TYPES if vector else MATRIX_TYPES
    if isinstance(item.type, TensorType) and item.type in accepted:
        return item.type
    shown = item.type.name if isinstance(item.type, TensorType) else item.type
    hint = ""
    if item.type in REMOVED_TYPES:
        hint = "; this type was removed from GGUF: requantize the model, for example to Q4_0"
    raise ModelFileError(
        f"{item.where}: tensor {name!r} has type {shown}; accepted are"
        f" {', '.join(kind.name for kind in accepted)}{hint}"
    )


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{what}{'s' if len(names) > 1 else ''} {shown}{more}"
