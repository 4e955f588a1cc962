"""GLM-4.7-Flash: DeepSeek V3's layers, the first one dense."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.deepseek_v3 import deepseek_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_tensors
from lanewise.loading.programs.model_file import ModelFile

KEY = "mlp_layer_types"


def program(file: ModelFile) -> ModelConfig:
    """Read config.json, which has each layer's kind or the number of dense layers.

    In GGUF files it is deepseek2.
    """
    first = file.integer("first_k_dense_replace", default=1, least=0)
    kinds = file.raw(KEY)
    if isinstance(kinds, list):
        first = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    n_layers = file.integer("num_hidden_layers")
    usual = ["dense"] * first + ["sparse"] * (n_layers - first)
    if kinds not in (None, usual):
        raise file.fail(KEY, f"{n_layers} times 'dense' or, from some layer on, 'sparse'")
    return deepseek_of(file, "glm4_moe_lite", first)


FAMILY = Family(
    "glm4_moe_lite",
    program=program,
    hf_tensors=hf_latent_tensors,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
