"""A prompt is computed once: a server that is killed and started again reads what it had."""

import contextlib
import os
import random
import sys

import httpx
import pytest

from family_models import write_case
from lanewise.cli import main
from lora_files import lora_config, lora_tensors, write_adapter
from s3_server import BUCKET, s3_server
from serving import free_port, lanewise_server, metric, running, wait_for
from tiny_models import prompt, tiny_model, write_hf

WORDS = ("the", "river", "rises", "over", "wide", "fields", "and", "takes", "houses", "with", "it")
PROMPT = " ".join(random.Random(5).choices(WORDS, k=180))
BODY = {
    "model": "lanewise-demo-q8_0",
    "prompt": PROMPT,
    "max_tokens": 12,
    "temperature": 0,
    "logprobs": 3,
}


@contextlib.contextmanager
def server(store, *more, model="demo", env=None):
    """A server's process and address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "lanewise", "serve", model, "--port", str(port)]
    command += ["--threads", "1", "--kv-store", str(store), *more]
    env = None if env is None else os.environ | env
    with running(command, f"{url}/health/ready", env=env) as process:
        yield process, url


def ask(url, key="", **changes):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post(f"{url}/v1/completions", json=BODY | changes, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    details = body["usage"].get("prompt_tokens_details") or {}
    return body["choices"][0], body["usage"]["prompt_tokens"], details.get("cached_tokens", 0)


def blocks(url, result, name="lanewise-demo-q8_0"):
    labels = f'engine="0",model_name="{name}",result="{result}"'
    return metric(url, f"lanewise_kv_store_blocks_total{{{labels}")


@pytest.fixture
def written(_native_library, tmp_path):
    """A store with a prompt, and the answer to it, of a server that was killed."""
    store = tmp_path / "store"
    with server(store) as (process, url):
        answer, n_prompt, cached = ask(url)
        assert cached == 0
        wait_for(lambda: blocks(url, "written") >= n_prompt // 32, "blocks")
        process.kill()
        process.wait()
    return store, answer, n_prompt


def test_a_killed_server_has_its_prompts_after_a_start(written, capsys):
    store, answer, n_prompt = written
    with server(store) as (_, url):
        again, _, cached = ask(url)
        assert cached == (n_prompt - 1) // 32 * 32 > 0
        assert again == answer
        assert blocks(url, "read") == cached // 32
    with lanewise_server("demo", "--threads", "2") as url:
        assert ask(url)[0] == answer
    assert main(["store", "--kv-store", str(store), "--verify"]) == 0
    told = capsys.readouterr().out
    assert "lanewise-demo" in told
    assert "0 blocks are not whole" in told
    assert main(["store", "--kv-store", str(store), "--trim", "1"]) == 0
    assert not list(store.rglob("*.kv"))


def test_an_exported_prompt_is_known_to_a_server_that_imports_it(written, tmp_path, capsys):
    store, answer, n_prompt = written
    archive, other = str(tmp_path / "prompt.tar"), tmp_path / "other"
    assert main(["store", "--kv-store", str(store), "--export-file", archive]) == 0
    assert main(["store", "--kv-store", str(other), "--import-file", archive]) == 0
    assert " blocks are new" in capsys.readouterr().out
    with server(other) as (_, url):
        again, _, cached = ask(url)
        assert (again, cached) == (answer, (n_prompt - 1) // 32 * 32)
    assert main(["store", "--kv-store", str(other), "--import-file", __file__]) == 2
    assert "accepted: an export_file" in capsys.readouterr().err


def test_other_settings_and_spoiled_files_are_misses(written, capsys):
    store, answer, _ = written
    with server(store, "--kv-cache-dtype", "q4") as (_, url):
        assert ask(url)[2] == 0
    secret = store.parent / "secret"
    secret.write_text("0123456789abcdef")
    with server(store, "--kv-store-key-file", str(secret)) as (_, url):
        assert ask(url)[2] == 0
    for path in store.rglob("*.kv"):
        path.write_bytes(path.read_bytes()[:-1])
    assert main(["store", "--kv-store", str(store), "--verify"]) == 1
    assert "not whole" in capsys.readouterr().err
    with server(store) as (_, url):
        again, _, cached = ask(url)
        assert (again, cached) == (answer, 0)
        assert blocks(url, "missed") == 1


@pytest.mark.usefixtures("_native_library")
def test_keys_find_their_own_whatever_their_order(tmp_path):
    store = tmp_path / "store"
    with server(store, "--api-key", "one", "--api-key", "two") as (_, url):
        _, n_prompt, _ = ask(url, "one")
        wait_for(lambda: blocks(url, "written") >= n_prompt // 32, "blocks")
    with server(store, "--api-key", "two", "--api-key", "one") as (_, url):
        assert ask(url, "two")[2] == 0
        assert ask(url, "one")[2] > 0


@pytest.mark.usefixtures("_native_library")
def test_an_encrypted_prompt_is_read_again(tmp_path):
    store, secret = tmp_path / "store", tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    options = ("--kv-store-key-file", str(secret), "--kv-store-encrypt", "on")
    with server(store, *options) as (process, url):
        answer, n_prompt, _ = ask(url)
        wait_for(lambda: blocks(url, "written") >= n_prompt // 32, "blocks")
        process.kill()
        process.wait()
    with server(store, *options) as (_, url):
        again, _, cached = ask(url)
        assert (again, cached) == (answer, (n_prompt - 1) // 32 * 32)
    assert main(["store", "--kv-store", str(store), "--verify"]) == 0


def test_what_encrypts_wants_a_secret(tmp_path, capsys):
    store = ["--kv-store", str(tmp_path / "store"), "--kv-store-encrypt", "on"]
    assert main(["serve", "demo", "--port", "0", *store]) == 2
    assert "kv_store_encrypt is on without kv_store_key_file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "short"])
def test_a_secret_that_cannot_be_used_is_told_at_the_start(tmp_path, content, capsys):
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_text(content)
    store = ["--kv-store", str(tmp_path / "store"), "--kv-store-key-file", str(secret)]
    assert main(["serve", "demo", "--port", "0", *store]) == 2
    assert f"kv_store_key_file: {secret}" in capsys.readouterr().err


def test_a_store_that_cannot_be_written_is_told_at_the_start(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["serve", "demo", "--port", "0", "--kv-store", str(tmp_path / "file/in")]) == 2
    assert "file/in: Not a directory; accepted: a directory" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["lfm2", "qwen3_next", "granitemoehybrid", "nemotron_h"])
@pytest.mark.usefixtures("_native_library")
def test_the_state_of_a_prompt_survives_a_kill(family, tmp_path):
    model = write_case(family, tmp_path / "model", max_position_embeddings=512)
    store, body = tmp_path / "store", {"prompt": PROMPT[:300], "model": "any"}
    with server(store, model=str(model)) as (process, url):
        name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        body["model"] = name
        answer, n_prompt, cached = ask(url, **body)
        assert cached == 0
        wait_for(lambda: stored_states(url, name, "written") >= 1, "a state")
        wait_for(lambda: blocks(url, "written", name) >= n_prompt // 32, "blocks")
        process.kill()
        process.wait()
    with server(store, "--draft-tokens", "3", model=str(model)) as (_, url):
        again, _, cached = ask(url, **body)
        assert again == answer
        assert cached == (n_prompt - 1) // 32 * 32
        assert stored_states(url, name, "read") == 1


def stored_states(url, name, result):
    labels = f'engine="0",model_name="{name}",result="{result}"'
    return metric(url, f"lanewise_kv_store_snapshots_total{{{labels}")


@pytest.mark.usefixtures("_native_library")
def test_servers_with_directories_of_their_own_share_a_bucket(tmp_path):
    with s3_server(delay_s=0.01) as s3:
        remote = ("--kv-store-remote", f"s3://{BUCKET}/prompts")
        with server(tmp_path / "one", *remote, env=s3.environment()) as (process, url):
            answer, n_prompt, _ = ask(url)
            wait_for(lambda: remote_objects(url, "written") >= n_prompt // 32, "objects")
            process.kill()
            process.wait()
        # A busy machine may compute the few tokens before it has read them: then another one tries.
        assert any(
            reads_from_bucket(tmp_path / f"other{turn}", remote, s3, answer) for turn in range(10)
        )
        s3.status = 503
        with server(tmp_path / "third", *remote, env=s3.environment()) as (_, url):
            assert ask(url)[0] == answer
            wait_for(lambda: remote_objects(url, "failed") > 0, "a failure")


def reads_from_bucket(store, remote, s3, answer):
    """Whether a server with an empty directory has read a prompt; its answer is the same anyhow."""
    n_put = s3.asked["PUT"]
    with server(store, *remote, env=s3.environment()) as (_, url):
        wait_for(lambda: s3.asked["PUT"] > n_put, "what follows its listing")
        again, n_prompt, cached = ask(url)
        assert again == answer
        if cached != (n_prompt - 1) // 32 * 32:
            return False
        assert remote_objects(url, "read") == cached // 32
        return True


def remote_objects(url, result):
    labels = f'engine="0",model_name="lanewise-demo-q8_0",result="{result}"'
    return metric(url, f"lanewise_kv_store_remote_objects_total{{{labels}")


@pytest.mark.parametrize(
    ("remote", "says"),
    [("ftp://any/thing", "kv_store_remote is ftp://any/thing"), ("s3://any", "without kv_store")],
)
def test_a_bucket_that_cannot_be_used_is_told_at_the_start(tmp_path, remote, says, capsys):
    store = ["--kv-store", str(tmp_path / "store")] if "without" not in says else []
    assert main(["serve", "demo", "--port", "0", *store, "--kv-store-remote", remote]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("_native_library")
def test_an_adapter_finds_its_own_after_a_kill_whatever_its_name(tmp_path):
    model = tiny_model("llama3")
    write_hf(model, tmp_path / "base")
    for name, rank in (("first", 4), ("second", 16)):
        tensors = lora_tensors(model, rank=rank, seed=rank)
        write_adapter(tmp_path / name, tensors, lora_config(rank, 2 * rank))
    base, body = str(tmp_path / "base"), {"prompt": prompt(70), "logprobs": 2}
    more = ("--max-loras", "2", "--served-model-name", "base")

    def loras(**paths):
        return [f"--lora={name}={tmp_path / path}" for name, path in paths.items()]

    with server(tmp_path / "store", *more, *loras(a="first"), model=base) as (process, url):
        answer, _, cached = ask(url, model="a", **body)
        assert cached == 0
        wait_for(lambda: blocks(url, "written", "base") >= 2, "blocks")
        process.kill()
        process.wait()
    renamed = loras(a="second", b="first")
    with server(tmp_path / "store", *more, *renamed, model=base) as (_, url):
        assert ask(url, model="a", **body)[2] == 0
        assert ask(url, model="base", **body)[2] == 0
        again, _, cached = ask(url, model="b", **body)
        assert (again, cached) == (answer, 64)
