"""A bucket of an object store: objects are listed, read and written there, each within a time.

obstore speaks S3, Google's and Azure's protocols. It takes credentials, region and endpoint from
the environment or from the machine, as the cloud's own tools do.
"""

import importlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

from lanewise.store.block_files import StoreError

SCHEMES = ("s3", "gs", "az")
CONNECT_S = 2.0
REQUEST_S = 5.0  # for one object, or one page of a listing
MOST_FAILURES = 3  # in a row: then the bucket is left alone for a while
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


class BucketError(Exception):
    """The object store has not done what it was asked for."""


class Bucket:
    """Objects below a URL; any thread may call it."""

    def __init__(self, url: str) -> None:
        """StoreError if the URL or the library is not of use; nothing is asked of the network."""
        try:
            self._library = importlib.import_module("obstore")
            stores = importlib.import_module("obstore.store")
        except ImportError:
            raise StoreError(
                "kv_store_remote needs obstore; accepted: after `pip install obstore`"
            ) from None
        accepted = "accepted: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER"
        scheme, separator, rest = url.partition("://")
        if scheme not in SCHEMES or not separator or not rest.strip("/"):
            raise StoreError(f"kv_store_remote is {url}; {accepted}")
        endpoint = os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", ""))
        options = {
            "timeout": timedelta(seconds=REQUEST_S),
            "connect_timeout": timedelta(seconds=CONNECT_S),
            # An endpoint without TLS is one that the operator has named.
            "allow_http": endpoint.startswith("http://"),
        }
        retry = {"max_retries": 1, "retry_timeout": timedelta(seconds=REQUEST_S)}
        try:
            self._store = stores.from_url(url, client_options=options, retry_config=retry)
        except Exception as error:
            raise StoreError(
                f"kv_store_remote is {url}: {_first_line(error)}; {accepted}"
            ) from None

    def names(self, folder: str) -> Iterator[str]:
        """The paths of all objects in a folder; BucketError."""
        try:
            for page in self._library.list(self._store, folder, chunk_size=1000):
                for one in page:
                    yield one["path"]
        except Exception as error:
            raise BucketError(_first_line(error)) from None

    def get(self, path: str) -> bytes | None:
        """An object's contents, None if there is no such object; BucketError."""
        try:
            return bytes(self._library.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except Exception as error:
            raise BucketError(_first_line(error)) from None

    def put(self, path: str, data: bytes) -> None:
        """Write an object whole; BucketError."""
        try:
            self._library.put(self._store, path, data, use_multipart=False)
        except Exception as error:
            raise BucketError(_first_line(error)) from None


class Pauses:
    """When a bucket that fails again and again is left alone; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._pause_s = 0.0
        self._until = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether nothing is asked for now."""
        return time.monotonic() < self._until

    def note_success(self) -> None:
        """The bucket has answered."""
        with self._lock:
            self._failures, self._pause_s = 0, 0.0

    def note_failure(self) -> float:
        """It has not; returns how many seconds it is left alone from now on, mostly 0."""
        with self._lock:
            self._failures += 1
            if self._failures < MOST_FAILURES or self.is_paused:
                return 0.0
            self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
            self._until = time.monotonic() + self._pause_s
            return self._pause_s


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
