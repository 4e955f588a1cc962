"""DeepSeek V3, R1, V3.1 and Kimi K2: latent attention, sigmoid experts with bias and groups."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.common import check_values, model_of
from lanewise.loading.families.experts import mixture_of, routed_experts_of, sparse_from
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_tensors, latent_attention_of
from lanewise.loading.programs.model_file import ModelFile

MUST_BE = {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}


def program(file: ModelFile) -> ModelConfig:
    """Read config.json; in GGUF files it is deepseek2."""
    first = file.integer("first_k_dense_replace", default=3, least=0)
    return deepseek_of(file, "deepseek_v3", first)


def deepseek_of(file: ModelFile, name: str, first: int) -> ModelConfig:
    """Return the program; layers from number ``first`` on have experts."""
    check_values(file, MUST_BE)
    experts = routed_experts_of(file, "sigmoid", renormalize=True)
    layers = mixture_of(file, latent_attention_of(file), experts, sparse_from(file, first))
    return model_of(file, name, layers)


def first_sparse_of(file: ModelFile, default: int) -> int:
    """Return the first layer with experts, from each layer's kind or the number of dense layers."""
    first, key = file.integer("first_k_dense_replace", default=default, least=0), "mlp_layer_types"
    kinds = file.raw(key)
    if isinstance(kinds, list):
        first = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    n_layers = file.integer("num_hidden_layers")
    usual = ["dense"] * first + ["sparse"] * (n_layers - first)
    if kinds not in (None, usual):
        raise file.fail(key, f"{n_layers} times 'dense' or, from some layer on, 'sparse'")
    return first


FAMILY = Family(
    "deepseek_v3",
    program=program,
    hf_tensors=hf_latent_tensors,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
    has_mtp=True,
)
