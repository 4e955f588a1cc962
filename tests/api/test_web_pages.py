"""Which web pages may use a server, by the fields Host and Origin."""

import pytest

from lanewise.api.http.web_pages import WebPages
from lanewise.settings import Settings
from toy_server import toy_server

EVIL = "https://evil.example"
ASK = {"prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def server():
    with toy_server() as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.client


def preflight(client, origin: str):
    fields = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return client.options("/v1/completions", headers=fields)


@pytest.mark.parametrize("path", ["/v1/models", "/", "/health/live", "/metrics", "/nothing"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example"])
def test_names_of_others_are_refused_on_loopback_without_a_key(client, path, host):
    answer = client.get(path, headers={"host": host})
    assert answer.status_code == 403
    assert "--allowed-hosts" in answer.json()["error"]["message"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]:8000", "127.0.0.2:1", "a.localhost"),
        *("192.168.0.7:8000", "box", "box.local", "host.docker.internal:8000", "localhost."),
    ],
)
def test_names_and_addresses_of_this_machine_are_answered(client, host):
    assert client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", [EVIL, "http://evil.example:8000", "null", "http://localhost.a"])
def test_pages_of_others_neither_read_nor_ask(client, origin):
    refused = preflight(client, origin)
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers
    # What needs no preflight is not even begun.
    answer = client.post("/v1/completions", json=ASK, headers={"origin": origin})
    assert answer.status_code == 403
    assert "--cors-origins" in answer.json()["error"]["message"]
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173", "app://obsidian.md"],
)
def test_pages_of_this_machine_do(client, origin):
    assert preflight(client, origin).headers["access-control-allow-origin"] == origin
    answer = client.post("/v1/completions", json=ASK, headers={"origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    error = client.post("/v1/completions", json={}, headers={"origin": origin})
    assert error.status_code == 400
    assert error.headers["access-control-allow-origin"] == origin


def test_the_server_s_own_page_does(client, server):
    host = server.url.partition("://")[2]
    fields = {"origin": f"https://{host}", "host": host}
    assert client.post("/v1/completions", json=ASK, headers=fields).status_code == 200


def test_settings_open_it():
    settings = Settings(cors_origins=("*",), allowed_hosts=("*",))
    with toy_server(settings=settings) as server:
        assert preflight(server.client, EVIL).headers["access-control-allow-origin"] == "*"
        fields = {"origin": EVIL, "host": "evil.example"}
        answer = server.client.post("/v1/completions", json=ASK, headers=fields)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    ("given", "host", "origin", "is_refused"),
    [
        ({"host": "127.0.0.1", "has_keys": True}, "evil.example", EVIL, False),
        ({"host": "0.0.0.0", "has_keys": False}, "llm.corp.example", None, False),
        ({"host": "0.0.0.0", "has_keys": False}, "lanewise.ns.svc.cluster.local:80", EVIL, False),
        ({"host": "::1", "has_keys": False}, "evil.example", None, True),
        ({"host": "localhost", "has_keys": False}, "evil.example", None, True),
        ({"allowed_hosts": ["llm.example"]}, "llm.example:443", None, False),
        ({"allowed_hosts": ["llm.example"]}, "localhost", None, False),
        ({"allowed_hosts": ["llm.example"]}, "evil.example", None, True),
        ({"allowed_hosts": ["llm.example"], "has_keys": True}, "evil.example", None, True),
        ({"allowed_hosts": ["LLM.example"]}, "llm.example", "https://llm.example", False),
        ({"cors_origins": ["https://ui.example"]}, "localhost", "https://ui.example", False),
        ({"cors_origins": ["https://ui.example"]}, "localhost", EVIL, True),
        ({}, None, None, False),
        ({}, "", None, False),
    ],
)
def test_who_is_refused(given, host, origin, is_refused):
    pages = WebPages(**{"host": "127.0.0.1", "has_keys": False} | given)
    found = pages.refusal(host and host.encode(), origin and origin.encode())
    assert (found is not None) == is_refused


@pytest.mark.parametrize(("has_keys", "origins"), [(True, ["*"]), (False, [])])
def test_pages_of_others_need_a_key_to_read(has_keys, origins):
    pages = WebPages(host="0.0.0.0", has_keys=has_keys)
    assert pages.origins == origins
    assert (pages.local_origins is None) == has_keys
