"""DeepSeek V4: attention to a window and to entries made of several tokens, streams that are mixed.

Directories have three sets of names: the published ones, which begin with "layers.", those that
transformers writes, and those of its modules. GGUF files have a fourth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType, round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Attention, Experts, Layer, ModelConfig, Rope
from lanewise.loading.families.common import check_values, model_of, n_layers_of
from lanewise.loading.families.experts import (
    EPS,
    flatten_gguf_experts,
    layers_of_experts,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged, shown
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import read_rope

NAME = "deepseek_v4"
SLIDING, SPARSE, HEAVY = (
    *("sliding_attention", "compressed_sparse_attention"),
    "heavily_compressed_attention",
)
KINDS = (SLIDING, SPARSE, HEAVY)
OF_RATIO = {0: SLIDING, 4: SPARSE, 128: HEAVY}  # values of compress_ratios
RATES = {SPARSE: 4, HEAVY: 128}
RATE_KEYS = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
LOOKED_UP, CHOSEN = "hash_moe", "moe"
HASH_LAYERS = 3
THETA, COMPRESS_THETA = 10000.0, 160000.0
PARTIAL = 64 / 512
ROUTERS = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid"}
MUST_BE = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "norm_topk_prob": (True,),
    "num_key_value_heads": (1,),
    "n_shared_experts": (1,),
    "topk_method": ("noaux_tc",),
    "n_group": (1, None),
    "topk_group": (1, None),
}
INTEGERS = {"I32": "<i4", "I64": "<i8"}
# Roles of a layer and their other names.
OF_LAYER: Mapping[Role, Sequence[str]] = {
    Role.ATTN_NORM: ("attn_norm.weight",),
    Role.FFN_NORM: ("ffn_norm.weight",),
    Role.LATENT_QUERY: ("attn.wq_a.weight",),
    Role.LATENT_QUERY_NORM: ("attn.q_norm.weight", "self_attn.q_a_norm.weight"),
    Role.ATTN_Q: ("attn.wq_b.weight", "self_attn.q_b_proj.weight"),
    Role.ATTN_K: ("attn.wkv.weight", "self_attn.kv_proj.weight"),
    Role.ATTN_K_NORM: (
        *("attn.kv_norm.weight", "attn.norm.weight"),
        "self_attn.kv_norm.weight",
    ),
    Role.ATTN_SINKS: ("attn.attn_sink",),
    Role.ATTN_GROUPS: ("attn.wo_a.weight", "self_attn.o_a_proj.weight"),
    Role.ATTN_OUTPUT: ("attn.wo_b.weight", "self_attn.o_b_proj.weight"),
    Role.INDEX_ROWS: (
        *("attn.indexer.compressor.wkv.weight", "self_attn.compressor.indexer.kv_proj.weight"),
    ),
    Role.INDEX_GATE: (
        *("attn.indexer.compressor.wgate.weight", "self_attn.compressor.indexer.gate_proj.weight"),
    ),
    Role.INDEX_POSITIONS: (
        *("attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"),
    ),
    Role.INDEX_NORM: (
        *("attn.indexer.compressor.norm.weight", "self_attn.compressor.indexer.kv_norm.weight"),
    ),
    Role.INDEX_QUERY: ("attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight"),
    Role.INDEX_WEIGHTS: (
        "attn.indexer.weights_proj.weight",
        "self_attn.compressor.indexer.scorer.weights_proj.weight",
    ),
    Role.COMPRESS_ROWS: ("attn.compressor.wkv.weight",),
    Role.COMPRESS_GATE: ("attn.compressor.wgate.weight",),
    Role.COMPRESS_POSITIONS: ("attn.compressor.ape", "self_attn.compressor.position_bias"),
    Role.COMPRESS_NORM: ("attn.compressor.norm.weight", "self_attn.compressor.kv_norm.weight"),
    Role.HYPER_ATTN: ("hc_attn_fn",),
    Role.HYPER_ATTN_BASE: ("hc_attn_base",),
    Role.HYPER_ATTN_SCALE: ("hc_attn_scale",),
    Role.HYPER_FFN: ("hc_ffn_fn",),
    Role.HYPER_FFN_BASE: ("hc_ffn_base",),
    Role.HYPER_FFN_SCALE: ("hc_ffn_scale",),
    Role.ROUTER: ("ffn.gate.weight",),
    Role.ROUTER_CHOICE_BIAS: ("ffn.gate.bias",),
    Role.ROUTER_TABLE: ("ffn.gate.tid2eid", "mlp.gate.tid2eid"),
    Role.SHARED_GATE: ("ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight"),
    Role.SHARED_UP: ("ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight"),
    Role.SHARED_DOWN: ("ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight"),
}
OF_MODEL: Mapping[Role, Sequence[str]] = {
    Role.TOKEN_EMBEDDING: ("embed.weight", "embed_tokens.weight"),
    Role.OUTPUT: ("head.weight",),
    Role.OUTPUT_NORM: ("norm.weight",),
    Role.HYPER_HEAD: ("hc_head_fn", "model.hc_head.hc_fn", "hc_head.hc_fn"),
    Role.HYPER_HEAD_BASE: ("hc_head_base", "model.hc_head.hc_base", "hc_head.hc_base"),
    Role.HYPER_HEAD_SCALE: ("hc_head_scale", "model.hc_head.hc_scale", "hc_head.hc_scale"),
}
POSITIONS = (Role.COMPRESS_POSITIONS, Role.INDEX_POSITIONS)
# Of floats here; programs that quantize GGUF files take them for matrices like others.
FLOATS = (*POSITIONS, Role.HYPER_ATTN, Role.HYPER_FFN)
# Names in GGUF files that are other roles' in other families.
GGUF_NAMES = {
    Role.ATTN_Q: "attn_q_b.weight",
    Role.ATTN_K: "attn_kv.weight",
    Role.ATTN_K_NORM: "attn_kv_a_norm.weight",
    Role.ATTN_OUTPUT: "attn_output_b.weight",
}
# Numbers in GGUF files; 4 is the square root of softplus.
GGUF_MUST_BE = {
    "{arch}.expert_gating_func": 4,
    "{arch}.expert_shared_count": 1,
    "num_key_value_heads": 1,
}
LIMITS = ("{arch}.swiglu_clamp_exp", "{arch}.swiglu_clamp_shexp")
SCALING = "{arch}.rope.scaling."
# What scales angles, by its name in a config.json.
SCALING_KEYS = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_values(file, MUST_BE)
    if file.is_gguf:
        check_gguf(file)
    n_layers = n_layers_of(file)
    kinds, rates = kinds_of(file, n_layers), rates_of(file)
    partial = partial_of(file)
    ropes = ropes_of(file, partial)
    attentions = {kind: attention_of(file, kind, rates, ropes[0]) for kind in set(kinds)}
    experts = experts_of(file)
    found = looked_up_layers(file, n_layers)
    layers = [
        Layer(attentions[kind], replace(experts, looks_up=looks_up, choice_bias=not looks_up))
        for kind, looks_up in zip(kinds, found, strict=True)
    ]
    model = model_of(file, NAME, layers, own_kinds=True, ropes=ropes, eps="rms_norm_eps")
    return replace(
        model,
        hyper_streams=file.integer("hc_mult", default=4),
        hyper_iterations=file.integer("hc_sinkhorn_iters", default=20),
        hyper_eps=round_to_f32(file.number("hc_eps", default=1e-6, zero=True)),
    )


def check_gguf(file: ModelFile) -> None:
    """Raise ModelFileError for values of GGUF's own keys that ask for something else."""
    for key, value in GGUF_MUST_BE.items():
        if file.integer(key, default=value, least=0) != value:
            raise file.fail(key, str(value))
    if not file.flag("norm_topk_prob", default=True):
        raise file.fail("norm_topk_prob", "true")
    key, head_dim = "{arch}.attention.value_length", file.integer("head_dim")
    if file.integer(key, default=head_dim) != head_dim:
        raise file.fail(key, f"the length of a key, {head_dim},")
    file.ignore(
        *("{arch}.embedding_length_out", "{arch}.nextn_predict_layers"), "intermediate_size"
    )


