"""An S3 server of moto in a thread, whose requests take a while, fail, or are counted."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import obstore
from moto.server import DomainDispatcherApplication, create_backend_app
from obstore.store import S3Store
from werkzeug.serving import make_server

BUCKET = "prompts"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
}


@dataclass
class S3:
    """Where it is, and what it does with requests."""

    url: str = ""
    delay_s: float = 0.0
    status: int = 0  # that it answers with; 0: as S3 does
    asked: Counter[str] = field(default_factory=Counter)  # requests by method

    def environment(self) -> dict[str, str]:
        return CREDENTIALS | {"AWS_ENDPOINT_URL": self.url}

    def paths(self) -> list[str]:
        """All objects in the bucket."""
        return [one["path"] for page in obstore.list(self._store()) for one in page]

    def read(self, path: str) -> bytes:
        return bytes(obstore.get(self._store(), path).bytes())

    def write(self, path: str, data: bytes) -> None:
        obstore.put(self._store(), path, data, use_multipart=False)

    def delete(self, path: str) -> None:
        obstore.delete(self._store(), path)

    def _store(self) -> S3Store:
        keys = {name.lower(): value for name, value in self.environment().items()}
        return S3Store(BUCKET, config=keys, client_options={"allow_http": True})


@contextmanager
def s3_server(delay_s: float = 0.0) -> Iterator[S3]:
    """One with an empty bucket."""
    state = S3()
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ, start_response):
        state.asked[environ["REQUEST_METHOD"]] += 1
        time.sleep(state.delay_s)
        if state.status:
            start_response(f"{state.status} as the test wants it", [])
            return [b""]
        return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, application, threaded=True)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        httpx.post(f"{state.url}/moto-api/reset").raise_for_status()
        httpx.put(f"{state.url}/{BUCKET}").raise_for_status()
        state.asked.clear()
        state.delay_s = delay_s
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
