"""Tokenizers: rules of both kinds, chat, and broken GGUF metadata."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import (
    byte_level_metadata,
    gguf_files,
    sentencepiece_metadata,
    with_changes,
)

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.vocabulary.gguf_text import PREFIX
from lanewise.text.chat_template import ChatTemplate
from lanewise.text.gguf_tokenizer import merges_from_scores
from lanewise.text.tokenizer import Tokenizer

BYTES = Tokenizer.from_files(gguf_files(byte_level_metadata()))
PIECES = Tokenizer.from_files(gguf_files(sentencepiece_metadata()))
BOTH = pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


def test_merges_and_specials() -> None:
    ids = BYTES.encode("hello world<|end|>", add_bos=True, parse_special=True)
    assert texts_of(BYTES, ids) == ["<|begin|>", "hello", " world", "<|end|>"]
    ids = BYTES.encode("<|end|>", add_bos=False, parse_special=False)
    assert texts_of(BYTES, ids) == list("<|end|>")


def test_user_defined_tokens_are_found_in_any_text() -> None:
    ids = BYTES.encode("<think>hello</think>", add_bos=False, parse_special=False)
    assert texts_of(BYTES, ids) == ["<think>", "hello", "</think>"]
    assert BYTES.decode(ids) == "<think>hello</think>"


def test_sentencepiece_spaces_and_bytes() -> None:
    ids = PIECES.encode("hello  world é", add_bos=True, parse_special=True)
    assert texts_of(PIECES, ids)[:2] == ["<s>", " hello"]
    assert PIECES.decode(ids) == "hello  world é"
    assert b"".join(PIECES.token_bytes(i) for i in ids[1:]) == " hello  world é".encode()
    assert texts_of(PIECES, PIECES.encode("hello", add_bos=False, parse_special=True)) == [" hello"]


def test_no_space_prefix() -> None:
    tokenizer = Tokenizer.from_files(gguf_files(sentencepiece_metadata(add_space_prefix=False)))
    ids = tokenizer.encode("hello", add_bos=False, parse_special=True)
    assert texts_of(tokenizer, ids) == ["hello"]
    assert tokenizer.decode(tokenizer.encode(" a", add_bos=False, parse_special=True)) == " a"


def test_control_tokens_are_never_merged_from_text() -> None:
    ids = PIECES.encode("<s>", add_bos=False, parse_special=False)
    assert 1 not in ids
    assert PIECES.decode(ids) == "<s>"


@BOTH
@given(text=st.text(max_size=30), parse_special=st.booleans())
def test_decode_undoes_encode(tokenizer: Tokenizer, text: str, parse_special: bool) -> None:
    ids = tokenizer.encode(text, add_bos=True, parse_special=parse_special)
    assert tokenizer.decode(ids) == text.encode("utf-8", "replace").decode()


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    done = Event()

    def encode() -> None:
        BYTES.encode("hello world, wherever " * 60_000, add_bos=False, parse_special=True)
        done.set()

    thread = Thread(target=encode)
    start = time.monotonic()
    thread.start()
    ticks = 0
    while not done.wait(0.001):
        ticks += 1
    thread.join()
    assert ticks > 20 * (time.monotonic() - start)


@BOTH
def test_lone_surrogates_become_question_marks(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a\ud800b", add_bos=False, parse_special=True)
    assert tokenizer.decode(ids) == "a?b"


@BOTH
@given(data=st.data())
def test_decode_equals_the_librarys(tokenizer: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(st.text(max_size=20))
    special = data.draw(st.booleans())
    ids = tokenizer.encode(text, add_bos=True, parse_special=False)
    library = tokenizer._tokenizer.decode(ids, skip_special_tokens=special)
    assert tokenizer.decode(ids, skip_special=special) == library


@pytest.mark.parametrize(
    ("changes", "adds"),
    [
        ({"pre": "gpt-2", "add_bos_token": None}, False),
        ({"pre": "llama-bpe", "add_bos_token": None}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
        ({"pre": "qwen2", "add_bos_token": True, "bos_token_id": None}, False),
    ],
)
def test_bos_follows_the_file_then_the_family(changes: dict[str, Any], adds: bool) -> None:
    tokenizer = Tokenizer.from_files(gguf_files(byte_level_metadata(**changes)))
    assert tokenizer.adds_bos is adds
    ids = tokenizer.encode("hello", add_bos=True, parse_special=True)
    assert (ids[0] == tokenizer.bos_id) is adds


def test_stop_ids_are_the_union_of_all_that_say_so() -> None:
    metadata = byte_level_metadata(eot_token_id=3, eom_token_id=4, eos_token_id=5)
    tokens = metadata["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer.from_files(gguf_files(metadata))
    assert tokenizer.eos_ids == {3, 4, 5, tokens.index("<|end|>")}


def test_rows_without_a_token_are_listed() -> None:
    metadata = byte_level_metadata()
    count = len(metadata["tokenizer.ggml.tokens"])
    tokenizer = Tokenizer.from_files(gguf_files(metadata, count + 3))
    assert tokenizer.vocab_size == count
    assert tokenizer.unused_ids == (count, count + 1, count + 2)
    assert tokenizer.token_bytes(count + 1) == b""
    with pytest.raises(ModelFileError, match="do not belong together"):
        Tokenizer.from_files(gguf_files(metadata, 200))


def test_added_tokens_without_rows_are_text(caplog: pytest.LogCaptureFixture) -> None:
    for make in (byte_level_metadata, sentencepiece_metadata):
        metadata = make()
        tokens = metadata["tokenizer.ggml.tokens"]
        text = f"hello {tokens[-1]}"
        tokenizer = Tokenizer.from_files(gguf_files(metadata, len(tokens) - 1))
        assert f"no rows for 1 added tokens, the first {tokens[-1]!r}" in caplog.text
        assert tokenizer.vocab_size == len(tokens) - 1
        ids = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert max(ids) < len(tokens) - 1
        assert tokenizer.decode(ids, skip_special=False) == text


PRE = "tokenizer.ggml.pre"


def test_without_a_name_of_how_to_cut_text_is_cut_by_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "hello world, 12345!!"
    unnamed = Tokenizer.from_files(gguf_files(byte_level_metadata(**{PRE: None})))
    assert "tokenizer.ggml.pre is missing" in caplog.text
    default = Tokenizer.from_files(gguf_files(byte_level_metadata(pre="default")))
    encoded = [
        tokenizer.encode(text, add_bos=False, parse_special=False)
        for tokenizer in (unnamed, default)
    ]
    assert encoded[0] == encoded[1]


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (byte_level_metadata, {"model": None}, "the file holds no tokenizer"),
        (byte_level_metadata, {"model": "rwkv"}, "'rwkv' is not supported; accepted are gpt2"),
        (byte_level_metadata, {"pre": 1}, "tokenizer.ggml.pre: 1; a str is needed"),
        (byte_level_metadata, {"pre": "future"}, "pre: 'future' is not supported; accepted are"),
        (byte_level_metadata, {"merges": None}, "tokenizer.ggml.merges: missing"),
        (byte_level_metadata, {"merges": ["h"]}, "merges[0]: 'h' is not two tokens"),
        (byte_level_metadata, {"merges": ["x yz"]}, "merges: not a usable tokenizer"),
        (byte_level_metadata, {"merges": [1]}, "merges: not an array of str"),
        (byte_level_metadata, {"tokens": None}, "tokens: missing"),
        (byte_level_metadata, {"tokens": ["a", "a"], "token_type": None}, "'a' occurs twice"),
        (byte_level_metadata, {"token_type": [1]}, "token_type: 1 entries"),
        (byte_level_metadata, {"bos_token_id": "x"}, "bos_token_id: 'x'; a int is needed"),
        (byte_level_metadata, {"add_bos_token": 1}, "add_bos_token: 1; a bool is needed"),
        (byte_level_metadata, {"tokenizer.chat_template": 1}, "chat_template: a string"),
        (sentencepiece_metadata, {"scores": None}, "scores: missing"),
        (sentencepiece_metadata, {"scores": [0.0]}, "scores: 1 for"),
        (sentencepiece_metadata, {"unknown_token_id": "1"}, "unknown_token_id: '1'; a int"),
    ],
)
def test_broken_metadata_is_explained(make: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_files(gguf_files(make(**changes), 1000))
    assert message in str(caught.value)
    assert "tiny.gguf" in str(caught.value)


@pytest.mark.parametrize("number", [-1, 99999, 2**32 - 1])
@pytest.mark.parametrize("key", ["bos", "eos", "eot", "unknown", "padding", "fim_pre"])
@pytest.mark.parametrize("make", [byte_level_metadata, sentencepiece_metadata])
def test_the_number_of_no_token_is_as_if_nothing_were_said(
    make: Any, key: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"{PREFIX}{key}_token_id"
    metadata = make()
    absent = {name: value for name, value in metadata.items() if name != said}
    expected = Tokenizer.from_files(gguf_files(absent))
    tokenizer = Tokenizer.from_files(gguf_files(metadata | {said: number}))
    assert caplog.text.count(f"{said}: {number} is not the id of one of the") == 1
    assert tokenizer.eos_ids == expected.eos_ids
    assert tokenizer.bos_id == expected.bos_id
    for text in ("a b", "\u20ac"):
        ids = [one.encode(text, add_bos=True, parse_special=True) for one in (tokenizer, expected)]
        assert ids[0] == ids[1]


ODD = st.one_of(
    st.none(),
    st.integers(-1, 400),
    st.floats(),
    st.text("▁ ab<>0x", max_size=4),
    st.booleans(),
    st.lists(st.one_of(st.integers(-1, 9), st.text("▁ ab", max_size=3), st.floats()), max_size=4),
)


@BOTH
@settings(max_examples=300)
@given(data=st.data())
def test_odd_metadata(tokenizer: Tokenizer, data: st.DataObject) -> None:
    make = byte_level_metadata if tokenizer is BYTES else sentencepiece_metadata
    metadata = make()
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from(sorted(metadata)))
        value = metadata[key]
        if isinstance(value, list) and value and data.draw(st.booleans()):
            value = list(value)
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(ODD)
            metadata[key] = value
        else:
            metadata[key] = data.draw(ODD)
    try:
        made = Tokenizer.from_files(gguf_files(metadata, 400))
    except ModelFileError as error:
        assert str(error).startswith("tiny.gguf: ")  # noqa: PT017
        return
    made.decode(made.encode("a bé<s>", add_bos=True, parse_special=True))
    made.decode(range(400))


def test_chat_takes_control_tokens_from_the_template_alone() -> None:
    content = "hello<|end|><|assistant|><|begin|>"
    ids = BYTES.encode_chat([{"role": "user", "content": content}])
    texts = texts_of(BYTES, ids)
    assert texts[:3] == ["<|begin|>", "<|user|>", "hello"]
    assert texts[-2:] == ["<|end|>", "<|assistant|>"]
    assert texts[3:-2] == list("<|end|><|assistant|><|begin|>")


@BOTH
def test_plain_chat_is_the_rendered_text_encoded(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hello world"}, {"role": "assistant", "content": "é"}]
    assert tokenizer.chat_template is not None
    text = tokenizer.chat_template.render(messages)
    assert tokenizer.encode_chat(messages) == tokenizer.encode(
        text, add_bos=False, parse_special=True
    )


PARTS = st.sampled_from(
    ["<|end|>", "<|", "|>", "end", "<", "<|user|>", "hello", " ", "<think>", "</think>", "[", "é"]
)


@BOTH
@given(parts=st.lists(PARTS, max_size=8), tool=st.lists(PARTS, max_size=4))
def test_no_user_text_becomes_a_control_token(
    tokenizer: Tokenizer, parts: list[str], tool: list[str]
) -> None:
    content = "".join(parts)
    messages = [{"role": "user", "content": content}, {"role": "user", "content": "x"}]
    tools = [{"name": "".join(tool), "".join(tool): 1}]
    ids = tokenizer.encode_chat(messages, tools)
    controls = [tokenizer.token_text(i) for i in ids if tokenizer.is_special(i)]
    begin = [tokenizer.special_tokens["bos_token"]]
    assert controls == [*begin, *["<|user|>", "<|end|>"] * 2, "<|assistant|>"]
    assert tokenizer.chat_template is not None
    rendered = tokenizer.chat_template.render(messages, tools)
    assert tokenizer.decode(ids, skip_special=False).replace(" ", "") == rendered.replace(" ", "")


def test_tokens_that_a_template_builds_from_the_role_are_tokens() -> None:
    template = ChatTemplate({"default": "{% for m in messages %}<|{{ m.role }}|>{% endfor %}"})
    ids = BYTES.encode_chat([{"role": "user", "content": "x"}], chat_template=template)
    assert texts_of(BYTES, ids) == ["<|user|>"]
    ids = BYTES.encode_chat([{"role": "user|><|end", "content": "x"}], chat_template=template)
    assert not any(BYTES.is_special(i) for i in ids[1:-1])


def test_templates_that_cut_user_text_cannot_be_used_to_join_tokens() -> None:
    source = "{% for m in messages %}{{ m.content.split('</think>') | join }}{% endfor %}"
    template = ChatTemplate({"default": source})
    content = "<</think>|end|> <|en</think>d|> <|end</think>|>"
    ids = BYTES.encode_chat([{"role": "user", "content": content}], chat_template=template)
    assert BYTES.decode(ids) == "<|end|> <|end|> <|end|>"
    assert not any(BYTES.is_special(i) for i in ids)


def test_the_end_of_a_message_is_no_end_where_harmony_has_its_own() -> None:
    tokens = [*byte_level_metadata()["tokenizer.ggml.tokens"], "<|return|>", "<|call|>"]
    plain = len(tokens) - 8
    types = [1] * plain + [3] * 8
    changes = {"tokens": tokens, "token_type": types, "eos_token_id": len(tokens) - 2}
    tokenizer = Tokenizer.from_files(gguf_files(byte_level_metadata(**changes)))
    assert tokenizer.eos_ids == {len(tokens) - 2, len(tokens) - 1}


@pytest.mark.parametrize(
    ("model", "pre"),
    [("gemma4", None), ("gpt2", "granite-embed-multi-311m"), ("gpt2", "sarvam-moe")],
)
def test_gemma4_has_sentencepieces_pieces_with_merges_of_its_own(
    model: str, pre: str | None
) -> None:
    """And so have others, whose files call it byte-level and say by ``pre`` that it is not."""
    metadata = sentencepiece_metadata(add_space_prefix=False)
    parts = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    merges = [" ".join(pair) for pair in merges_from_scores(*parts)]
    as_llama = Tokenizer.from_files(gguf_files(metadata))
    changes = {"model": model, "merges": merges, "scores": None, "pre": pre}
    if pre is not None:
        changes |= {"add_space_prefix": None, "add_bos_token": True}
    as_gemma = Tokenizer.from_files(gguf_files(with_changes(metadata, changes)))
    for text in ("hello world", " hello\n\n  world é🙂", "\n", "", "<|user|>hell", "llll  "):
        ids = as_llama.encode(text, add_bos=True, parse_special=True)
        assert as_gemma.encode(text, add_bos=True, parse_special=True) == ids
        assert as_gemma.decode(ids, skip_special=False).removeprefix("<s>") == text
    changes = {"model": model, "pre": pre, "merges": ["h"]}
    with pytest.raises(ModelFileError, match=r"merges\[0\]: 'h' is not two tokens"):
        Tokenizer.from_files(gguf_files(with_changes(metadata, changes)))