def kinds_of(file: ModelFile, n_layers: int) -> list[str]:
    """Return the kind of each layer, one of KINDS."""
    given, ratios = file.raw("layer_types"), file.raw("compress_ratios")
    if given is None and ratios is not None:
        if not isinstance(ratios, list) or len(ratios) < n_layers or {*ratios} - OF_RATIO.keys():
            raise file.fail(
                "compress_ratios", f"{n_layers} times {' or '.join(map(str, OF_RATIO))}"
            )
        return [OF_RATIO[ratio] for ratio in ratios[:n_layers]]
    if given is None:
        return [SPARSE if number > 2 and number % 2 else HEAVY for number in range(n_layers)]
    if not isinstance(given, list) or len(given) < n_layers or {*given} - {*KINDS}:
        raise file.fail("layer_types", f"{n_layers} times {' or '.join(map(repr, KINDS))}")
    return given[:n_layers]


def rates_of(file: ModelFile) -> dict[str, int]:
    """Return how many tokens make an entry, for each kind of layer that has any."""
    given = file.raw("compress_rates")
    if given is not None and not isinstance(given, Mapping):
        raise file.fail("compress_rates", "an object or null")
    fields = Fields(dict(given or RATES), f"{file.source}: compress_rates")
    found = {kind: fields.integer(kind, default=RATES[kind]) for kind in RATES}
    return {kind: file.integer(key, default=found[kind]) for kind, key in RATE_KEYS.items()}


