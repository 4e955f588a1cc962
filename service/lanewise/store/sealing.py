"""Encrypts blocks for a store: AES-256-GCM with a key made from the operator's secret."""

import importlib
import os
from hashlib import blake2b
from typing import Any, Protocol

NONCE_BYTES, TAG_BYTES = 12, 16
NEEDS = "kv_store_encrypt needs a package: pip install cryptography"


class SealError(Exception):
    """Nothing can be encrypted here; the message says what is missing."""


class Seal(Protocol):
    """What becomes of a block's bytes in a file."""

    extra_bytes: int  # that a file has more than the block

    def close(self, about: bytes, data: bytearray) -> bytes:
        """The bytes for the file of a block, which belong to ``about``."""

    def open(self, about: bytes, sealed: bytes, into: bytearray) -> bool:
        """Write the block into ``into``; false if the bytes are not of this key and ``about``."""


class AesSeal:
    """AES-256-GCM; each file has a random nonce, the bytes and a tag. Any thread may call it."""

    extra_bytes = NONCE_BYTES + TAG_BYTES

    def __init__(self, secret: bytes) -> None:
        """SealError without the library ``cryptography``."""
        try:
            ciphers: Any = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        except ImportError:
            raise SealError(NEEDS) from None
        key = blake2b(secret, digest_size=32, person=b"lanewise seal").digest()
        self._cipher = ciphers.AESGCM(key)

    def close(self, about: bytes, data: bytearray) -> bytes:
        """Encrypt."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + bytes(self._cipher.encrypt(nonce, data, about))

    def open(self, about: bytes, sealed: bytes, into: bytearray) -> bool:
        """Decrypt."""
        body = memoryview(sealed)[NONCE_BYTES:]
        try:
            into[:] = self._cipher.decrypt(sealed[:NONCE_BYTES], body, about)
        except Exception as error:
            if type(error).__name__ != "InvalidTag":
                raise
            return False
        return True
