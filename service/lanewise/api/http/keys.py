"""The sender of a request: API keys, which are tenants, and administrators' keys."""

import hmac
import secrets
from collections.abc import Iterable
from typing import NamedTuple


class Caller(NamedTuple):
    """The client of a request; ``number`` is the same for all requests of one key."""

    number: int
    is_admin: bool


ANYBODY = Caller(0, False)


class Keys:
    """Finds who has sent a key, in a time that tells nothing about the keys there are."""

    def __init__(self, api_keys: Iterable[str], admin_keys: Iterable[str]) -> None:
        # Looked up by a digest that a client cannot foresee: as good as comparing with each key in
        # constant time, however many there are.
        self._secret = secrets.token_bytes(32)
        self._callers: dict[bytes, Caller] = {}
        for key in api_keys:
            self._callers.setdefault(self._digest(key.encode()), Caller(len(self._callers), False))
        # Without API keys, those who send none are number 0.
        first = max(len(self._callers), 1)
        self.are_needed = bool(self._callers)
        for number, key in enumerate(admin_keys, first):
            self._callers[self._digest(key.encode())] = Caller(number, True)

    def find(self, authorization: bytes | None, api_key: bytes | None = None) -> Caller | None:
        """The caller by ``Authorization: Bearer``, or else by Anthropic's ``X-Api-Key``.

        None when a key is needed and there is none.
        """
        if self._callers:
            scheme, _, key = (authorization or b"").partition(b" ")
            for given in (key if scheme.lower() == b"bearer" else b"", api_key or b""):
                if given and (caller := self._callers.get(self._digest(given.strip()))):
                    return caller
        return None if self.are_needed else ANYBODY

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, "sha256")
