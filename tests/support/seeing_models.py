"""Tiny models that see, as directories with all that a server needs: tokenizer, template, sizes.

What transformers answers about pictures is in tests/golden/images/answers.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from family_models import Arrays, FamilyModel, values_of, write_model
from lanewise.loading.vocabulary.byte_letters import BYTE_OF_CHAR
from tower_models import IMAGE, tower_model

N_BYTES = 200  # of which the vocabulary has tokens: all of ASCII
N_TOKENS = 256
# As SmolVLM's, which reads lists of parts and nothing else.
LISTS = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def _template(image: str) -> str:
    """One that reads texts too, and writes this for an image."""
    return (
        "{% for message in messages %}{{ message.role }}:"
        "{% if message.content is string %}{{ message.content }}{% else %}"
        "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% else %}" + image + "{% endif %}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )


@dataclass(frozen=True)
class Seeing:
    """What makes a tower's case a model for a server."""

    names: dict[int, str]  # of control tokens
    preprocessor: dict[str, Any]
    template: str
    end: int
    tile: str = "<row_{}_col_{}>"  # names of control tokens too

    @property
    def tiles(self) -> list[str]:
        """Names of six rows and columns of tiles."""
        return [self.tile.format(row, column) for row in range(1, 7) for column in range(1, 7)]


SEEING = {
    "idefics3": Seeing(
        {
            IMAGE: "<image>",
            251: "<fake_token_around_image>",
            252: "<global-img>",
            253: "<end_of_utterance>",
            254: "<|im_start|>",
            255: "<|im_end|>",
        },
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "do_image_splitting": True,
            "size": {"longest_edge": 64},
            "max_image_size": {"longest_edge": 32},
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "resample": 1,
        },
        LISTS,
        253,
    ),
    "gemma3": Seeing(
        {IMAGE: "<image_soft_token>", 251: "<start_of_image>", 252: "<end_of_image>", 255: "<eos>"},
        {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        _template("<start_of_image>"),
        255,
    ),
    "qwen3_5": Seeing(
        {
            IMAGE: "<|image_pad|>",
            251: "<|video_pad|>",
            252: "<|vision_start|>",
            253: "<|vision_end|>",
            255: "<|im_end|>",
        },
        {"size": {"shortest_edge": 256, "longest_edge": 4096}, "patch_size": 4, "merge_size": 2},
        _template("<|vision_start|><|image_pad|><|vision_end|>"),
        255,
    ),
    "gemma4": Seeing(
        {IMAGE: "<|image|>", 251: "<|image>", 252: "<image|>", 255: "<eos>"},
        {"max_soft_tokens": 70, "patch_size": 4, "pooling_kernel_size": 3},
        _template("<|image|>"),
        255,
    ),
    "lfm2_vl": Seeing(
        {
            IMAGE: "<image>",
            251: "<|image_start|>",
            252: "<|image_end|>",
            253: "<|img_thumbnail|>",
            255: "<|im_end|>",
        },
        {"tile_size": 24, "min_image_tokens": 4, "max_image_tokens": 9},
        _template("<image>"),
        255,
        "<|img_row_{}_col_{}|>",
    ),
    "mistral3": Seeing(
        {IMAGE: "[IMG]", 251: "[IMG_BREAK]", 252: "[IMG_END]", 255: "</s>"},
        {"size": {"longest_edge": 48}},
        _template("[IMG]"),
        255,
    ),
}

SEEING["gemma4_large"] = SEEING["gemma4_unified"] = SEEING["gemma4"]
SEEING["qwen3_vl"] = SEEING["qwen3_5"]


def tokenizer(family: str = "idefics3") -> Tokenizer:
    """Bytes, places of tiles and the names of control tokens; 256 in all."""
    vocab = {char: byte for char, byte in BYTE_OF_CHAR.items() if byte < N_BYTES}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    known = SEEING[family].names | dict(enumerate(SEEING[family].tiles, N_BYTES))
    names = [known.get(i, f"<unused{i}>") for i in range(N_BYTES, N_TOKENS)]
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    assert made.token_to_id(known[IMAGE]) == IMAGE
    return made


def guessing_head(model: FamilyModel) -> Arrays:
    """A head of Qwen 3.5's kind that predicts further tokens, like the last layer."""
    last, hidden = "model.language_model.layers.3.", model.config["text_config"]["hidden_size"]
    shapes = {
        name.replace(last, "mtp.layers.0."): tensor.shape
        for name, tensor in model.tensors.items()
        if name.startswith(last)
    }
    norms = "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"
    shapes |= {f"mtp.{name}.weight": (hidden,) for name in norms}
    shapes |= {"mtp.fc.weight": (hidden, 2 * hidden)}
    return {name: values_of(name, shape) for name, shape in shapes.items()}


def with_head(model: FamilyModel, wide: int = 1 << 13) -> FamilyModel:
    """The same model with a head, and with FFNs so wide that a row more costs a step little.

    The further values are zeros.
    """
    tensors = model.tensors | guessing_head(model)
    for name, tensor in tensors.items():
        if ".mlp." in name and "visual" not in name:
            axis = 1 if "down" in name else 0
            more = [(0, 0), (0, 0)]
            more[axis] = (0, wide - tensor.shape[axis])
            tensors[name] = np.pad(tensor, more)
    text = model.config["text_config"] | {"intermediate_size": wide}
    return replace(model, tensors=tensors, config=model.config | {"text_config": text})


def write_seeing_model(folder: Path, family: str = "idefics3", head: bool = False) -> Path:
    """The directory of a model, perhaps with a head that guesses."""
    seeing = SEEING[family]
    model = with_head(tower_model(family)) if head else tower_model(family)
    config = model.config
    if family in ("gemma4_large", "gemma4_unified"):  # all of an image is within a window
        config = config | {"text_config": config["text_config"] | {"sliding_window": 96}}
    write_model(model, folder, config)
    tokenizer(family).save(str(folder / "tokenizer.json"))
    config = {
        "chat_template": seeing.template,
        "eos_token": seeing.names[seeing.end],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(seeing.preprocessor))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [seeing.end]}))
    return folder
