"""A tokenizer small enough for tests, of the same class as real ones: bytes and a few merges."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lanewise.loading.vocabulary.byte_letters import BYTE_OF_CHAR
from lanewise.text.backend import Backend
from lanewise.text.tokenizer import Tokenizer as LanewiseTokenizer

SPECIAL = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("e", "r"))
TEMPLATE = (
    "<s>{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PADDING = 7  # rows the model has beyond the tokenizer's ids


def toy_tokenizer(more_special: tuple[str, ...] = ()) -> LanewiseTokenizer:
    char_of_byte = {byte: char for char, byte in BYTE_OF_CHAR.items()}
    vocab = {char_of_byte[byte]: byte for byte in range(256)}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(name, special=True) for name in (*SPECIAL, *more_special)])
    bos, eos = bpe.token_to_id("<s>"), bpe.token_to_id("</s>")
    backend = Backend(
        tokenizer=bpe,
        ids=frozenset(bpe.get_vocab().values()),
        bos_id=bos,
        eos_ids=frozenset([eos]),
        add_bos=True,
        byte_level=True,
        strips_leading_space=False,
        raw_ids=frozenset(bpe.get_added_tokens_decoder()),
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        templates={"default": TEMPLATE},
    )
    return LanewiseTokenizer(backend, bpe.get_vocab_size() + PADDING, "toy")
