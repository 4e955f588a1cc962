"""The content of the arm64 image answers on the cores that it is for, emulated.

``make test-all`` has it: an emulated Python takes minutes. Kernels and models are in ``make test``.
"""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import arm_root
import httpx
import pytest
from levels import LEVELS, TIMEOUT_S, Level, missing

import topics
from serving import free_port, lanewise_server, running

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

CPUS = {level.name: level for level in LEVELS}
CHOSEN = topics.thorough(CPUS["n1"], CPUS["v1-sve256"], CPUS["n2-sve128"])
ANSWER_S = 300.0  # an idle machine needs one
ASKED = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
STREAMED = 100


@pytest.fixture(scope="module")
def answer() -> str:
    """What this machine's server says."""
    with lanewise_server() as url:
        return said(url)


def said(url: str) -> str:
    answered = httpx.post(f"{url}/v1/completions", json=ASKED, timeout=ANSWER_S).json()
    return str(answered["choices"][0]["text"])


@contextmanager
def doctor(command: list[str], environment: dict[str, str]) -> Iterator[Callable[[], dict]]:
    """The report of ``lanewise doctor``, which runs meanwhile."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "doctor", "--json"], env=environment, **options) as process:

        def report() -> dict:
            out, error = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, out + error
            return json.loads(out)

        yield report


@pytest.mark.parametrize("level", CHOSEN, ids=str)
def test_the_arm64_image_works_answers_and_drains(
    level: Level, content: arm_root.ArmRoot, answer: str, tmp_path: Path
) -> None:
    if reason := missing(level):
        topics.skip("arm", reason)
    lanewise = [str(content.python(level)), "-m", "lanewise"]
    env = arm_root.environment(tmp_path)
    url = f"http://127.0.0.1:{(port := free_port())}"
    serve = [*lanewise, "serve", "--port", str(port), "--threads", "1"]
    with (
        doctor(lanewise, env) as report,
        running(serve, f"{url}/health/ready", env=env) as process,
    ):
        assert said(url) == answer
        drains(url, process)
        found = report()
        assert found["levels"] == list(level.isas)
        assert found["selftest"]["ok"]


def drains(url: str, process: subprocess.Popen[bytes]) -> None:
    """SIGTERM with a stream under way: it comes to its end, others are refused, status 0."""
    body = ASKED | {"max_tokens": STREAMED, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    with (
        httpx.Client(timeout=ANSWER_S) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        while (status := httpx.post(f"{url}/v1/completions", json=ASKED).status_code) == 200:
            pass
        assert status == 503
        *_, last, done = (line for line in lines if line)
    assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] == STREAMED
    assert done == "data: [DONE]"
    assert process.wait(60) == 0
