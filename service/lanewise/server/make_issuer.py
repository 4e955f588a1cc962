"""What receipts are signed with, for the model that is served."""

import logging
from pathlib import Path

from lanewise.api.shared.receipt_issuer import ReceiptIssuer
from lanewise.receipts.identity import files_digest, identity_of
from lanewise.receipts.signing import Signer, read_signer
from lanewise.receipts.statement import ReceiptError
from lanewise.runtime import Model
from lanewise.runtime.model import resolve_kv_type
from lanewise.settings import Settings, SettingsError

logger = logging.getLogger(__name__)


def signer_of(settings: Settings) -> Signer | None:
    """The signer with the key of ``receipts``; SettingsError if it cannot be used."""
    if settings.receipts is None:
        return None
    try:
        return read_signer(Path(settings.receipts))
    except OSError as error:
        raise SettingsError(f"receipts: {settings.receipts}: {error.strerror}") from None
    except ReceiptError as error:
        raise SettingsError(f"receipts: {error}") from None


def make_issuer(settings: Settings, model: Model, template: str | None) -> ReceiptIssuer | None:
    """What issues receipts; None where there is no key. Reads all of the model's files once."""
    signer = signer_of(settings)
    if signer is None:
        return None
    logger.info("receipts are signed with the public key %s", signer.public_key)
    kv_type = resolve_kv_type(settings.kv_cache_dtype, model.weights)
    identity = identity_of(model, kv_type, settings.max_model_len, template)
    return ReceiptIssuer(signer, identity, lambda path: files_digest([path]))
