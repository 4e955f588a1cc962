"""What every receipt of a server needs: its key, and what its model is."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from lanewise.engine.base.adapters import LoadedAdapter
from lanewise.receipts.signing import Signer
from lanewise.receipts.statement import ModelIdentity


class ReceiptIssuer:
    """The signer, and the identity of the model with and without adapters."""

    def __init__(
        self, signer: Signer, identity: ModelIdentity, digest_of: Callable[[Path], str]
    ) -> None:
        """``digest_of`` gives SHA-256 of an adapter's files."""
        self.signer = signer
        self._identity = identity
        self._digest_of = digest_of
        self._lock = Lock()
        self._digests: dict[int, str] = {}  # by the adapter's number

    def identity(self, adapter: LoadedAdapter | None) -> ModelIdentity:
        """What the model is with an adapter; the first time its files are read."""
        if adapter is None:
            return self._identity
        with self._lock:
            if adapter.number not in self._digests:
                self._digests[adapter.number] = self._digest_of(Path(adapter.path))
            return self._identity.model_copy(
                update={"adapter_sha256": self._digests[adapter.number]}
            )
