"""The processes that hostile texts run in: they end with their server, however that ends."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from hostile_texts import ENDLESS_REGEX, ENDLESS_TEMPLATES
from processes import children, descendants, is_gone
from serving import free_port, lanewise_server, metric, running, wait_for
from tiny_models import tiny_model, write_hf

pytestmark = [pytest.mark.e2e, pytest.mark.native]

ASK = {"prompt": "The sea", "max_tokens": 2}
HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def ask_endless(url: str, number: int) -> httpx.Response | None:
    body = ASK | {"guided_regex": ENDLESS_REGEX + "b" * number}
    try:
        return httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    except httpx.HTTPError:
        return None  # the server is gone


def busy(url: str) -> bool:
    return metric(url, "lanewise_sandbox_workers_total") >= 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_server_that_ends_with_much_to_compile(number):
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "lanewise", "serve", "--threads", "1", "--port", str(port)]
    # Without these limits the work would go on for minutes.
    command += ["--grammar-timeout-s", "600", "--grammar-memory", "8GiB", "--drain-timeout-s", "1"]
    with running(command, f"{url}/health/ready") as process, ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(ask_endless, url, i) for i in range(16)]
        wait_for(lambda: busy(url), "grammars are being compiled")
        below = descendants(process.pid)
        assert len(below) >= 3
        process.send_signal(number)
        code = process.wait(30)
        wait_for(lambda: all(map(is_gone, below)), "the sandbox has ended", 30)
        answers = [one.result() for one in asked]
    assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    if number == signal.SIGTERM:
        assert {answer.status_code for answer in answers if answer} == {503}


def test_a_model_whose_template_cannot_be_used_serves_the_rest(tmp_path):
    folder = write_hf(tiny_model("llama2"), tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for text in (ENDLESS_TEMPLATES["power"], "{% for %}"):
        config["chat_template"] = text
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        with lanewise_server(str(folder), "--template-timeout-s", "0.3") as url:
            assert httpx.post(f"{url}/v1/completions", json=ASK, timeout=60).status_code == 200
            for _ in range(2):
                answer = httpx.post(f"{url}/v1/chat/completions", json=HELLO, timeout=60)
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == "messages"
                assert "chat template" in answer.json()["error"]["message"]


def test_a_template_that_was_asked_for_must_be_usable(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{{ a }}" * 100_000)  # to compile it takes long, whatever it says
    command = [sys.executable, "-m", "lanewise", "serve", "--port", "0"]
    command += ["--chat-template", str(path), "--template-timeout-s", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"chat_template: {path}" in done.stderr
    assert "processor time" in done.stderr


def test_workers_hold_no_secrets_and_no_files(tmp_path):
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "lanewise", "serve", "--threads", "1", "--port", str(port)]
    environment = {**os.environ, "LANEWISE_API_KEY": "a-secret", "HF_TOKEN": "a-secret"}
    with running(command, f"{url}/health/ready", env=environment) as process:
        key = {"authorization": "Bearer a-secret"}
        answer = httpx.post(f"{url}/v1/chat/completions", json=HELLO, headers=key, timeout=60)
        assert answer.status_code in (200, 400)  # the bundled model has no template
        regex = ASK | {"guided_regex": "a+"}
        answer = httpx.post(f"{url}/v1/completions", json=regex, headers=key, timeout=60)
        assert answer.status_code == 200
        below = descendants(process.pid)
        assert below
        for pid in below:
            is_zygote = bool(children(pid))
            shown = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
            assert is_zygote or shown == "1000"
            assert b"a-secret" not in Path(f"/proc/{pid}/environ").read_bytes()
            opened = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            assert sum(name.startswith("socket:") for name in opened) == 1
            assert not [name for name in opened if name.endswith(".gguf")]
