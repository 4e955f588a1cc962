"""A tiny model that sees, as a directory with all that a server needs: tokenizer, template, tiles.

What transformers answers about pictures is in tests/golden/images/answers.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from family_models import write_model
from lanewise.loading.vocabulary.byte_letters import BYTE_OF_CHAR
from tower_models import IMAGE, tower_model

N_BYTES = 200  # of which the vocabulary has tokens: all of ASCII
END = 253
NAMES = {
    IMAGE: "<image>",
    251: "<fake_token_around_image>",
    252: "<global-img>",
    END: "<end_of_utterance>",
    254: "<|im_start|>",
    255: "<|im_end|>",
}
PREPROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "do_image_splitting": True,
    "size": {"longest_edge": 64},
    "max_image_size": {"longest_edge": 32},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 1,
}
# As SmolVLM's, which reads lists of parts and nothing else.
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def tokenizer() -> Tokenizer:
    """Bytes, places of tiles and the names of control tokens; 256 in all."""
    vocab = {char: byte for char, byte in BYTE_OF_CHAR.items() if byte < N_BYTES}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    others = [f"<unused{i}>" for i in range(IMAGE - N_BYTES - len(tiles))]
    names = [*tiles, *others, *(NAMES[i] for i in sorted(NAMES))]
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    assert made.token_to_id("<image>") == IMAGE
    return made


def write_seeing_model(folder: Path) -> Path:
    """The directory of the model."""
    write_model(tower_model("idefics3"), folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "chat_template": TEMPLATE,
        "eos_token": "<end_of_utterance>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END]}))
    return folder
