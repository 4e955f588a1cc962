"""/v1/files: the openai package unmodified, bounds, and what attackers send."""

import contextlib
import os
import socket
import threading
import time
from dataclasses import replace

import httpx
import openai
import pytest

from kept import KEYS, keeping_server
from lanewise.records.files import FileLimits, FileStore
from toy_server import DEFAULTS, toy_server

LIMITS = FileLimits(file_bytes=3 << 20, bytes=5 << 20, files=6)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = replace(DEFAULTS, body_timeout_s=1.0)
    folder = tmp_path_factory.mktemp("data")
    with keeping_server(folder, LIMITS, settings=settings, api_keys=KEYS) as running:
        yield running


@pytest.fixture
def sdk(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0], max_retries=0) as sdk:
        yield sdk
        for file in sdk.files.list():
            sdk.files.delete(file.id)
    assert not list(server.state.files.folder.iterdir())


@pytest.fixture
def other(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[1], max_retries=0) as sdk:
        yield sdk


def post(server, content, content_type="multipart/form-data; boundary=x", **more):
    headers = {"authorization": f"Bearer {KEYS[0]}", "content-type": content_type, **more}
    return server.client.post("/v1/files", content=content, headers=headers)


def form(name="a.jsonl", content=b"bytes", purpose="batch", fields=()):
    parts = [("purpose", purpose), *fields]
    text = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in parts
    ).encode()
    head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return text + head.encode() + content + b"\r\n--x--\r\n"


@contextlib.contextmanager
def begun(server, n_bytes):
    """A connection whose request has announced a form of so many bytes."""
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), 10) as sock:
        sock.sendall(
            f"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: {n_bytes}\r\n"
            f"content-type: multipart/form-data; boundary=x\r\n"
            f"authorization: Bearer {KEYS[0]}\r\n\r\n".encode()
        )
        yield sock


def test_the_sdk_uploads_lists_reads_and_deletes(sdk):
    content = os.urandom(2 << 20) + b"\r\n--x--\r\n"
    made = sdk.files.create(file=("a b.jsonl", content), purpose="batch")
    assert (made.filename, made.bytes, made.purpose, made.object) == (
        *("a b.jsonl", len(content)),
        *("batch", "file"),
    )
    assert made.expires_at - made.created_at == 30 * 86400
    keep = {"anchor": "created_at", "seconds": 3600}
    second = sdk.files.create(file=b"", purpose="user_data", expires_after=keep)
    assert second.expires_at - second.created_at == 3600
    assert [file.id for file in sdk.files.list()] == [second.id, made.id]
    assert [file.id for file in sdk.files.list(limit=1)] == [second.id, made.id]
    assert [file.id for file in sdk.files.list(order="asc", after=made.id)] == [second.id]
    assert [file.id for file in sdk.files.list(purpose="batch")] == [made.id]
    assert sdk.files.retrieve(made.id) == made
    assert sdk.files.content(made.id).read() == content
    assert sdk.files.content(second.id).read() == b""
    assert sdk.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError, match=r"No such File object: file-"):
        sdk.files.retrieve(made.id)


def test_other_keys_files_are_not_there(sdk, other):
    made = sdk.files.create(file=b"secret", purpose="batch")
    for call in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    assert list(other.files.list()) == []
    with pytest.raises(openai.BadRequestError, match="after"):
        list(other.files.list(after=made.id))
    assert sdk.files.content(made.id).read() == b"secret"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\\\temp\\\\x.jsonl", "x.jsonl"),
        ("/", "file"),
        ("x\x07\u202e.txt", "x\ufffd\ufffd.txt"),
        ("n" * 300, "n" * 254 + "…"),
        ("'; DROP TABLE files; --", "'; DROP TABLE files; --"),
    ],
)
def test_names_are_text_and_no_paths(server, sdk, name, shown):
    made = post(server, form(name)).json()
    assert made["filename"] == shown
    assert [path.name for path in server.state.files.folder.iterdir()] == [made["id"]]


def test_ids_that_are_paths_are_not_there(server, sdk):
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    for name in ("..", "..%2f..%2fetc%2fpasswd", "%00", "file-" + "a" * 5000):
        for below in ("", "/content"):
            answer = server.client.get(f"/v1/files/{name}{below}", headers=headers)
            assert answer.status_code == 404, name


