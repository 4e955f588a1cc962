"""Images of URLs: allowed hosts alone, public addresses alone, bounded in size and time."""

import asyncio
import base64
import contextlib
import http.server
import ipaddress
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from lanewise.api.shared.image_fetch import Address, Fetcher, Host, is_public
from lanewise.text.images.layouts import ImageError
from pictures import png
from toy_server import toy_server
from toy_tokenizer import toy_tokenizer
from toy_tower import NAMES, ToyTower, toy_eyes

LOOPBACK = ipaddress.ip_address("127.0.0.1")
IMAGE = png(8, 8)
MOST = 1 << 16


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path; what was asked is remembered."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("location", self.path[4:])
            self.end_headers()
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    self.wfile.write(b"a")
                    self.wfile.flush()
                    time.sleep(0.02)
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(bytes(MOST + 1))
        elif self.path == "/gzip":
            self.send_response(200)
            self.send_header("content-encoding", "gzip")
            self.end_headers()
        elif self.path == "/image.png":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(IMAGE)
        else:
            self.send_error(404)


@pytest.fixture(scope="module")
def site() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Names:
    """A resolver whose answers a test says, one after the other."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, name: str, port: int) -> list[Address]:
        self.asked.append(name)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [ipaddress.ip_address(one) for one in answer.split()]


def fetch(url: str, names: Names, *hosts: str, public: bool = False, timeout_s: float = 5) -> bytes:
    """What a fetcher gets; without ``public`` the loopback is as good as a public address."""

    def may_connect(address: Address) -> bool:
        return is_public(address) or (not public and address == LOOPBACK)

    fetcher = Fetcher([Host.of(one) for one in hosts], timeout_s, names, may_connect)
    return asyncio.run(fetcher.fetch(url, MOST))


def refusal(*given: object, **options: object) -> tuple[str, str]:
    with pytest.raises(ImageError) as caught:
        fetch(*given, **options)
    return caught.value.code, str(caught.value)


@pytest.fixture
def host(site) -> str:
    site.asked.clear()
    return f"http://images.test:{site.server_address[1]}"


def test_an_image_of_an_allowed_host_is_fetched(host, site):
    names = Names("127.0.0.1")
    assert fetch(f"{host}/image.png", names, host) == IMAGE
    assert names.asked == ["images.test"]
    ((_, headers),) = site.asked
    assert headers["Host"] == host.removeprefix("http://")
    assert "authorization" not in {name.lower() for name in headers}
    wild = host.replace("images.test", "*.test")
    assert fetch(f"{host}/image.png", Names("127.0.0.1"), wild) == IMAGE
    assert fetch(f"{host}/to?/image.png", Names("127.0.0.1"), host) == IMAGE


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://images.test/a.png",
        "gopher://images.test/",
        "//images.test/a.png",
        "http://other.test/a.png",
        "https://images.test/a.png",
        "http://images.test:22/a.png",
        "http://images.test.evil.test/a.png",
        "http://evil.test#images.test",
        "http://evil.test\\@images.test/",
        "http://user:secret@images.test/a.png",
        "http://images.test@127.0.0.1/a.png",
        "http://127.0.0.1/a.png",
        "http://2130706433/a.png",
        "http://0x7f.1/a.png",
        "http://[::1]/a.png",
        "http://[::ffff:127.0.0.1]/a.png",
        "http://images.test /a.png",
        "http://images.test/a\r\nhost: b",
        "http://[",
        "http://images.test:99999/",
        "",
    ],
)
def test_what_is_not_allowed_is_not_even_looked_up(url):
    names = Names("127.0.0.1")
    assert refusal(url, names, "http://images.test")[0] == "invalid_image_url"
    assert names.asked == []


@pytest.mark.parametrize(
    "addresses",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::1",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "8.8.8.8 127.0.0.1",  # one of several
    ],
)
def test_addresses_that_are_not_public_are_refused(addresses, host):
    code, message = refusal(f"{host}/image.png", Names(addresses), host, public=True)
    assert code == "invalid_image_url"
    assert "not public" in message


def test_public_addresses_are_public():
    for address in ("8.8.8.8", "93.184.216.34", "2606:4700::1111"):
        assert is_public(ipaddress.ip_address(address))


def test_a_redirect_is_held_to_the_same_rules(host, site):
    for target in (
        "http://127.0.0.1/a.png",
        "file:///etc/passwd",
        "http://other.test/",
        "//[::1]/",
    ):
        assert refusal(f"{host}/to?{target}", Names("127.0.0.1"), host)[0] == "invalid_image_url"
    # The name means another address when it is asked for again.
    names = Names("127.0.0.1", "169.254.169.254")
    code, message = refusal(f"{host}/to?/image.png", names, host)
    assert (code, names.asked) == ("invalid_image_url", ["images.test"] * 2)
    assert "not public" in message
    names = Names("127.0.0.1")
    code, message = refusal(f"{host}/to?/to?/to?/to?/image.png", names, host)
    assert "redirects" in message
    assert len(names.asked) == 4


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("/none.png", "failed_to_download_image", "status 404"),
        ("/large", "image_file_too_large", "more than 65536 bytes"),
        ("/gzip", "failed_to_download_image", "encoded"),
        ("/slow", "failed_to_download_image", "within 0.3 s"),
    ],
)
def test_what_does_not_come_as_it_should_is_refused(host, path, code, says):
    found = refusal(f"{host}{path}", Names("127.0.0.1"), host, timeout_s=0.3)
    assert found[0] == code
    assert says in found[1]


def test_a_request_with_a_url_is_as_one_with_the_image(host, site):
    token = toy_tokenizer(NAMES).encode("<image>", add_bos=False, parse_special=True)[0]
    names = Names("127.0.0.1")
    fetcher = Fetcher([Host.of(host)], 5, names, lambda address: address == LOOPBACK)
    eyes = toy_eyes(token, fetcher)
    with toy_server(more_special=NAMES, tower=ToyTower(), see=eyes) as server:

        def ask(url: str) -> httpx.Response:
            content = [{"type": "image_url", "image_url": {"url": url}}]
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
            return server.client.post("/v1/chat/completions", json=body | {"temperature": 0})

        inside = "data:image/png;base64," + base64.b64encode(IMAGE).decode()
        assert ask(f"{host}/image.png").json()["choices"] == ask(inside).json()["choices"]
        error = ask(f"{host}/to?http://169.254.169.254/").json()["error"]
        assert error["code"] == "invalid_image_url"
        assert error["param"] == "messages[0].content[0].image_url.url"
        assert "169.254" not in error["message"]


def test_a_host_that_is_not_there_is_told():
    names = Names("127.0.0.1")
    assert refusal("http://images.test:1/a.png", names, "http://images.test:1")[0] == (
        "failed_to_download_image"
    )


@pytest.mark.parametrize(
    "text", ["", "*", "ftp://a.test", "a.test/path", "https://u@a.test", "a*.b"]
)
def test_an_entry_that_is_no_host_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        Host.of(text)
