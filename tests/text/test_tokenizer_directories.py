"""Tokenizers of directories: rules, names of special tokens, templates, broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_tokenizers import TEMPLATE, hf_files
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.tokenizer import Tokenizer


@pytest.mark.parametrize("in_vocabulary", [False, True])
def test_added_tokens_without_rows_are_text_in_directories(
    caplog: pytest.LogCaptureFixture, in_vocabulary: bool
) -> None:
    parsed = json.loads(tokenizer_json())
    n_rows = len(parsed["model"]["vocab"])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    more = {"id": n_rows, "content": "[PAD]", "special": True, **flags}
    parsed["added_tokens"].append(more)
    if in_vocabulary:
        parsed["model"]["vocab"]["[PAD]"] = n_rows
    tokenizer = Tokenizer.from_files(hf_files(json.dumps(parsed), n_rows))
    assert "no rows for 1 added tokens, the first '[PAD]'" in caplog.text
    assert tokenizer.vocab_size == n_rows
    ids = tokenizer.encode("[PAD]", add_bos=False, parse_special=True)
    assert ids == [3, *[0] * len("[PAD]")]  # a space, and characters without tokens
    parsed["model"]["vocab"]["more"] = n_rows + 1
    with pytest.raises(ModelFileError, match="do not belong together"):
        Tokenizer.from_files(hf_files(json.dumps(parsed), n_rows))


def tokenizer_json(prepend: str | None = None) -> str:
    """Return a SentencePiece-like tokenizer.json whose words start with a space."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6, "<": 7, "/": 8}
    vocab |= {"s": 9, ">": 10}
    backend = Backend(models.BPE(vocab, [("▁", "a")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend or "first", split=False)
    backend.decoder = decoders.Metaspace("▁", prepend or "first", split=False)
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in ("<s>", "</s>")])
    return str(backend.to_str())


CTC = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
HF_CONFIG = {
    "bos_token": {"content": "<s>", "lstrip": False},
    "eos_token": "</s>",
    "add_bos_token": True,
    "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}</s>{% endfor %}",
}


def hf(**files: Any) -> Tokenizer:
    return Tokenizer.from_files(
        hf_files(tokenizer_json(), 20, **{"tokenizer_config": HF_CONFIG, **files})
    )


@pytest.mark.parametrize("number", [-1, 99, 2**32 - 1])
def test_an_end_that_is_no_token_is_passed_over(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = hf(config={"eos_token_id": number}, generation_config={"eos_token_id": [6, number]})
    assert tokenizer.eos_ids == {2, 6}
    assert (
        f"generation_config.json: eos_token_id: {number} is not the id of one of the 20 tokens"
        in caplog.text
    )


def test_directory_rules() -> None:
    tokenizer = hf(
        config={"eos_token_id": 5, "bos_token_id": 1},
        generation_config={"eos_token_id": [2, 6]},
    )
    assert tokenizer.bos_id == 1
    assert tokenizer.eos_ids == {2, 5, 6}
    assert tokenizer.adds_bos
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.unused_ids == tuple(range(11, 20))
    assert tokenizer.encode("a b", add_bos=True, parse_special=True) == [1, 6, 3, 5]
    assert tokenizer.decode([1, 6, 3, 5]) == "a b"


def test_names_of_special_tokens_may_be_in_their_own_file() -> None:
    tokenizer = hf(
        tokenizer_config={}, special_tokens_map={"bos_token": "<s>", "eos_token": "</s>"}
    )
    assert tokenizer.bos_id == 1
    assert tokenizer.eos_ids == {2}
    assert not tokenizer.adds_bos


def test_text_inside_a_prompt_gets_no_space() -> None:
    tokenizer = hf()
    chat = [{"role": "user", "content": "a</s>a"}, {"role": "user", "content": "a"}]
    plain = tokenizer.encode_chat([{"role": "user", "content": "a"}] * 2)
    assert plain == [1, 4, 2, 4, 2]
    ids = tokenizer.encode_chat(chat)
    assert [tokenizer.token_text(i) for i in ids] == [
        "<s>",
        *"a</s>a",
        "</s>",
        "a",
        "</s>",
    ]


def test_templates_of_a_directory() -> None:
    files: dict[str, Any] = {
        "tokenizer_config": HF_CONFIG | {"chat_template": [{"name": "default", "template": "A"}]}
    }
    message = [{"role": "user", "content": "x"}]
    listed = Tokenizer.from_files(hf_files(tokenizer_json(), 20, **files)).chat_template
    assert listed is not None
    assert listed.render(message) == "A"
    texts = {"chat_template.jinja": "B", "additional_chat_templates/tool_use.jinja": "C"}
    own = Tokenizer.from_files(hf_files(tokenizer_json(), 20, texts, **files)).chat_template
    assert own is not None
    assert own.render(message) == "B"
    assert own.render(message, tools=[]) == "C"
    assert hf(tokenizer_config={}).chat_template is None


@pytest.mark.parametrize(
    ("text", "files", "message"),
    [
        (None, {}, "tokenizer.json is missing, and so are tokenizer.model"),
        ("{", {}, "tokenizer.json: not valid JSON"),
        ("[]", {}, "a list, where a JSON object is needed"),
        ("{}", {}, "tokenizer.json: not a usable tokenizer"),
        ('{"model": {"type": "BPE", "vocab": 3}}', {}, "not a usable tokenizer"),
        (
            json.dumps(json.loads(tokenizer_json()) | {"decoder": CTC}),
            {},
            'decoder {"type": "CTC", "pad_token": "<pad>"',
        ),
        (
            json.dumps(json.loads(tokenizer_json()) | {"decoder": None}),
            {},
            "decoder null is not supported; accepted are ByteLevel",
        ),
        (tokenizer_json(), {"tokenizer_config": {"bos_token": 1}}, "bos_token: 1; a string"),
        (
            tokenizer_json().replace('"unk_token":"<unk>"', '"unk_token":"<what>"'),
            {},
            "model.unk_token: '<what>' is not in the vocabulary",
        ),
        (tokenizer_json(), {"config": {"eos_token_id": "2"}}, "eos_token_id: '2'"),
        (tokenizer_json(), {"tokenizer_config": {"chat_template": 1}}, "a string or a list"),
        (tokenizer_json(), {"tokenizer_config": {"chat_template": [{}]}}, "entries need a name"),
    ],
)
def test_broken_directories_are_explained(
    text: str | None, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_files(hf_files(text, 20, **files))
    assert message in str(caught.value)
    assert "tiny" in str(caught.value)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_changed_bytes_of_a_tokenizer_file(data: st.DataObject) -> None:
    damaged = bytearray(tokenizer_json().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.sampled_from(b'0123456789{}[]",:'))
    files: TokenizerFiles = hf_files(damaged.decode("utf-8", "replace"), 20)
    try:
        tokenizer = Tokenizer.from_files(files)
    except ModelFileError:
        return
    tokenizer.decode(tokenizer.encode("a b", add_bos=True, parse_special=False))


def test_chat_without_a_template_is_an_error() -> None:
    tokenizer = hf(tokenizer_config={})
    with pytest.raises(ChatTemplateError, match="the model has no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}])
    ids = tokenizer.encode_chat(
        [{"role": "user", "content": "a"}], chat_template=ChatTemplate({"default": TEMPLATE})
    )
    text = "<|user|>a<|end|><|assistant|>"
    assert ids == tokenizer.encode(text, add_bos=False, parse_special=True)


def test_directory_without_tokenizer_opens_but_cannot_serve(tmp_path: Path) -> None:
    files = TokenizerFiles(tmp_path, 20, json_files={"config.json": {}})
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_files(files)