@pytest.mark.parametrize(
    ("content", "content_type", "said"),
    [
        (b"{}", "application/json", "not a form"),
        (form(), "multipart/form-data", "not a form"),
        (form(), "multipart/form-data; boundary=" + "x" * 300, "cannot be read"),
        (b"nothing of a form", "multipart/form-data; boundary=x", "cannot be read"),
        (form()[:-6], "multipart/form-data; boundary=x", "ends before"),
        (form(purpose="assistants"), None, "accepted: batch, user_data"),
        (form(fields=[("purpose", "batch")]), None, "twice"),
        (form(fields=[("a" * 9, "b" * 5000)]), None, "4096 bytes"),
        (form(fields=[(f"f{i}", "") for i in range(99)]), None, "too many fields"),
        (form(fields=[("expires_after[anchor]", "now")]), None, "accepted: created_at"),
        (
            form(fields=[("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "5")]),
            None,
            "3600 to 2592000",
        ),
        (form()[: -len(b"--x--\r\n")] + form().partition(b"batch\r\n")[2], None, "two"),
        (form().partition(b"--x\r\n")[0] + b"--x--", None, "file"),
        (b"--x\r\n" + b"A: b\r\n" * 500 + b"\r\n\r\n--x--", None, "cannot be read"),
        (b"--x\r\n" + b"A: " + b"b" * 50_000, None, "cannot be read"),
    ],
)
def test_what_is_no_good_form_is_refused_and_leaves_nothing(
    server, sdk, content, content_type, said
):
    answer = post(server, content, content_type or "multipart/form-data; boundary=x")
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(server, sdk):
    with begun(server, 10 << 30) as sock:
        answer = sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"at most 3145728 bytes (max_file_bytes)" in answer

    def endless():
        yield form()[:-9]
        while True:
            yield bytes(64 << 10)

    with contextlib.suppress(httpx.WriteError):  # it has closed while more was sent
        assert post(server, endless()).status_code == 413


def test_what_is_announced_and_never_sent_ends_in_time(server, sdk):
    with begun(server, 2_000_000) as sock:
        sock.sendall(form()[:-9])
        assert sock.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_long_upload_that_moves_on_has_time(server, sdk):
    """It takes longer than a body may, and is never held in memory."""
    whole = form(content=bytes(3 << 20)[:-1024])

    def slowly():
        for first in range(0, len(whole), 1 << 19):
            time.sleep(0.3)
            yield whole[first : first + (1 << 19)]

    held, over = [], threading.Event()
    registry = server.state.engine.metrics.registry

    def watch():
        while not over.wait(0.02):
            held.append(registry.get_sample_value("lanewise_request_memory_bytes"))

    watching = threading.Thread(target=watch)
    watching.start()
    answer = post(server, slowly())
    over.set()
    watching.join()
    assert answer.status_code == 200, answer.text
    assert max(held) < 1 << 20


def test_a_key_has_no_more_than_its_quota(server, sdk, other):
    sdk.files.create(file=bytes(3 << 20), purpose="batch")
    with pytest.raises(openai.PermissionDeniedError, match="file_quota") as refused:
        sdk.files.create(file=bytes(2 << 20) + b"x", purpose="batch")
    assert refused.value.code == "quota_exceeded"
    for _ in range(5):
        sdk.files.create(file=b"x", purpose="batch")
    with pytest.raises(openai.PermissionDeniedError, match="max_files"):
        sdk.files.create(file=b"x", purpose="batch")
    made = other.files.create(file=bytes(3 << 20), purpose="batch")
    other.files.delete(made.id)


def test_a_client_that_leaves_leaves_nothing(server, sdk):
    folder = server.state.files.folder
    with begun(server, 3_000_000) as sock:
        sock.sendall(form()[:-9] + bytes(2 << 20))
        server.wait_until(lambda: any(folder.iterdir()))
    server.wait_until(lambda: not any(folder.iterdir()))
    for _ in range(5):  # its place and bytes are free again
        sdk.files.create(file=bytes(1 << 19), purpose="batch")


def test_a_full_disk_is_said_and_leaves_nothing(server, sdk, monkeypatch):
    monkeypatch.setattr("lanewise.records.files.LEFT_FREE", 1 << 60)
    with pytest.raises(openai.InternalServerError, match="the disk of data_dir is full") as full:
        sdk.files.create(file=b"x", purpose="batch")
    assert (full.value.status_code, full.value.code) == (507, "disk_full")


def test_files_go_when_their_time_is_over_and_strays_when_the_store_opens(server, sdk, monkeypatch):
    store = server.state.files
    made = sdk.files.create(file=b"x", purpose="batch")
    (store.folder / "stray").write_text("of a server that was killed")
    FileStore(store.database, store.folder.parent, LIMITS)
    assert [path.name for path in store.folder.iterdir()] == [made.id]
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 31 * 86400)
    with pytest.raises(openai.NotFoundError):
        sdk.files.retrieve(made.id)
    assert store.remove_expired() == 1


def test_without_a_data_dir_it_says_what_to_do():
    with toy_server() as plain:
        answer = plain.client.get("/v1/files")
    assert answer.status_code == 501
    assert "started without --data-dir" in answer.json()["error"]["message"]


def test_without_a_key_there_is_nothing(server):
    assert server.client.get("/v1/files").status_code == 401
