"""``lanewise serve`` with adapters: chosen by name, loaded and unloaded while it answers."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from lora_files import lora_config, lora_tensors, write_adapter
from serving import lanewise_server
from tiny_models import prompt, tiny_model, write_hf

ADMIN = {"authorization": "Bearer admin-key"}
PROMPT = prompt(70)  # two full KV blocks and a part


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    model = tiny_model("llama3")
    write_hf(model, folder / "base")
    for name, rank in (("first", 4), ("second", 16)):
        tensors = lora_tensors(model, rank=rank, seed=rank)
        write_adapter(folder / name, tensors, lora_config(rank, 2 * rank))
    return folder


@pytest.fixture(scope="module")
def client(files):
    (files / "admin").write_text("# for administrators\nadmin-key\n")
    arguments = ("--lora", f"first={files / 'first'}", "--allow-runtime-lora", "on")
    arguments += ("--lora-root", str(files), "--admin-api-key-file", str(files / "admin"))
    more = ("--max-loras", "2", "--threads", "2", "--served-model-name", "base,basis")
    with (
        lanewise_server(str(files / "base"), *arguments, *more) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


def load(client, name, path):
    body = {"lora_name": name, "lora_path": str(path)}
    return client.post("/v1/load_lora_adapter", json=body, headers=ADMIN)


def unload(client, name):
    return client.post("/v1/unload_lora_adapter", json={"lora_name": name}, headers=ADMIN)


def complete(client, model, **fields):
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True} | fields
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def tokens(client, model, **fields):
    return complete(client, model, **fields)["choices"][0]["token_ids"]


def test_adapters_are_models_of_their_own(client, files):
    listed = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert listed["base"]["parent"] is None
    assert listed["first"]["parent"] == "base"
    assert listed["first"]["root"] == str(files / "first")
    assert client.get("/v1/models/first").json() == listed["first"]
    assert complete(client, "first")["model"] == "first"
    assert tokens(client, "first") != tokens(client, "base")
    missing = client.post("/v1/completions", json={"model": "third", "prompt": "x"})
    assert missing.status_code == 404
    assert "this server has 'base', 'basis', 'first'" in missing.json()["error"]["message"]


def test_chats_choose_adapters_too(client):
    def chat(model):
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
        answer = client.post("/v1/chat/completions", json=body | {"temperature": 0, "seed": 1})
        return answer.json()["model"], answer.json()["choices"][0]["message"]["content"]

    assert chat("first")[0] == "first"
    assert chat("first")[1] != chat("base")[1]


def test_requests_of_all_adapters_run_together_and_answer_as_alone(client, files):
    assert load(client, "second", files / "second").status_code == 200
    names = ["base", "first", "second"]
    prompts = [PROMPT[: 20 + 7 * i] for i in range(6)]
    jobs = [(name, prompt) for prompt in prompts for name in names]

    def ask(job):
        return tokens(client, job[0], prompt=job[1], max_tokens=24)

    alone = [ask(job) for job in jobs]
    with ThreadPoolExecutor(len(jobs)) as pool:
        assert list(pool.map(ask, jobs)) == alone
    assert len({tuple(answer) for answer in alone[-3:]}) == 3
    assert unload(client, "second").status_code == 200


def test_cached_prefixes_are_never_another_adapters(client, files):
    def ask(name):
        answer = complete(client, name, cache_salt="prefix test")
        details = answer["usage"]["prompt_tokens_details"]
        return answer["choices"][0]["token_ids"], details["cached_tokens"]

    assert load(client, "changing", files / "first").status_code == 200
    assert [ask("base")[1], ask("changing")[1]] == [0, 0]
    # With the same weights it is the same adapter.
    assert [ask("base")[1], ask("changing")[1], ask("first")[1]] == [69, 69, 69]
    assert unload(client, "changing").status_code == 200
    assert load(client, "changing", files / "second").status_code == 200
    changed, cached = ask("changing")
    assert cached == 0
    assert changed != ask("first")[0]
    assert unload(client, "changing").status_code == 200


def test_a_stream_ends_as_it_began_when_its_adapter_is_unloaded(client, files):
    assert load(client, "short", files / "second").status_code == 200
    expected = tokens(client, "short", max_tokens=150)
    body = {"model": "short", "prompt": PROMPT, "max_tokens": 150, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True, "stream": True}
    found = []
    with client.stream("POST", "/v1/completions", json=body) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            if not found:
                assert unload(client, "short").status_code == 200
                assert unload(client, "short").status_code == 404
            found += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
    assert found == expected
    assert client.post("/v1/completions", json=body).status_code == 404
    # And its place is free again.
    assert load(client, "short", files / "second").status_code == 200
    assert unload(client, "short").status_code == 200


def test_what_cannot_be_loaded_is_said(client, files):
    def refused(status, answer):
        assert answer.status_code == status, answer.text
        return answer.json()["error"]["message"]

    for path in (files / "base", files / "nowhere", files.parent, "/dev/zero", "~root", "a\0b"):
        assert "there is no adapter" in refused(400, load(client, "new", path))
    broken = files / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_bytes((files / "first/adapter_config.json").read_bytes())
    (broken / "adapter_model.safetensors").write_bytes(b"secrets!" * 100)
    assert "the server's log says why" in (told := refused(400, load(client, "new", broken)))
    assert "secret" not in told
    assert str(int.from_bytes(b"secrets!", "little")) not in told
    body = {"lora_name": "new", "lora_path": "second"}
    assert "administrator" in refused(403, client.post("/v1/load_lora_adapter", json=body))
    assert load(client, "new", "second").status_code == 200  # paths may begin at the root
    assert unload(client, "new").status_code == 200
    assert "already been loaded" in refused(400, load(client, "first", files / "first"))
    for name in ("base", "basis"):
        told = refused(400, load(client, name, files / "first"))
        assert "is a name of the served model; accepted: any but base, basis" in told
    assert load(client, "one", files / "second").status_code == 200
    assert "at most max_loras = 2" in refused(400, load(client, "two", files / "second"))
    assert unload(client, "one").status_code == 200
    assert "not loaded" in refused(404, unload(client, "one"))
    assert "lora_path is required" in refused(
        400, client.post("/v1/load_lora_adapter", json={"lora_name": "x"}, headers=ADMIN)
    )
    assert tokens(client, "first")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lora", "x=nowhere"), "lora: nowhere: adapter_config.json is missing"),
        (("--lora", "nowhere"), "--lora: 'nowhere' cannot be used; accepted: NAME=PATH"),
        (("--lora", "base=first"), "'base' is a name of the served model"),
        (
            ("--lora", "x=first", "--served-model-name", "y,x,y"),
            "'x' is a name of the served model; accepted: any but y, x",
        ),
        (("--lora", "x=second", "--max-lora-rank", "8"), "has rank 16; accepted: 1 to 8"),
        (("--lora", "x=first,y=first", "--max-loras", "1"), "accepted: at most max_loras = 1"),
        (("--allow-runtime-lora", "on"), "allow_runtime_lora is on without admin_api_key"),
        (("--allow-runtime-lora", "on", "--admin-api-key", "k"), "lora_root is None"),
    ],
)
def test_a_server_does_not_start_with_an_adapter_it_cannot_use(files, arguments, message):
    command = [sys.executable, "-m", "lanewise", "serve", "base", "--port", "0", *arguments]
    done = subprocess.run(command, cwd=files, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
