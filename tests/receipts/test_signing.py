"""Receipts as texts and signatures: what was changed is refused, whatever it was."""

import base64
import json
import random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import topics
from lanewise.receipts.signing import Signer, check_signed, read_public_key, read_signer
from lanewise.receipts.statement import ReceiptError, Statement, canonical, parse, tokens_of

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PROMPT, ANSWER = [1, 2, 70_000], [5, 4_000_000_000]


def statement(**more):
    model = {
        "name": "tiny",
        "files_sha256": "0" * 64,
        "program_sha256": "1" * 64,
        "weights": "q4_0",
        "numerics": 3,
        "kv_cache_dtype": "int8",
        "max_model_len": None,
        "adapter_sha256": None,
        "template": "a" * 32,
    }
    drawing = {
        "seed": str(2**64 - 1),
        "choice": 0,
        "max_tokens": 9,
        "min_tokens": 0,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 1e-7,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": [(3, -1.5)],
        "allowed_token_ids": None,
        "stop_token_ids": [2],
        "bad_words": ["naïve"],
    }
    members = {
        "version": 1,
        "id": "abc",
        "created": 1_800_000_000,
        "model": model,
        "prompt": tokens_of(PROMPT),
        "drawing": drawing,
        "grammar": {"kind": "regex", "text": "[a-z]+", "before": ""},
        "answer": tokens_of(ANSWER),
        "finish_reason": "length",
    }
    return Statement.model_validate(members | more)


def signed():
    return Signer(KEY).sign(statement(), PROMPT, ANSWER)


def test_a_receipt_survives_json():
    again = parse(signed().model_dump_json())
    assert again == signed()
    check_signed(again, Signer(KEY).public_key)
    check_signed(again, None)


def test_the_signed_bytes_are_those_of_the_standard():
    text = canonical(statement())
    assert text.startswith(b'{"answer":{"n_tokens":2,"sha256":"')
    assert b'"min_p":1e-7' in text
    assert b'"top_p":1}' in text
    assert "naïve".encode() in text


def test_another_key_is_not_trusted():
    other = Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    with pytest.raises(ReceiptError, match="the key that is trusted is another"):
        check_signed(signed(), other.public_key)
    foreign = signed().model_copy(update={"public_key": other.public_key})
    with pytest.raises(ReceiptError, match="signature"):
        check_signed(foreign, None)


def test_every_bit_that_is_changed_is_noticed():
    text = signed().model_dump_json().encode()
    rng = random.Random(1)
    for _ in range(topics.cases(1_500, 10_000)):
        place = rng.randrange(8 * len(text))
        changed = bytearray(text)
        changed[place // 8] ^= 1 << place % 8
        try:
            receipt = parse(bytes(changed))
        except ReceiptError:
            continue
        if receipt == signed():  # such as "e" of an exponent as "E"
            continue
        with pytest.raises(ReceiptError):
            check_signed(receipt, Signer(KEY).public_key)


@pytest.mark.parametrize("name", ["prompt_tokens", "answer_tokens"])
def test_tokens_belong_to_the_statement(name):
    changed = signed().model_copy(update={name: [1, 2, 3]})
    with pytest.raises(ReceiptError, match=name):
        check_signed(changed, None)


@pytest.mark.parametrize("name", ["signature", "public_key"])
@pytest.mark.parametrize("value", ["", "AAAA", "no base64!", base64.b64encode(bytes(65)).decode()])
def test_what_is_no_signature_or_key_is_refused(name, value):
    with pytest.raises(ReceiptError, match=f"{name}: accepted"):
        check_signed(signed().model_copy(update={name: value}), None)


def test_what_is_no_receipt_says_where():
    whole = json.loads(signed().model_dump_json())
    with pytest.raises(ReceiptError, match=r"statement\.model\.files_sha256"):
        parse(json.dumps(whole | {"statement": whole["statement"] | {"model": {"name": "x"}}}))
    with pytest.raises(ReceiptError, match=r"answer_tokens\.0"):
        parse(json.dumps(whole | {"answer_tokens": [-1]}))
    with pytest.raises(ReceiptError, match="extra"):
        parse(json.dumps(whole | {"extra": 1}))
    whole["statement"]["drawing"]["temperature"] = float("nan")
    with pytest.raises(ReceiptError, match=r"statement\.drawing\.temperature"):
        parse(json.dumps(whole))


def test_keys_come_from_files_as_openssl_writes_them(tmp_path):
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    private.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    assert read_signer(private).public_key == read_public_key(public) == Signer(KEY).public_key
    for read in (read_signer, read_public_key):
        other = public if read is read_signer else private
        with pytest.raises(ReceiptError, match=r"not a (private|public) key in PEM"):
            read(other)
    rsa = generate_private_key(65537, 2048)
    private.write_bytes(rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ReceiptError, match="a key of another kind"):
        read_signer(private)
