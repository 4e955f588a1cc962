"""DistilBERT: BERT of fewer layers, without types of tokens; GGUF files of it name BERT's."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig, Plain
from lanewise.loading.families.bert import POSITIONS
from lanewise.loading.families.common import curve
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    classifier_pooling,
    encoder_attention,
    encoder_family,
    give_outside_layers,
    give_post_norm_layers,
    post_norm_model,
)
from lanewise.loading.files.rearranging import Rearranged, without_prefixes
from lanewise.loading.programs.model_file import ModelFile

PREFIXES = ("distilbert.",)
OWN_KEYS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
OF_LAYER = {
    "attention.q_lin": Role.ATTN_Q,
    "attention.k_lin": Role.ATTN_K,
    "attention.v_lin": Role.ATTN_V,
    "attention.out_lin": Role.ATTN_OUTPUT,
    "sa_layer_norm": Role.FFN_NORM,
    "ffn.lin1": Role.FFN_UP,
    "ffn.lin2": Role.FFN_DOWN,
}
HEADS = ("pre_classifier", CLASSIFIER)


def program(file: ModelFile) -> ModelConfig:
    """Read config.json."""
    file = file.called(OWN_KEYS)
    file.ignore("sinusoidal_pos_embds")  # the table of positions is in the file all the same
    size, hidden = file.integer("intermediate_size"), file.integer("hidden_size")
    tensors = without_prefixes(file.tensors, PREFIXES)
    model = post_norm_model(
        *(file, "distilbert", encoder_attention(file)),
        Plain(size, True, curve(file, "hidden_act", "gelu")),
        file.integer("max_position_embeddings"),
        classifier_pooling(tensors, hidden, activation="relu"),
    )
    return replace(model, learned_positions=True)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; the norm after a layer becomes the norm before the next one."""
    tensors.remove_prefixes(*PREFIXES)
    give_outside_layers(tensors, config, HEADS)
    tensors.rename(POSITIONS, tensors.usual(Role.POSITION_EMBEDDING))
    give_post_norm_layers(tensors, config, "transformer.layer.{}.", OF_LAYER, "output_layer_norm")


FAMILY = encoder_family("distilbert", program, hf_tensors)
