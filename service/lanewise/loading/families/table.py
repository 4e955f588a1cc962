"""The table of families; a new family is a file and a row."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.families import (
    apertus,
    arcee,
    bailing_hybrid,
    bailing_moe,
    bert,
    bitnet,
    cohere,
    cohere2,
    deberta_v2,
    deepseek_v2,
    deepseek_v3,
    deepseek_v4,
    deepseek_v32,
    distilbert,
    embedding_gemma2,
    ernie4_5,
    ernie4_5_moe,
    eurobert,
    exaone4,
    falcon,
    falcon_h1,
    gemma,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    glm,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    glm_moe_dsa,
    gpt2,
    gpt_bigcode,
    gpt_neox,
    gpt_oss,
    granite,
    granite_swa,
    granitemoe,
    granitemoe_swa,
    granitemoehybrid,
    gte,
    hunyuan_v1_dense,
    internlm3,
    jina_embeddings_v3,
    kimi_linear,
    laguna,
    lfm2,
    lfm2_moe,
    lfm3,
    llama,
    llama4,
    mellum,
    mimo_v2_flash,
    minicpm,
    minicpm3,
    minimax_m2,
    minimax_m3,
    ministral3,
    mistral,
    mistral4,
    mixtral,
    modernbert,
    mpnet,
    muse_glimmer,
    nemotron,
    nemotron_h,
    nomic_bert,
    olmo,
    olmo2,
    olmo3,
    olmoe,
    phi,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    roberta,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
    step3p7,
    xlm_roberta,
    youtu,
)
from lanewise.loading.families.family import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    llama4.FAMILY,
    mistral.FAMILY,
    mixtral.FAMILY,
    ministral3.FAMILY,
    mistral4.FAMILY,
    qwen2.FAMILY,
    qwen2_moe.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
    qwen3_next.FAMILY,
    qwen3_5.FAMILY,
    qwen3_5_moe.FAMILY,
    kimi_linear.FAMILY,
    gpt_oss.FAMILY,
    phi3.FAMILY,
    granite.FAMILY,
    granitemoe.FAMILY,
    granitemoehybrid.FAMILY,
    granite_swa.FAMILY,
    granitemoe_swa.FAMILY,
    gemma.FAMILY,
    gemma3.FAMILY,
    glm.FAMILY,
    glm4.FAMILY,
    glm4_moe.FAMILY,
    glm4_moe_lite.FAMILY,
    glm_moe_dsa.FAMILY,
    ernie4_5.FAMILY,
    ernie4_5_moe.FAMILY,
    olmoe.FAMILY,
    minimax_m2.FAMILY,
    minimax_m3.FAMILY,
    bailing_moe.FAMILY,
    bailing_hybrid.FAMILY,
    mellum.FAMILY,
    laguna.FAMILY,
    mimo_v2_flash.FAMILY,
    step3p7.FAMILY,
    smollm3.FAMILY,
    seed_oss.FAMILY,
    arcee.FAMILY,
    bitnet.FAMILY,
    internlm3.FAMILY,
    minicpm.FAMILY,
    minicpm3.FAMILY,
    nemotron.FAMILY,
    stablelm.FAMILY,
    starcoder2.FAMILY,
    gemma2.FAMILY,
    gemma3n.FAMILY,
    gemma4.FAMILY,
    muse_glimmer.FAMILY,
    olmo.FAMILY,
    olmo2.FAMILY,
    olmo3.FAMILY,
    exaone4.FAMILY,
    hunyuan_v1_dense.FAMILY,
    apertus.FAMILY,
    cohere.FAMILY,
    cohere2.FAMILY,
    phi.FAMILY,
    gpt_neox.FAMILY,
    falcon.FAMILY,
    gpt2.FAMILY,
    gpt_bigcode.FAMILY,
    lfm2.FAMILY,
    lfm2_moe.FAMILY,
    lfm3.FAMILY,
    nemotron_h.FAMILY,
    falcon_h1.FAMILY,
    deepseek_v2.FAMILY,
    deepseek_v3.FAMILY,
    deepseek_v32.FAMILY,
    deepseek_v4.FAMILY,
    youtu.FAMILY,
    bert.FAMILY,
    roberta.FAMILY,
    xlm_roberta.FAMILY,
    modernbert.FAMILY,
    nomic_bert.FAMILY,
    gte.FAMILY,
    jina_embeddings_v3.FAMILY,
    mpnet.FAMILY,
    distilbert.FAMILY,
    eurobert.FAMILY,
    deberta_v2.FAMILY,
    embedding_gemma2.FAMILY,
)


# Reasons why other architectures are not supported.
STATES, DECODED = (
    "it has layers with a recurrent state of a kind that is not supported",
    "it is an encoder-decoder model",
)
REASONS = {
    STATES: (
        *("mamba", "mamba2", "rwkv", "rwkv6", "rwkv7", "jamba"),
        "plamo2",
    ),
    DECODED: ("t5", "t5encoder"),
    "it is DeepSeek V4 without fields that change answers; with these it is deepseek_v4": (
        "deepseek_ref",
    ),
    "it writes blocks of tokens by diffusion, which is not supported": (
        *("diffusion_gemma", "diffusion_gemma_text", "diffusion-gemma"),
    ),
    "it is multimodal, and its language model is of no supported family": (
        *("clip", "siglip", "whisper", "qwen2_vl", "qwen2vl", "qwen2_5_vl", "mllama"),
    ),
}
# Other names in files for a family, by transformers' name.
OTHER_NAMES = {
    "new": gte.FAMILY,
    **dict.fromkeys(("RefinedWeb", "RefinedWebModel"), falcon.FAMILY),
    "gemma4_unified_text": gemma4.FAMILY,
    "bailing_moe_v2": bailing_moe.FAMILY,
    "kimi_k2": deepseek_v3.FAMILY,
    "minimax_m3": minimax_m3.FAMILY,
    "step3p5": step3p7.FAMILY,
    "llama_bidirec": llama.BOTH_WAYS,
    "qwen3_5": qwen3_5.FAMILY,
    "qwen3_5_moe": qwen3_5_moe.FAMILY,
    "qwen3_vl_text": qwen3.FAMILY,
    "qwen3_vl_moe_text": qwen3_moe.FAMILY,
}
OTHER_GGUF_NAMES = {
    **dict.fromkeys(("bitnet-b1.58", "bitnet-25"), bitnet.FAMILY),
    "jina-bert-v2": bert.JINA,
    "gemma-embedding": gemma3.EMBEDDING,
    "llama-embed": llama.BOTH_WAYS,
    "nemotron_h_moe": nemotron_h.FAMILY,
    "nomic-bert-moe": nomic_bert.MOE,
    "qwen3vl": qwen3.FAMILY,
    "qwen3vlmoe": qwen3_moe.FAMILY,
}
REASON_OF = {name: reason for reason, names in REASONS.items() for name in names}


def hf_family(model_type: str, source: str) -> Family:
    """Return the family of a config.json's model_type; ModelFileError if unsupported."""
    known = {family.name: family for family in FAMILIES} | OTHER_NAMES
    if model_type not in known:
        raise ModelFileError(
            f"{source}: model_type {model_type!r} is not supported{_why(model_type)};"
            f" accepted are {', '.join(known)}"
        )
    return known[model_type]


def gguf_family(architecture: str, source: str) -> Family:
    """Return the family of a GGUF file's general.architecture; ModelFileError if unsupported."""
    known = {family.gguf: family for family in FAMILIES if family.gguf} | OTHER_GGUF_NAMES
    if architecture not in known:
        raise ModelFileError(
            f"{source}: general.architecture {architecture!r} is not supported{_why(architecture)};"
            f" accepted are {', '.join(known)}"
        )
    return known[architecture]


def family_named(architecture: str) -> Family:
    """Return the family that a ModelConfig names; KeyError if there is none."""
    return {family.name: family for family in FAMILIES}[architecture]


def _why(name: str) -> str:
    return f": {REASON_OF[name]}" if name in REASON_OF else ""
