"""Keys: who may ask for what, and where they come from."""

import logging

import pytest
from starlette.responses import JSONResponse

from lanewise.api import app
from lanewise.api.endpoints import absent, documents, page
from lanewise.api.endpoints.table import ENDPOINTS, Endpoint
from lanewise.api.http.keys import ANYBODY, Keys
from lanewise.server.start import warn_of_visible_keys
from lanewise.settings import KeyLine, Settings, SettingsError, key_lines, with_keys_of_files
from toy_server import toy_server

PUBLIC = {
    *("/health", "/health/live", "/health/ready", "/metrics", "/version"),
    *("/v1/health", "/ping"),
    *("/openapi.json", *page.FILES),
}
GUARDED = {
    *("/v1/messages", "/v1/messages/count_tokens"),
    "/v1/messages/batches",
    "/v1/messages/batches/{batch_id}",
    "/v1/messages/batches/{batch_id}/cancel",
    "/v1/messages/batches/{batch_id}/results",
    "/v1/files",
    "/v1/files/{file_id}",
    "/v1/files/{file_id}/content",
    "/v1/batches",
    "/v1/batches/{batch_id}",
    "/v1/batches/{batch_id}/cancel",
    *("/v1/responses", "/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items"),
    *("/v1/responses/{response_id}/cancel", "/v1/responses/input_tokens", "/v1/responses/compact"),
    *(
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/control",
        "/v1/models",
        "/v1/models/{name:path}",
    ),
    "/api/v0/models",
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    *("/tokenize", "/detokenize", "/tokenizer_info"),
    *("/api/chat", "/api/generate", "/api/tags", "/api/ps", "/api/show", "/api/version"),
    *("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"),
    *("/api/blobs/{name:path}", "/api/embed", "/api/embeddings"),
    *("/completion", "/infill", "/props", "/slots", "/apply-template", "/embedding"),
    *("/v1/systemone", "/v1/usage"),
    *("/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"),
    *("/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"),
    *("/v1/messages/batches", "/v1/messages/batches/{batch_id}"),
    *("/v1/messages/batches/{batch_id}/cancel", "/v1/messages/batches/{batch_id}/results"),
    *("/invocations", "/embed", "/info", *absent.AT),
}


@pytest.fixture(scope="module")
def guarded():
    with toy_server(api_keys=("first", "second"), admin_keys=("admin",)) as server:
        yield server


def test_every_path_is_known_to_be_public_or_not(guarded):
    """A new one is to be added here, after thinking about who may ask for it."""
    assert {e.path for e in ENDPOINTS if e.public} | {*documents.PATHS, *page.FILES} == PUBLIC
    assert {e.path for e in ENDPOINTS if not e.public} == GUARDED
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{name:path}", "toy")
        for method in (endpoint.method, "HEAD", "OPTIONS", "DELETE", "PATCH"):
            answer = guarded.client.request(method, path)
            assert (answer.status_code == 401) == (endpoint.path in GUARDED), (method, path)


@pytest.mark.parametrize(
    "path",
    [
        "/page",
        "/page/",
        "/page/none.js",
        "/v1",
        "/v1/",
        "/nothing",
        "/health//",  # one at the end is none
        "//health",
        "/Health",
    ],
)
def test_where_there_is_nothing_a_key_is_needed_to_know_it(guarded, path):
    url = guarded.url + path  # whole: httpx would take //health for a host
    assert guarded.client.get(url).status_code == 401
    good = {"authorization": "Bearer first"}
    assert guarded.client.get(url, headers=good).status_code == 404


