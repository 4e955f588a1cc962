"""The application of deploy/ray on a real Ray cluster of several processes on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import IncompleteRead
from pathlib import Path

import pytest
import yaml

import topics
from processes import children, command_line, is_gone
from serving import answers, free_port, wait_for

topics.module("ray", "ray")

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "ray" / "serve_config.yaml"
PROGRAMS = Path(sys.executable).parent
KEY = "a key"
STARTS = 3  # Ray gives its own processes seconds to start, which are not enough on a busy machine
HEALTHY_S = 180  # for what takes some seconds where nothing else runs


class Application:
    """The application, its processes, and what it is asked."""

    def __init__(self, dashboard: str, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.dashboard, self._folder = dashboard, folder
        self.config = yaml.safe_load(CONFIG.read_text())
        self.config |= {"proxy_location": "HeadOnly"}  # the others would want the same port
        self.config["http_options"] = {"host": "127.0.0.1", "port": port}
        (self._lanewise,) = self.config["applications"]
        self.arguments = self._lanewise["args"]
        self.arguments |= {"wait_s": HEALTHY_S, "start_s": HEALTHY_S}
        self.serve = self.arguments["serve"]
        self.serve |= {"threads": 1, "api_key": KEY, "max_model_len": 512}
        self.server, self.ingress = self._lanewise["deployments"]
        self.server["health_check_period_s"] = 1
        self.server["autoscaling_config"] |= {"target_ongoing_requests": 2, "upscale_delay_s": 1}
        self.server["autoscaling_config"] |= {"downscale_delay_s": 3, "look_back_period_s": 2}

    def send(self, replicas: int | None = None) -> None:
        """Ask for what ``config`` says: a number of replicas, or as many as there is work for."""
        server = dict(self.server)
        if replicas is not None:
            del server["autoscaling_config"]
            server["num_replicas"] = replicas
        self._lanewise["deployments"] = [server, self.ingress]
        path = self._folder / "serve_config.yaml"
        path.write_text(yaml.safe_dump(self.config))
        command = [PROGRAMS / "serve", "deploy", "-a", self.dashboard, path]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def wait(self) -> None:
        """Until all is as it was asked for."""
        wait_for(lambda: self.status()["status"] == "RUNNING", "running", HEALTHY_S)
        wait_for(lambda: answers(f"{self.url}/health/ready"), "ready", HEALTHY_S)

    def status(self) -> dict:
        with urllib.request.urlopen(f"{self.dashboard}/api/serve/applications/") as answer:
            return json.load(answer)["applications"]["lanewise"]

    def replicas(self, deployment: str = "Server") -> dict[str, int]:
        """The process ids of those that run, by name."""
        found = self.status()["deployments"].get(deployment, {"replicas": []})["replicas"]
        return {one["replica_id"]: one["pid"] for one in found if one["state"] == "RUNNING"}

    def ask(self, path: str = "/v1/completions", key: str = KEY, **fields: object):
        body = {"prompt": "Once upon a time", "max_tokens": 4} | fields
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        asked = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(asked, timeout=HEALTHY_S)

    def stream(self):
        return self.ask(stream=True, max_tokens=490, ignore_eos=True)

    def answered(self, reason: str = "length") -> Counter:
        """How many answers of each server have ended so, by where it is."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        start = r'^vllm:request_success_total\{instance="([^"]+)"'
        line = re.compile(rf'{start}.*finished_reason="{reason}".* (\S+)$', re.MULTILINE)
        counts = Counter()
        for instance, value in line.findall(text):
            counts[instance] += int(float(value))
        return counts

    @contextmanager
    def load(self, clients: int) -> Iterator[tuple[list[float], list[str]]]:
        """Clients that ask on: when each was answered, and what went wrong."""
        done, failed, stop = [], [], threading.Event()

        def ask_on(name: str) -> None:
            while not stop.is_set():
                try:
                    with self.ask(prompt=f"{name} {len(done)}", max_tokens=8) as answer:
                        json.load(answer)
                        done.append(time.monotonic())
                except urllib.error.HTTPError as error:
                    failed.append(f"{error}: {error.read().decode()}")
                except (OSError, ValueError, IncompleteRead) as error:
                    failed.append(repr(error))

        askers = [threading.Thread(target=ask_on, args=(f"{i}",)) for i in range(clients)]
        for asker in askers:
            asker.start()
        try:
            yield done, failed
        finally:
            stop.set()
            for asker in askers:
                asker.join()


def server_of(pid: int) -> int:
    """The process id of a replica's server."""
    for child in children(pid):
        if "lanewise" in command_line(child):
            return child
    raise AssertionError(f"{pid} has no server")


@contextmanager
def node(joined: Callable[[], bool], *arguments: str) -> Iterator[None]:
    """A process of ``ray start`` with all those that it starts."""
    command = [PROGRAMS / "ray", "start", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address", "127.0.0.1", "--object-store-memory", str(80 << 20)]
    environment = {
        "RAY_worker_niceness": "0",  # as everything else
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_raylet_start_wait_time_s": str(HEALTHY_S),
        "RAY_agent_register_timeout_ms": str(1000 * HEALTHY_S),
    }
    for _ in range(STARTS):
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | environment,
        )
        wait_for(lambda of=process: joined() or of.poll() is not None, "a node", HEALTHY_S)
        if process.poll() is None:
            break
    else:
        raise AssertionError(f"ray start {' '.join(arguments)}: not in {STARTS} attempts")
    try:
        yield
    finally:
        process.terminate()
        process.wait(HEALTHY_S)


def nodes(dashboard: str) -> int:
    """How many nodes of the cluster are alive."""
    try:
        with urllib.request.urlopen(f"{dashboard}/api/v0/nodes", timeout=HEALTHY_S) as answer:
            found = json.load(answer)["data"]["result"]["result"]
    except OSError:  # it has yet to start
        return 0
    return sum(one["state"] == "ALIVE" for one in found)


@pytest.fixture(scope="module")
def application(tmp_path_factory) -> Iterator[Application]:
    dashboard = f"http://127.0.0.1:{(dashboard_port := free_port())}"
    with ExitStack() as started:
        # Paths of sockets are short.
        folder = started.enter_context(tempfile.TemporaryDirectory(prefix="ray", dir="/tmp"))
        head = ("--head", "--port", str(port := free_port()), "--num-cpus", "3")
        head += ("--dashboard-port", str(dashboard_port), "--temp-dir", folder)
        started.enter_context(node(lambda: nodes(dashboard) == 1, *head))
        other = ("--address", f"127.0.0.1:{port}", "--num-cpus", "4")
        started.enter_context(node(lambda: nodes(dashboard) == 2, *other))
        one = Application(dashboard, tmp_path_factory.mktemp("ray"))
        one.send(2)
        one.wait()
        yield one


def test_answers_are_those_of_a_server(application):
    with application.ask() as answer:
        assert answer.headers["content-type"] == "application/json"
        assert len(answer.headers.get_all("x-request-id")) == 1
        assert json.load(answer)["usage"]["completion_tokens"] == 4
    for status, error, fields in (
        (401, "invalid_api_key", {"key": "none"}),
        (400, None, {"max_tokens": "many"}),
        (404, "not_found", {"path": "/v1/nothing"}),
    ):
        with pytest.raises(urllib.error.HTTPError, match=str(status)) as raised:
            application.ask(**fields)
        assert json.load(raised.value)["error"]["code"] == error
    models = f"{application.url}/v1/models?x=%2F"
    asked = urllib.request.Request(models, headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked) as answer:
        assert json.load(answer)["data"][0]["object"] == "model"


def test_answers_come_as_they_are_made(application):
    with application.stream() as lines:
        times = [time.monotonic() for line in lines if line.startswith(b"data: {")]
    assert len(times) > 200
    assert times[100] - times[0] > 0.1 * (times[-1] - times[0])


def test_who_goes_away_is_noticed_by_the_server(application):
    before = application.answered("abort").total()
    streams = [application.stream() for _ in range(8)]
    for stream in streams:
        assert stream.readline().startswith(b"data: {")
        stream.close()
    wait_for(lambda: application.answered("abort").total() > before, "an abort", HEALTHY_S)


def test_a_conversation_comes_back_to_the_server_that_knows_it(application):
    for name in ("Alice", "Bob", "Carol"):
        before, prompt = application.answered(), f"{name} said: "
        for _ in range(6):
            with application.ask(prompt=prompt, ignore_eos=True) as answer:
                prompt += json.load(answer)["choices"][0]["text"] + " and then "
        grown = application.answered() - before
        assert max(grown.values()) >= 5
        assert grown.total() == 6


@pytest.mark.parametrize("which", ["replica", "server"])
def test_a_server_that_dies_fails_no_request(application, which):
    before = application.replicas()
    (name, actor), *_ = before.items()
    server = server_of(actor)
    with application.load(8) as (done, failed):
        wait_for(lambda: len(done) > 20 or bool(failed), "20 answers")
        os.kill(actor if which == "replica" else server, signal.SIGKILL)
        # Neither outlives the other.
        wait_for(lambda: is_gone(actor) and is_gone(server), "both ended", HEALTHY_S)
        wait_for(
            lambda: len(application.replicas()) == 2 and name not in application.replicas(),
            "two replicas again",
            HEALTHY_S,
        )
        count = len(done)
        wait_for(lambda: len(done) > count + 20 or bool(failed), "20 more answers")
    assert not failed


def test_a_stream_that_had_begun_breaks_off(application):
    servers = [server_of(pid) for pid in application.replicas().values()]
    with application.stream() as stream:
        assert stream.readline().startswith(b"data: {")
        for server in servers:
            os.kill(server, signal.SIGKILL)
        with pytest.raises(IncompleteRead):
            stream.read()


def test_the_router_outlives_its_memory_of_prompts(application):
    wait_for(lambda: len(application.replicas()) == 2, "two replicas", HEALTHY_S)
    listed = subprocess.run(
        [PROGRAMS / "ray", "list", "actors", "--format", "json"],
        env=os.environ | {"RAY_ADDRESS": application.dashboard},
        check=True,
        capture_output=True,
    )
    trees = [one for one in json.loads(listed.stdout) if one["name"] == "LlmPrefixTreeActor"]
    for tree in trees:
        os.kill(tree["pid"], signal.SIGKILL)
    assert trees
    for i in range(10):
        with application.ask(prompt=f"{i} bottles of beer") as answer:
            assert answer.status == 200


def test_an_update_cuts_no_stream(application):
    before = application.replicas()
    servers = [server_of(pid) for pid in before.values()]
    with application.load(2) as (_, failed):
        streams = [application.stream() for _ in range(4)]
        for stream in streams:
            assert stream.readline().startswith(b"data: {")
        # Whatever is quick elsewhere: here the answers take longer than the update.
        for server in servers:
            os.kill(server, signal.SIGSTOP)
        try:
            application.serve["max_stored_responses"] = 10
            application.send(2)
            wait_for(
                lambda: len(application.replicas().keys() - before.keys()) == 2,
                "new replicas",
                HEALTHY_S,
            )
        finally:
            for server in servers:
                os.kill(server, signal.SIGCONT)
        for stream in streams:
            assert stream.read().endswith(b"data: [DONE]\n\n")
        wait_for(lambda: all(map(is_gone, servers)), "the end of the old servers", HEALTHY_S)
        application.wait()
    assert not failed


def test_replicas_come_with_the_queue_and_go(application):
    application.send()
    wait_for(lambda: len(application.replicas()) == 1, "one replica", HEALTHY_S)
    with application.load(24) as (_, failed):
        wait_for(lambda: len(application.replicas()) == 3 or bool(failed), "three", HEALTHY_S)
    wait_for(lambda: len(application.replicas()) == 1, "one replica again", HEALTHY_S)
    assert not failed


def test_without_a_server_there_is_an_error_that_says_when_to_come_again(application):
    application.arguments["wait_s"] = 1
    application.server["max_ongoing_requests"] = 1
    application.send(1)
    application.wait()
    wait_for(lambda: len(application.replicas()) == 1, "one replica", HEALTHY_S)
    (actor,) = application.replicas().values()
    server = server_of(actor)
    with application.stream() as stream:  # has the only place
        assert stream.readline().startswith(b"data: {")
        os.kill(server, signal.SIGSTOP)
        try:
            with pytest.raises(urllib.error.HTTPError, match="503") as raised:
                application.ask()
        finally:
            os.kill(server, signal.SIGCONT)
        assert stream.read().endswith(b"data: [DONE]\n\n")
    assert int(raised.value.headers["retry-after"]) > 0
    assert json.load(raised.value)["error"]["code"] == "service_unavailable"
