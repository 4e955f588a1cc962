"""The gateway's configuration in a real HAProxy before real servers: routes, streams, failures."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import topics
from serving import answers, free_port, metric, running, wait_for

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "gateway" / "haproxy.cfg"


@dataclass
class Gateway:
    url: str
    servers: dict[str, str]  # URLs by the names they have in the configuration
    processes: dict[str, subprocess.Popen[bytes]]

    def ask(self, key: str | None = None, **fields: object) -> urllib.request.Request:
        body = {"prompt": "Once upon a time", "max_tokens": 4} | fields
        headers = {"content-type": "application/json"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        return urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), headers
        )

    def answered(self, name: str) -> float:
        return metric(self.servers[name], "vllm:request_success_total")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[Gateway]:
    program = shutil.which("haproxy")
    if program is None:
        topics.skip("haproxy", "haproxy is not installed")
    text, port = CONFIG.read_text(), free_port()
    servers, processes = {}, {}
    with ExitStack() as started:
        for backend, name, address in re.findall(
            r"^backend (\w+)$|^    server (\w+) (\S+)$", text, re.MULTILINE
        ):
            if backend:
                model = backend
                continue
            here = f"127.0.0.1:{(own := free_port())}"
            command = [sys.executable, "-m", "lanewise", "serve", "--threads", "1"]
            command += ["--port", str(own), "--served-model-name", model]
            command += ["--lame-duck-s", "4"]
            ready = f"http://{here}/health/ready"
            processes[name] = started.enter_context(running(command, ready))
            servers[name] = f"http://{here}"
            text = text.replace(address, here)
        text = text.replace("bind :8080", f"bind 127.0.0.1:{port}")
        path = tmp_path_factory.mktemp("gateway") / "haproxy.cfg"
        path.write_text(text)
        url = f"http://127.0.0.1:{port}"
        started.enter_context(running([program, "-f", str(path)], f"{url}/health/ready"))
        yield Gateway(url, servers, processes)
        for process in processes.values():
            process.terminate()  # and once more, which ends it at once


def test_a_model_has_servers_of_its_own(gateway):
    before = gateway.answered("host3")
    for model in ("large", "small", "large"):
        # So long that the model's name comes with another packet than the headers.
        with urllib.request.urlopen(gateway.ask(user="u" * 200_000, model=model)) as answer:
            assert json.load(answer)["model"] == model
    assert gateway.answered("host3") == before + 2
    with urllib.request.urlopen(f"{gateway.url}/v1/models") as answer:
        assert [one["id"] for one in json.load(answer)["data"]] == ["small", "large"]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{gateway.url}/metrics")


def test_answers_come_as_they_are_made(gateway):
    times = []
    with urllib.request.urlopen(gateway.ask(stream=True, max_tokens=200, ignore_eos=True)) as lines:
        times = [time.monotonic() for line in lines if line.startswith(b"data: {")]
    assert len(times) > 100
    assert times[100] - times[0] > 0.1 * (times[-1] - times[0])


def test_a_client_comes_back_to_the_server_that_knows_it(gateway):
    def home_of(key: str) -> str | None:
        """The server that got nearly all of eight requests."""
        before = {name: gateway.answered(name) for name in ("host1", "host2")}
        for _ in range(8):
            urllib.request.urlopen(gateway.ask(key, model="small")).read()
        grown = {name: gateway.answered(name) - count for name, count in before.items()}
        assert sum(grown.values()) == 8
        return next((name for name, count in grown.items() if count >= 6), None)

    for key in ("alice", "bob", "carol", "dave"):
        # None: where the gateway still counts the last one as running there, that is too many,
        # and on a crowded machine more than two go to the other server.
        homes = Counter(home_of(key) for _ in range(5))
        del homes[None]
        assert len(homes) == 1
        assert homes.total() >= 3


def test_a_server_that_dies_or_drains_fails_no_request(gateway):
    """The last test: two of the servers are gone after it."""
    failed, done, stop = [], [], threading.Event()

    def ask_on(key: str) -> None:
        while not stop.is_set():
            try:
                with urllib.request.urlopen(gateway.ask(key, model="small"), timeout=60) as answer:
                    done.append(json.load(answer)["choices"][0]["finish_reason"])
            except urllib.error.HTTPError as error:
                failed.append(f"{error}: {error.read().decode()}")
            except (OSError, ValueError) as error:
                failed.append(repr(error))

    def wait_for_more() -> None:
        count = len(done)
        wait_for(lambda: len(done) > count + 20 or bool(failed), "20 answers")

    askers = [threading.Thread(target=ask_on, args=(f"key {i}",)) for i in range(4)]
    for asker in askers:
        asker.start()
    try:
        wait_for_more()
        # A stream that has begun on the server that drains comes to its end there.
        stream = urllib.request.urlopen(
            gateway.ask("a", stream=True, max_tokens=300, ignore_eos=True)
        )
        began = [stream.readline() for _ in range(4)]
        assert began[0].startswith(b"data: {")
        counts = {
            name: metric(gateway.servers[name], "vllm:num_requests_running")
            for name in ("host1", "host2")
        }
        drained = max(counts, key=counts.get)
        gateway.processes[drained].send_signal(signal.SIGTERM)
        rest = stream.read()
        assert rest.rstrip().endswith(b"data: [DONE]")
        assert gateway.processes[drained].wait(60) == 0
        wait_for_more()
    finally:
        stop.set()
        for asker in askers:
            asker.join()
    assert not failed
    assert answers(f"{gateway.url}/health/ready")


@pytest.mark.parametrize("broken", ["balance nonsense", "server host1 10.0.0.11:80000"])
def test_a_wrong_configuration_is_noticed(gateway, tmp_path, broken):
    path = tmp_path / "haproxy.cfg"
    first = broken.split()[0]
    path.write_text(
        re.sub(rf"^    {first} .*$", f"    {broken}", CONFIG.read_text(), count=1, flags=re.M)
    )
    assert subprocess.run(["haproxy", "-c", "-f", str(path)], capture_output=True).returncode != 0
