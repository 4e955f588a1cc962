"""Fetches images from hosts that the server's settings allow; without any, from nowhere.

Clients choose what is asked for, from inside the operator's network. So a host is resolved once,
each of its addresses must be one of the public internet, and the connection goes to an address that
was checked: a name that means another one a moment later changes nothing. Redirects are followed by
the same rules. Proxies, credentials and cookies are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from lanewise.api.shared.workers import started
from lanewise.text.images.layouts import ImageError

FAILED, BAD_URL = "failed_to_download_image", "invalid_image_url"
N_THREADS = 4
MOST_HOPS = 3
MAX_URL = 2048
PORTS = {"https": 443, "http": 80}
PIECE = 1 << 16
REDIRECTS = (301, 302, 303, 307, 308)
# Addresses of these networks have one of IPv4 in their last 32 bits, or are for machines of one
# site.
TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Host:
    """One entry of the list: ``example.org``, ``*.example.org:8443`` or ``http://example.org``."""

    scheme: str
    name: str
    port: int

    @classmethod
    def of(cls, text: str) -> Host:
        """ValueError if it is none."""
        parts = urlsplit(text if "//" in text else f"https://{text}")
        name = (parts.hostname or "").removeprefix("*.")
        if parts.scheme not in PORTS or not name or "*" in name or parts.path or parts.username:
            raise ValueError(text)
        return cls(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme])

    def allows(self, url: SplitResult) -> bool:
        """Whether a URL is one of this host's."""
        name = url.hostname or ""
        is_named = name.endswith(self.name[1:]) if self.name[:2] == "*." else name == self.name
        port = url.port or PORTS.get(url.scheme)
        return is_named and (url.scheme, port) == (self.scheme, self.port)


def resolve(name: str, port: int) -> list[Address]:
    """All addresses of a name; ImageError if there are none."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ImageError(FAILED, f"{name}: {error}") from None
    return [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]


def is_public(address: Address) -> bool:
    """Whether an address is one of the public internet, whatever form it has."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        teredo = address.teredo
        if inner is not None or teredo is not None:
            return False
        if any(address in network for network in TRANSLATED):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class Fetcher:
    """Fetches images, a few at a time."""

    def __init__(
        self,
        hosts: Sequence[Host],
        timeout_s: float,
        addresses_of: Callable[[str, int], list[Address]] = resolve,
        may_connect: Callable[[Address], bool] = is_public,
    ) -> None:
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._addresses_of = addresses_of
        self._may_connect = may_connect
        self._threads = started(N_THREADS, "lanewise-fetch")
        self._tls = ssl.create_default_context()

    async def fetch(self, url: str, most: int) -> bytes:
        """What is there; ImageError if it is not allowed, too large or does not come in time."""
        fetching = _Fetching(self, url, most, time.monotonic() + self._timeout_s)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, fetching.run)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError:
            raise ImageError(FAILED, f"not there within {self._timeout_s:g} s") from None
        finally:
            fetching.stop()  # the thread waits for no byte any more

    def check(self, url: str) -> SplitResult:
        """The parts of a URL of an allowed host; ImageError for all others."""
        try:
            parts = urlsplit(url)
            is_allowed = any(host.allows(parts) for host in self._hosts)
        except ValueError:
            raise ImageError(BAD_URL, "no URL") from None
        if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise ImageError(BAD_URL, "no URL")
        if not is_allowed or parts.username is not None or parts.password is not None:
            raise ImageError(
                BAD_URL, "this host is not allowed; accepted: data: URLs and hosts of image_hosts"
            )
        return parts

    def connect(self, url: SplitResult, deadline: float) -> socket.socket:
        """A connection to an address of the URL's host that has been checked."""
        name, port = url.hostname or "", url.port or PORTS[url.scheme]
        addresses = self._addresses_of(name, port)
        # All of them: of a name that means both kinds the next answer may be the other one.
        if not addresses or not all(map(self._may_connect, addresses)):
            raise ImageError(BAD_URL, "this host has an address that is not public")
        left = max(0.01, deadline - time.monotonic())
        sock = socket.create_connection((str(addresses[0]), port), timeout=left)
        if url.scheme == "https":
            try:
                return self._tls.wrap_socket(sock, server_hostname=name)
            except BaseException:
                sock.close()
                raise
        return sock


class _Connection(http.client.HTTPConnection):
    """One whose socket is there."""

    def __init__(self, host: str, sock: socket.socket) -> None:
        super().__init__(host)
        self.sock = sock
        self.auto_open = 0


class _Fetching:
    """One image on its way, in a thread."""

    def __init__(self, fetcher: Fetcher, url: str, most: int, deadline: float) -> None:
        self._fetcher = fetcher
        self._url, self._most, self._deadline = url, most, deadline
        self._sock: socket.socket | None = None
        self._is_stopped = False

    def run(self) -> bytes:
        """The image; ImageError if there is none."""
        url = self._url
        try:
            for _ in range(MOST_HOPS + 1):
                with self._answer(url) as answer:
                    if answer.status not in REDIRECTS:
                        return self._read(answer)
                    url = urljoin(url, answer.headers.get("location", ""))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ImageError(FAILED, f"{type(error).__name__}: {error}") from None
        raise ImageError(FAILED, f"more than {MOST_HOPS} redirects")

    def stop(self) -> None:
        """Have the thread fail at its next byte."""
        self._is_stopped = True
        if (sock := self._sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _answer(self, url: str) -> Iterator[http.client.HTTPResponse]:
        parts = self._fetcher.check(url)
        if self._is_stopped:
            raise OSError("given up")
        with self._fetcher.connect(parts, self._deadline) as sock:
            self._sock = sock
            connection = _Connection(parts.netloc, sock)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            headers = {"accept": "image/*", "accept-encoding": "identity", "connection": "close"}
            connection.request("GET", target, headers=headers)
            with contextlib.closing(connection.getresponse()) as answer:
                yield answer

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        if answer.status != 200:
            raise ImageError(FAILED, f"status {answer.status}; accepted: 200")
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise ImageError(FAILED, "it comes encoded; accepted: as it is")
        found = bytearray()
        while piece := answer.read1(PIECE):
            found += piece
            if len(found) > self._most:
                raise ImageError(
                    "image_file_too_large",
                    f"more than {self._most} bytes (max_image_bytes)",
                )
            if time.monotonic() > self._deadline:
                raise TimeoutError("it takes too long")
        return bytes(found)
