"""A packed model's file that somebody truncates or writes to while a server has it mapped."""

import shutil
import signal
import subprocess
import sys

import httpx
import pytest

from serving import answers, free_port, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.native]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "model"
    pack = [sys.executable, "-m", "lanewise", "pack", "--output", str(folder)]
    subprocess.run(pack, capture_output=True, timeout=120, check=True)
    return folder


@pytest.fixture
def served(tmp_path, packed):
    """A mapped model's weights file, the URL of the server of it, its process and its log."""
    folder = tmp_path / "model"
    shutil.copytree(packed, folder)
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "lanewise", "serve", str(folder), "--load", "map"]
    command += ["--threads", "2", "--port", str(port), "--kv-memory", "64MiB"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: process.poll() is not None or answers(f"{url}/health/ready"), url)
        assert process.poll() is None, log.read_text()
        yield folder / "model.safetensors", url, process, log
    finally:
        process.kill()
        process.wait()


def test_truncated(served):
    weights, url, process, log = served
    with weights.open("r+b") as file:
        file.truncate(0)
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{url}/v1/completions", json={"prompt": "The sea", "max_tokens": 8}, timeout=60)
    assert process.wait(60) == -signal.SIGBUS
    said = [line for line in log.read_text().splitlines() if str(weights) in line]
    assert len(said) == 1
    assert said[0].startswith(f"lanewise: {weights}: ")
    assert "it was truncated" in said[0]
    assert "Replace model files by rename" in said[0]


def test_overwritten_and_replaced(served):
    weights, url, process, log = served
    data = weights.read_bytes()
    new = weights.with_suffix(".new")
    new.write_bytes(data[: len(data) // 2])
    held = weights.open("r+b")  # the file that is mapped, whatever its name comes to be
    with held:
        held.seek(len(data) // 2)
        held.write(b"\xff" * 100)
        held.flush()

        def status() -> int:
            return httpx.get(f"{url}/health/ready", timeout=60).status_code

        wait_for(lambda: status() == 503, "not ready")
    reason = httpx.get(f"{url}/health/ready").json()["status"]
    assert reason.startswith(f"{weights}: changed while it is served")
    assert sum(reason in line for line in log.read_text().splitlines()) == 1
    assert httpx.get(f"{url}/health/live").status_code == 200
    new.rename(weights)
    body = {"prompt": "The sea", "max_tokens": 2}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code in (200, 500)
    assert process.poll() is None


def test_replaced_by_rename(served):
    weights, url, process, log = served
    body = {"prompt": "The sea", "max_tokens": 16, "temperature": 0}
    before = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"]
    new = weights.with_suffix(".new")
    new.write_bytes(b"\xff" * 100)
    new.rename(weights)
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"] == before
    assert httpx.get(f"{url}/health/ready").status_code == 200
    assert process.poll() is None
    assert "changed while" not in log.read_text()
