"""Real servers behind the router: four models with room for two, clients that go, kills, memory."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from lanewise.loading.checkpoints.hub import bundled_model
from processes import children, command_line, descendants, is_gone
from serving import free_port, wait_for
from topics import cases

pytestmark = [pytest.mark.e2e, pytest.mark.native]
MIB = 1 << 20
N_REQUESTS, N_CLIENTS, LEAVING, N_KILLS = cases(120, 2000), 8, 0.05, cases(3, 30)
NAMES, PROMPTS = ("a", "b", "c", "d"), tuple(f"prompt {at}" for at in range(5))
EACH, BUDGET = 450 * MIB, 1000 * MIB
BESIDE = 256 * MIB  # of the router, and of what has the imports


def body_of(name, prompt, **more):
    same = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return {"model": name, "prompt": prompt, "stream": True, **same, **more}


def anonymous_bytes(pid):
    """Memory that the system cannot drop, what is shared counted by parts; 0 of an ended one."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return 0


class Router:
    """``lanewise serve --models`` of copies of the bundled model."""

    def __init__(self, folder):
        self.runs = folder / "run"
        self.runs.mkdir()
        models = []
        for name in NAMES:
            shutil.copy(bundled_model(), folder / f"{name}.gguf")
            settings = {"threads": 1, "kv_memory": "16MiB"}
            given = {"name": name, "model": str(folder / f"{name}.gguf"), "memory": EACH}
            models.append({**given, "settings": settings})
        file = folder / "models.yaml"
        file.write_text(json.dumps({"models": models, "memory": BUDGET}))
        port, self.log = free_port(), folder / "log"
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "lanewise", "serve", "--models", str(file)]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                stdout=out,
                stderr=out,
                env={**os.environ, "TMPDIR": str(self.runs)},
            )
        wait_for(self._is_up, "the router")

    def _is_up(self):
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(self.url + "/health/live").status_code == 200
        return False


class Work:
    """What clients ask, what becomes of it, what is killed, and the most memory meanwhile."""

    def __init__(self, router, right):
        self._router, self._right = router, right
        self.told = {"right": 0, "left": 0, "error": 0}
        self.most_bytes = self.most_models = self.killed = 0
        self._lock, self._asked = threading.Lock(), iter(range(N_REQUESTS))

    def client(self, _):
        with httpx.Client(base_url=self._router.url, timeout=300) as client:
            while (at := self._next()) is not None:
                outcome = self._ask(client, random.Random(at))
                with self._lock:
                    self.told[outcome] += 1

    def _next(self):
        with self._lock:
            return next(self._asked, None)

    def _ask(self, client, drawn):
        name, prompt = drawn.choice(NAMES), drawn.choice(PROMPTS)
        with client.stream("POST", "/v1/completions", json=body_of(name, prompt)) as answer:
            if answer.status_code != 200:
                answer.read()
                assert answer.status_code == 503, answer.text
                code = answer.json()["error"]["code"]
                assert (
                    code in ("model_ended", "model_not_loaded") or "retry-after" in answer.headers
                )
                time.sleep(min(2, int(answer.headers.get("retry-after", 0))))
                return "error"
            if drawn.random() < LEAVING:
                return "left"
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        if lines[-1] != "[DONE]":
            assert '"model_ended"' in lines[-1], lines
            return "error"
        text = "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])
        assert text == self._right[prompt]
        return "right"

    def watch(self, stop):
        """Kill processes at chosen points of the work: servers, and what they are forked from."""
        drawn, points = random.Random(1), [N_REQUESTS * n // N_KILLS for n in range(1, N_KILLS)]
        pid = self._router.process.pid
        while not stop.wait(0.01):
            every = descendants(pid)
            self.most_bytes = max(self.most_bytes, sum(map(anonymous_bytes, [pid, *every])))
            self.most_models = max(self.most_models, sum(map(is_server, children(pid))))
            below = children(pid)
            if points and sum(self.told.values()) >= points[0] and below:
                points.pop(0)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(drawn.choice(below), signal.SIGKILL)
                    self.killed += 1


def is_server(pid):
    """Whether a process has threads, as servers have and what forks has not."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    return False


@pytest.fixture
def short_folder():
    """Names of sockets are short, and a test's own folder has a long one."""
    folder = Path(tempfile.mkdtemp(prefix="lw"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="[machine] no smaps_rollup"
)
@pytest.mark.usefixtures("library")
def test_every_answer_is_right_memory_is_bounded_and_nothing_is_left(short_folder):
    router = Router(short_folder)
    stop = threading.Event()
    try:
        right = {}
        with httpx.Client(base_url=router.url, timeout=300) as client:
            for prompt in PROMPTS:
                whole = client.post("/v1/completions", json=body_of("a", prompt, stream=False))
                right[prompt] = whole.json()["choices"][0]["text"]
        assert len(set(right.values())) > 1
        work = Work(router, right)
        watcher = threading.Thread(target=work.watch, args=[stop])
        watcher.start()
        try:
            with ThreadPoolExecutor(N_CLIENTS) as pool:
                list(pool.map(work.client, range(N_CLIENTS)))
        finally:
            stop.set()
            watcher.join()
        loads = router.log.read_text().count(" is loaded, ")
        print(work.told, f"{loads} loads, {work.killed} kills, {work.most_bytes >> 20} MiB at most")
        assert sum(work.told.values()) == N_REQUESTS
        assert work.told["error"] <= work.killed * N_CLIENTS, work.told
        assert work.killed == N_KILLS - 1
        assert work.most_models <= 2
        assert work.most_bytes <= BUDGET + BESIDE
        assert loads < N_REQUESTS // 2  # models answer several requests in each turn
        below = descendants(router.process.pid)
        assert any("lanewise" in " ".join(command_line(pid)) for pid in below)
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(60) == 0
        wait_for(lambda: all(map(is_gone, below)), "the end of all processes")
        assert not list(router.runs.iterdir())
    finally:
        if router.process.poll() is None:
            router.process.kill()
            router.process.wait()
