"""What a receipt says of one answer: the model, the prompt, how tokens were drawn, the tokens.

A receipt is a JSON object. Its member ``statement`` is signed with Ed25519 in the canonical form of
RFC 8785. The statement has digests of the prompt's and of the answer's tokens. The tokens stand
beside the statement: who checks the receipt needs them, the signature does not.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

TOKEN_MAX = 2**32 - 1
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # SHA-256, in hexadecimal
Token = Annotated[int, Field(ge=0, le=TOKEN_MAX)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class ReceiptError(Exception):
    """A receipt cannot be used; the message says which member is wrong and what is accepted."""


class Part(BaseModel):
    """A part of a receipt; it has all of its members and no others."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class ModelIdentity(Part):
    """What logits depend on beside tokens: no CPU, number of threads or batch is part of it."""

    name: str  # for people
    files_sha256: Digest  # of the contents of the model's files
    program_sha256: Digest  # of the layer program that was made of them
    weights: str  # types that matrices are held in
    numerics: int  # version of the numeric contract
    kv_cache_dtype: str
    max_model_len: Count | None  # as the server was told; it decides RoPE of some families
    adapter_sha256: Digest | None  # of the contents of an adapter's files
    # BLAKE2b-128 of the chat templates and what stands for special tokens in them; None: none.
    template: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None


class Tokens(Part):
    """How many tokens, and SHA-256 of them as little-endian uint32."""

    n_tokens: Count
    sha256: Digest


class Drawing(Part):
    """How each token was drawn; the fields of ``SamplingParams`` that decide it."""

    seed: Annotated[str, Field(pattern="^[0-9]{1,20}$")]  # of 64 bits: more than JSON's numbers
    choice: Count  # number of this answer among those to the prompt
    max_tokens: Count
    min_tokens: Count
    temperature: Number
    top_p: Number
    top_k: Count
    min_p: Number
    repetition_penalty: Number
    presence_penalty: Number
    frequency_penalty: Number
    logit_bias: list[tuple[Token, Number]]
    allowed_token_ids: list[Token] | None
    stop_token_ids: list[Token]
    bad_words: list[str]


class Grammar(Part):
    """The grammar that the answer obeys, as it was compiled."""

    kind: Literal["json_schema", "regex", "choice", "lark", "gbnf"]
    text: str
    before: str


class Statement(Part):
    """What is signed."""

    version: Literal[1]
    id: str  # of the answer
    created: Count  # seconds since 1970
    model: ModelIdentity
    prompt: Tokens
    drawing: Drawing
    grammar: Grammar | None
    answer: Tokens
    finish_reason: Literal["stop", "length", "tool_calls"]


class Receipt(Part):
    """A statement, its signature, and the tokens that it has digests of."""

    statement: Statement
    prompt_tokens: list[Token]
    answer_tokens: list[Token]
    public_key: str  # 32 bytes in base64
    signature: str  # 64 bytes in base64


def tokens_of(tokens: Sequence[int]) -> Tokens:
    """What a statement says of tokens."""
    packed = np.asarray(tokens, dtype="<u4").tobytes()
    return Tokens(n_tokens=len(tokens), sha256=hashlib.sha256(packed).hexdigest())


def parse(text: str | bytes) -> Receipt:
    """The receipt in a JSON text; ReceiptError if it is none."""
    try:
        return Receipt.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the receipt"
        raise ReceiptError(f"{place}: {first['msg']}") from None


def canonical(statement: Statement) -> bytes:
    """The bytes that are signed."""
    import rfc8785  # of the extra "receipts"

    try:
        return rfc8785.dumps(statement.model_dump())
    except rfc8785.CanonicalizationError as error:
        raise ReceiptError(f"statement: it has no canonical form: {error}") from None
