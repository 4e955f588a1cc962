"""GLM-4.7-Flash: the layers of DeepSeek V3, the first one dense."""

from __future__ import annotations

from lanewise.loading.families.deepseek_v3 import config_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_tensors
from lanewise.loading.json_files import Fields
from lanewise.loading.program import ModelConfig
from lanewise.loading.sources import Sources

KEY = "mlp_layer_types"


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json, which names the kind of each layer or the number of dense ones."""
    first = fields.integer("first_k_dense_replace", default=1, least=0)
    kinds = fields.raw(KEY)
    if isinstance(kinds, list):
        first = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    n_layers = fields.integer("num_hidden_layers")
    usual = ["dense"] * first + ["sparse"] * (n_layers - first)
    if kinds not in (None, usual):
        raise fields.fail(KEY, f"{n_layers} times 'dense' or, from some layer on, 'sparse'")
    return config_of(fields, sources, "glm4_moe_lite", first)


FAMILY = Family(
    "glm4_moe_lite",
    from_hf,
    hf_tensors=hf_latent_tensors,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