def test_a_new_endpoint_is_guarded_unless_it_says_otherwise(monkeypatch):
    async def answer(request, state):
        return JSONResponse({})

    new = (Endpoint("/new", "New", answer), Endpoint("/open", "Open", answer, public=True))
    monkeypatch.setattr(app, "ENDPOINTS", (*ENDPOINTS, *new))
    with toy_server(api_keys=("key",)) as server:
        assert server.client.get("/new").status_code == 401
        assert server.client.get("/open").status_code == 200
        good = {"authorization": "Bearer key"}
        assert server.client.get("/new", headers=good).status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer second", 200),
        ("bearer  first", 200),
        ("Bearer admin", 200),
        ("Bearer third", 401),
        ("Bearer firs", 401),
        ("Bearer first second", 401),
        ("Basic first", 401),
        ("first", 401),
        ("Bearer", 401),
        ("Bearer " + "x" * 30_000, 401),
    ],
)
def test_only_a_whole_key_is_one(guarded, header, status):
    answer = guarded.client.get("/v1/models", headers={"authorization": header})
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_callers_have_numbers_of_their_own():
    keys = Keys(("a", "b", "a"), ("c", "d"))
    found = [keys.find(b"Bearer " + key) for key in (b"a", b"b", b"c", b"d", b"e")]
    assert [key[:2] for key in found[:4]] == [(0, False), (1, False), (2, True), (3, True)]
    assert found[4] is None
    only_admins = Keys((), ("c",))
    assert only_admins.find(None) == only_admins.find(b"Bearer x") == ANYBODY
    assert only_admins.find(b"Bearer c")[:2] == (1, True)
    assert Keys((), ()).find(b"Bearer x") == ANYBODY


def test_a_key_is_the_same_tenant_beside_any_other_keys():
    one, other = Keys(("a", "b"), ("c",)), Keys(("b", "d", "a"), ())
    for key in (b"Bearer a", b"Bearer b"):
        assert one.find(key).tenant == other.find(key).tenant != ""
    tenants = [one.find(b"Bearer " + key).tenant for key in (b"a", b"b", b"c")]
    assert len({*tenants, ANYBODY.tenant}) == 4


def test_keys_come_from_files_too(tmp_path, caplog):
    users, admins = tmp_path / "users", tmp_path / "admins"
    users.write_text("# two of them\nfirst\n\n  second  \r\n")
    admins.write_text("boss")
    for file in (users, admins):
        file.chmod(0o600)
    settings = Settings(
        api_key=("zero", "first"), api_key_file=str(users), admin_api_key_file=str(admins)
    )
    found = with_keys_of_files(settings)
    assert (found.api_key, found.admin_api_key) == (("zero", "first", "second"), ("boss",))
    assert not caplog.records
    users.chmod(0o644)
    with_keys_of_files(settings)
    assert "every user of this machine can read" in caplog.text
    assert "first" not in caplog.text


def test_what_is_behind_a_key_is_no_part_of_it(tmp_path):
    file = tmp_path / "keys"
    file.write_text("first  name=a tokens_per_day=5\nsecond requests_per_minute=0\nthird\n")
    file.chmod(0o600)
    settings = Settings(api_key_file=str(file))
    assert with_keys_of_files(settings).api_key == ("first", "second", "third")
    assert key_lines(settings) == [
        KeyLine("first", "a", {"tokens_per_day": 5}),
        KeyLine("second", None, {"requests_per_minute": 0}),
        KeyLine("third"),
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"# none\n", "no keys"),
        (b"secret one\n", "line 1: accepted: one key"),
        (b"secret tokens_per_day=many\n", "line 1: accepted: one key"),
        (b"secret name=\n", "tokens_per_day=N"),
        (b"a name=x\nsecret name=x\n", "two keys have the name x"),
        (b"a\nsecret\x07\n", "line 2: accepted: one key"),
        (b"secret\xff", "not UTF-8"),
        (None, "No such file"),
    ],
)
def test_what_is_wrong_with_a_file_of_keys_is_said_without_showing_them(tmp_path, content, says):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=says) as caught:
        with_keys_of_files(Settings(api_key_file=str(file)))
    assert "secret" not in str(caught.value)


def test_a_key_has_one_right():
    with pytest.raises(SettingsError, match="one of these keys is an api_key too"):
        with_keys_of_files(Settings(api_key=("a", "b"), admin_api_key=("b",)))


def test_keys_in_the_command_line_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        warn_of_visible_keys(["lanewise", "serve", "--api-key-file", "x", "--admin-api-key=y"])
    assert len(caplog.records) == 1
    assert "--admin-api-key shows its keys" in caplog.text
    assert "LANEWISE_ADMIN_API_KEY" in caplog.text
