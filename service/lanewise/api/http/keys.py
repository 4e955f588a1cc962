"""The sender of a request: API keys, which are tenants, and administrators' keys."""

import hmac
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple


class Key(NamedTuple):
    """An API key; ``number`` is the same for all requests of one key.

    ``tenant`` is made of the key alone: it is the same in every server and after every restart,
    whatever other keys there are.
    """

    number: int
    is_admin: bool
    tenant: str


ANYBODY = Key(0, False, "")


class Keys:
    """Finds who has sent a key, in a time that tells nothing about the keys there are."""

    def __init__(self, api_keys: Iterable[str], admin_keys: Iterable[str]) -> None:
        # Looked up by a digest that a client cannot foresee: as good as comparing with each key in
        # constant time, however many there are.
        self._secret = secrets.token_bytes(32)
        self._keys: dict[bytes, Key] = {}
        for key in api_keys:
            made = Key(len(self._keys), False, tenant_of(key))
            self._keys.setdefault(self._digest(key.encode()), made)
        # Without API keys, those who send none are number 0.
        first = max(len(self._keys), 1)
        self.are_needed = bool(self._keys)
        for number, key in enumerate(admin_keys, first):
            self._keys[self._digest(key.encode())] = Key(number, True, tenant_of(key))

    def find(self, authorization: bytes | None, api_key: bytes | None = None) -> Key | None:
        """The key in ``Authorization: Bearer``, or else in Anthropic's ``X-Api-Key``.

        None when a key is needed and none is known.
        """
        if self._keys:
            scheme, _, key = (authorization or b"").partition(b" ")
            for given in (key if scheme.lower() == b"bearer" else b"", api_key or b""):
                if given and (found := self._keys.get(self._digest(given.strip()))):
                    return found
        return None if self.are_needed else ANYBODY

    def number_of(self, tenant: str) -> int | None:
        """The number of a tenant's key; None if there is no such key."""
        known = {key.tenant: key.number for key in self._keys.values()}
        return known.get(tenant, None if self.are_needed or tenant else ANYBODY.number)

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, "sha256")


def tenant_of(key: str) -> str:
    """What stands for a key wherever something is kept for it: no key can be made of it."""
    return blake2b(key.encode(), digest_size=16, person=b"lanewise tenant").hexdigest()
