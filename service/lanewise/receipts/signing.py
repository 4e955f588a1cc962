"""Keys of receipts: Ed25519, in files as OpenSSL writes them."""

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING

from lanewise.receipts.statement import Receipt, ReceiptError, Statement, canonical, tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAKE_KEY = "openssl genpkey -algorithm ed25519 -out FILE"
MAKE_PUBLIC = "openssl pkey -in KEY -pubout -out FILE"
NEEDS = "receipts need two packages: pip install cryptography rfc8785"
KEY_BYTES = 32


class Signer:
    """Signs statements with one private key."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key
        self.public_key = base64.b64encode(key.public_key().public_bytes_raw()).decode()

    def sign(
        self, statement: Statement, prompt: "Sequence[int]", answer: "Sequence[int]"
    ) -> Receipt:
        """The receipt of a statement about these tokens."""
        return Receipt(
            statement=statement,
            prompt_tokens=list(prompt),
            answer_tokens=list(answer),
            public_key=self.public_key,
            signature=base64.b64encode(self._key.sign(canonical(statement))).decode(),
        )


def read_signer(path: Path) -> Signer:
    """The signer with the private key in a PEM file; ReceiptError if there is none, OSError."""
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    accepted = f"accepted: an Ed25519 private key without a password, made by `{MAKE_KEY}`"
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        raise ReceiptError(f"{path}: not a private key in PEM; {accepted}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ReceiptError(f"{path}: a key of another kind; {accepted}")
    return Signer(key)


def read_public_key(path: Path) -> str:
    """The public key in a PEM file, as receipts have it; ReceiptError if there is none, OSError."""
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    accepted = f"accepted: an Ed25519 public key, made by `{MAKE_PUBLIC}`"
    try:
        key = load_pem_public_key(path.read_bytes())
    except ValueError:
        raise ReceiptError(f"{path}: not a public key in PEM; {accepted}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ReceiptError(f"{path}: a key of another kind; {accepted}")
    return base64.b64encode(key.public_bytes_raw()).decode()


def check_signed(receipt: Receipt, public_key: str | None) -> None:
    """Raise ReceiptError unless the receipt is signed by its key, and its key is ``public_key``.

    Without a ``public_key`` the receipt's own is taken, which any program may have made.
    """
    _check_installed()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = _decoded("public_key", receipt.public_key, KEY_BYTES)
    signature = _decoded("signature", receipt.signature, 2 * KEY_BYTES)
    if public_key is not None and public_key != receipt.public_key:
        raise ReceiptError(f"public_key: {receipt.public_key}; the key that is trusted is another")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, canonical(receipt.statement))
    except (InvalidSignature, ValueError):
        raise ReceiptError("signature: it does not belong to the statement and the key") from None
    for name, tokens in (("prompt", receipt.prompt_tokens), ("answer", receipt.answer_tokens)):
        if tokens_of(tokens) != getattr(receipt.statement, name):
            raise ReceiptError(f"{name}_tokens: not the tokens that the statement has a digest of")


def _decoded(name: str, text: str, n_bytes: int) -> bytes:
    with_problem = f"{name}: accepted: {n_bytes} bytes in base64"
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ReceiptError(with_problem) from None
    if len(found) != n_bytes or base64.b64encode(found).decode() != text:
        raise ReceiptError(with_problem)
    return found


def _check_installed() -> None:
    try:
        import cryptography  # noqa: F401
        import rfc8785  # noqa: F401
    except ImportError:
        raise ReceiptError(NEEDS) from None
