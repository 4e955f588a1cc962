"""Requests that load adapters, where the server allows it and where it does not."""

import os
from contextlib import contextmanager
from functools import partial

import pytest

from lanewise.engine.base.adapters import AdapterFileError, Adapters
from lanewise.loading.adapters.lora import files_under
from toy import ToyAdapter
from toy_server import toy_server

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


ADMIN = {"authorization": "Bearer admin"}


def load(path: str) -> ToyAdapter:
    if not path.endswith("there"):
        raise AdapterFileError(f"{path}: byte 0 of the file is 113")
    return ToyAdapter(7)


@pytest.fixture(scope="module")
def fixed():
    """A server with one adapter, and no other ever."""
    adapters = Adapters(load, 1)
    adapters.load("tuned", "/there")
    with toy_server(adapters=adapters) as running:
        yield running


def error(answer, status):
    assert answer.status_code == status
    return answer.json()["error"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_no_request_changes_what_the_operator_chose(server, fixed, path):
    for one in (server, fixed):
        body = {"lora_name": "tuned", "lora_path": "/there"}
        told = error(one.client.post(path, json=body), 403)
        assert told["code"] == "forbidden"
        assert "--allow-runtime-lora" in told["message"]


@pytest.fixture
def root(tmp_path):
    """A directory of adapters, and one of somebody else beside it."""
    for name in ("root/there", "root/odd", "elsewhere"):
        (folder := tmp_path / name).mkdir(parents=True)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            (folder / file).write_text("{}")
    return tmp_path / "root"


@contextmanager
def changeable(root, **options):
    options = {"admin_keys": ("admin",), **options}
    options["locate_adapter"] = partial(files_under, root)
    with toy_server(adapters=Adapters(load, 1), **options) as running:
        yield running


def test_what_is_wrong_with_a_request_is_named(root):
    with changeable(root) as running:

        def post(path, body):
            return running.client.post(path, json=body, headers=ADMIN)

        for name in ("", "a\r\nb", "x" * 257):
            told = error(post(LOAD, {"lora_name": name, "lora_path": "there"}), 400)
            assert told["param"] == "lora_name"
        for path in (5, "x" * 5000):
            told = error(post(LOAD, {"lora_name": "x", "lora_path": path}), 400)
            assert told["param"] == "lora_path"
        told = error(post(LOAD, {"lora_name": "toy", "lora_path": "there"}), 400)
        assert told["param"] == "lora_name"
        assert error(post(UNLOAD, {"lora_name": "x"}), 404)["code"] == "model_not_found"
        assert post(LOAD, {"lora_name": "x", "lora_path": "there"}).status_code == 200
        there = str(root / "there")
        assert (
            "already" in error(post(LOAD, {"lora_name": "x", "lora_path": there}), 400)["message"]
        )


def test_only_what_lies_under_the_root_is_looked_at(root):
    outside = root.parent / "elsewhere"
    (root / "link").symlink_to(outside)
    (root / "circle").symlink_to(root / "circle")
    for name, target in (("file", outside / "adapter_model.safetensors"), ("zero", "/dev/zero")):
        (root / name).mkdir()
        (root / name / "adapter_config.json").write_text("{}")
        (root / name / "adapter_model.safetensors").symlink_to(target)
    (root / "fifo").mkdir()
    os.mkfifo(root / "fifo" / "adapter_config.json")
    os.mkfifo(root / "fifo" / "adapter_model.safetensors")
    (root / "~root").symlink_to(outside)
    with changeable(root) as running:
        answers = set()
        for path in (
            *(str(outside), "../elsewhere", "/nowhere", "nowhere", "/dev/zero", "/etc/passwd", "/"),
            *(
                "link",
                "circle",
                "file",
                "zero",
                "fifo",
                "~root",
                "~",
                ".",
                "a\0b",
                "/" + "x/" * 2000,
            ),
        ):
            body = {"lora_name": "x", "lora_path": path}
            told = error(running.client.post(LOAD, json=body, headers=ADMIN), 400)
            assert told["param"] == "lora_path"
            answers.add(told["message"])
        assert len(answers) == 1
        assert str(outside) not in answers.pop()
        body = {"lora_name": "x", "lora_path": "odd"}
        told = error(running.client.post(LOAD, json=body, headers=ADMIN), 400)
        assert "the server's log says why" in told["message"]
        assert "113" not in told["message"]


def test_adapters_are_changed_with_an_administrators_key_only(root):
    body = {"lora_name": "x", "lora_path": "there"}
    for keys in ((), ("user",)):
        with changeable(root, api_keys=keys) as running:
            for headers in ({}, {"authorization": "Bearer user"}):
                status = 401 if keys and not headers else 403
                for path in (LOAD, UNLOAD):
                    told = error(running.client.post(path, json=body, headers=headers), status)
                    assert told["code"] == ("forbidden" if status == 403 else "invalid_api_key")
            assert running.client.post(LOAD, json=body, headers=ADMIN).status_code == 200
            assert running.client.post(UNLOAD, json=body, headers=ADMIN).status_code == 200


def test_a_model_that_is_no_adapter_is_not_here(fixed):
    for path in ("/v1/completions", "/tokenize"):
        told = error(fixed.client.post(path, json={"model": "other", "prompt": "a"}), 404)
        assert told["message"] == "the model 'other' is not here; this server has 'toy', 'tuned'"
    assert error(fixed.client.get("/v1/models/other"), 404)["param"] == "model"
    assert fixed.client.post("/tokenize", json={"model": "tuned", "prompt": "a"}).status_code == 200


def test_streams_carry_the_adapters_name(fixed):
    body = {"model": "tuned", "prompt": "abc", "max_tokens": 2, "stream": True}
    assert '"model":"tuned"' in fixed.client.post("/v1/completions", json=body).text
    assert '"model":"toy"' in fixed.client.post("/v1/completions", json=body | {"model": ""}).text