def partial_of(file: ModelFile) -> float:
    """Return which share of a head's dimensions RoPE turns."""
    if file.is_set("partial_rotary_factor"):
        file.ignore("qk_rope_head_dim")
        return file.number("partial_rotary_factor")
    if not file.is_set("qk_rope_head_dim"):
        return PARTIAL
    return file.integer("qk_rope_head_dim") / file.integer("head_dim", default=512)


def ropes_of(file: ModelFile, partial: float) -> tuple[tuple[Rope, ...], int]:
    """Return the angles of layers with a window alone, those of others, and the context."""
    head_dim, context = (
        file.integer("head_dim", default=512),
        file.integer("max_position_embeddings"),
    )
    theta = file.number("{arch}.rope.freq_base" if file.is_gguf else "rope_theta", default=THETA)
    compress_theta = file.number("compress_rope_theta", default=COMPRESS_THETA)
    given = file.raw("rope_parameters") or {}
    scaling = gguf_scaling(file) if file.is_gguf else file.raw("rope_scaling") or {}
    for key, value in (("rope_parameters", given), ("rope_scaling", scaling)):
        if not isinstance(value, Mapping):
            raise file.fail(key, "an object or null")
    settings: list[dict[str, Any]]
    if all(isinstance(given.get(name), Mapping) for name in ("main", "compress")):
        settings = [dict(given[name]) for name in ("main", "compress")]
    else:
        flat = {**scaling, **given}
        flat = {key: value for key, value in flat.items() if value is not None}
        kind = flat.get("rope_type", flat.get("type", "default"))
        if kind == "yarn":  # its cosines and sines are not scaled
            flat.setdefault("attention_factor", 1.0)
        both = {"partial_rotary_factor": partial}
        settings = [both | {"rope_theta": theta}, flat | both | {"rope_theta": compress_theta}]
    ropes, longest = [], context
    for own in settings:
        values = {"max_position_embeddings": context, "rope_parameters": own}
        rope, reach = read_rope(Fields(values, file.source), head_dim, THETA)
        ropes.append(rope)
        longest = max(longest, reach)
    return tuple(ropes), longest


def gguf_scaling(file: ModelFile) -> dict[str, Any]:
    """Return a GGUF file's scaling of angles as a config.json has it."""
    kind = file.text(f"{SCALING}type", default="none")
    if kind not in ("none", "linear", "yarn"):
        raise file.fail(f"{SCALING}type", "none, linear or yarn")
    if kind == "none":
        return {}
    # Readers of these files take the factor of YaRN's cosines and sines out again.
    file.ignore(f"{SCALING}yarn_log_multiplier", f"{SCALING}finetuned")
    found = {name: file.raw(f"{SCALING}{key}") for name, key in SCALING_KEYS.items()}
    return {"rope_type": kind} | {name: one for name, one in found.items() if one is not None}


def attention_of(
    file: ModelFile, kind: str, rates: Mapping[str, int], ropes: Sequence[Rope]
) -> Attention:
    """Return the attention of a kind of layer."""
    chooses, number = kind == SPARSE, int(kind != SLIDING)
    attention = Attention(
        n_heads=file.integer("num_attention_heads"),
        n_kv_heads=1,
        head_dim=file.integer("head_dim", default=512),
        rope=number,
        window=file.integer("sliding_window", default=128),
        sinks=True,
        rope_dim=ropes[number].rotated,
        query_rank=file.integer("q_lora_rank", default=1024),
        shared_rows=True,
        output_groups=file.integer("o_groups", default=8),
        output_rank=file.integer("o_lora_rank", default=1024),
        compress=rates.get(kind, 0),
        overlap=chooses,
        index_topk=file.integer("index_topk", default=512) if chooses else 0,
        index_heads=file.integer("index_n_heads", default=64) if chooses else 0,
        index_dim=file.integer("index_head_dim", default=128) if chooses else 0,
    )
    file.ignore("index_topk", "index_n_heads", "index_head_dim")
    return check_heads(attention, file.source)


def looked_up_layers(file: ModelFile, n_layers: int) -> list[bool]:
    """Return which layers' routers look tokens up."""
    given = file.raw("mlp_layer_types")
    if given is None:
        first = file.integer("num_hash_layers", default=HASH_LAYERS, least=0)
        return [number < first for number in range(n_layers)]
    known = (LOOKED_UP, CHOSEN)
    if not isinstance(given, list) or len(given) < n_layers or {*given} - {*known}:
        raise file.fail("mlp_layer_types", f"{n_layers} times {' or '.join(map(repr, known))}")
    return [kind == LOOKED_UP for kind in given[:n_layers]]


def experts_of(file: ModelFile) -> Experts:
    """Return the experts, of which routers choose by scores."""
    size = file.integer("moe_intermediate_size", default=2048)
    usual = "sqrtsoftplus"
    scoring = usual if file.is_gguf else file.text("scoring_func", default=usual)
    if scoring not in ROUTERS:
        raise file.fail("scoring_func", " or ".join(map(repr, ROUTERS)))
    limit = gguf_limit(file) if file.is_gguf else file.number("swiglu_limit", default=10.0)
    limit = round_to_f32(limit)
    return Experts(
        n=file.integer("n_routed_experts", default=256),
        n_used=file.integer("num_experts_per_tok", default=6),
        size=size,
        router=ROUTERS[scoring],
        renormalize=True,
        denominator_eps=EPS,
        scale=round_to_f32(file.number("routed_scaling_factor", default=1.5)),
        activation="limited",
        limit=limit,
        shared_limit=limit,
        shared_size=size,
    )


def gguf_limit(file: ModelFile) -> float:
    """Return the limit of experts, which a GGUF file has for each layer and twice."""
    found = [file.raw(key) for key in LIMITS]
    lists = [one if isinstance(one, list) else [one] for one in found if one is not None]
    values = {value for one in lists for value in one}
    if len(values) != 1 or not all(isinstance(value, float) and value > 0 for value in values):
        raise file.fail(LIMITS[0], "one positive number for every layer")
    return float(values.pop())


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, stack experts, drop the layers that guess further tokens."""
    for name in list(tensors.out):
        if name.startswith(("mtp.", "model.mtp.")):
            tensors.drop(name)
        elif name.startswith("layers."):
            tensors.rename(name, f"model.{name}")
    tensors.drop_layers_from(config.n_layers)
    for role, names in OF_MODEL.items():
        for name in names:
            tensors.rename(name, tensors.usual(role))
    for number in range(config.n_layers):
        for role, names in OF_LAYER.items():
            for name in names:
                tensors.rename(f"model.layers.{number}.{name}", tensors.usual(role, number))
    for number, experts in layers_of_experts(config):
        stack_hf_experts(tensors, number, experts, "ffn.experts", ("w1", "w3", "w2"))
        stack_hf_experts(tensors, number, experts)
    ravel_tables(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, make matrices of experts, leave out what only images need."""
    for number in range(config.n_layers):
        for role, name in GGUF_NAMES.items():
            tensors.rename(f"blk.{number}.{name}", tensors.usual(role, number))
        tensors.flatten(tensors.usual(Role.ATTN_GROUPS, number))
        for role in FLOATS:
            tensors.decode(tensors.usual(role, number))
        tensors.drop(f"blk.{number}.exp_probs_b_vl.bias")
    tensors.decode(tensors.usual(Role.HYPER_HEAD))
    flatten_gguf_experts(tensors, config)
    ravel_tables(tensors, config)


def ravel_tables(tensors: Rearranged, config: ModelConfig) -> None:
    """Make vectors of positions and of the tables of routers that look tokens up."""
    for number in range(config.n_layers):
        for role in POSITIONS:
            tensors.ravel(tensors.usual(role, number))
    for number, experts in layers_of_experts(config):
        if experts.looks_up:
            take_table(tensors, tensors.usual(Role.ROUTER_TABLE, number))
            tensors.drop(tensors.usual(Role.ROUTER_CHOICE_BIAS, number))


def take_table(tensors: Rearranged, name: str) -> None:
    """Make float32 values of the numbers of tokens' experts, in one row."""
    source = tensors.out.get(name)
    if source is None:
        return
    kind = source.type.name if isinstance(source.type, TensorType) else source.type
    if kind == "F32":
        tensors.ravel(name)
        return
    if kind not in INTEGERS:
        raise ModelFileError(
            f"{source.where}: tensor {name!r} is {shown(source)}; whole numbers are needed"
        )
    numbers = np.frombuffer(source.view(), INTEGERS[kind]).astype("<f4")
    data, shape = memoryview(numbers.tobytes()), (prod(source.shape),)
    tensors.out[name] = replace(source, shape=shape, type=TensorType.F32, data=data)


FAMILY = Family(
    NAME,
    program,
    "deepseek4",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
