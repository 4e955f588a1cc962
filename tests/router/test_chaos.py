"""Four models with room for two, clients that go, and processes that are killed."""

import contextlib
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from processes import is_gone
from serving import wait_for
from tiny_child import words_of
from topics import cases
from toy_router import toy_router

MIB = 1 << 20
N_REQUESTS, N_CLIENTS, LEAVING, N_KILLS = cases(200, 2000), 24, 0.05, cases(4, 40)
NAMES = ("a", "b", "c", "d")


class Chaos:
    """What clients ask, what becomes of it, and what is killed meanwhile."""

    def __init__(self, router):
        self._router = router
        self.told = {"right": 0, "left": 0, "error": 0}
        self.most = self.killed = 0
        self._lock = threading.Lock()
        self._asked = iter(range(N_REQUESTS))

    def client(self, number):
        with httpx.Client(base_url=self._router.url, timeout=120) as client:
            while (at := self._next()) is not None:
                outcome = self._ask(client, random.Random(at), f"prompt {at}")
                with self._lock:
                    self.told[outcome] += 1

    def _next(self):
        with self._lock:
            return next(self._asked, None)

    def _ask(self, client, drawn, prompt):
        name, leaves = drawn.choice(NAMES), drawn.random() < LEAVING
        body = {"model": name, "prompt": prompt, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                return self._documented(answer.json()["error"], answer)
            if leaves:
                return "left"
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        if lines[-1] == "[DONE]":
            assert lines[:-1] == words_of(name, prompt)
            return "right"
        assert '"model_ended"' in lines[-1], lines
        whole = [*words_of(name, prompt), "[DONE]"]  # it may be killed after its last word
        assert lines[:-1] == whole[: len(lines) - 1]
        return "error"

    def _documented(self, error, answer):
        assert answer.status_code == 503
        if error["code"] not in ("model_ended", "model_not_loaded"):  # killed while it loaded
            time.sleep(int(answer.headers["retry-after"]))
        return "error"

    def kill(self, stop):
        """Kill processes at chosen points of the work, and see how many there are."""
        drawn, points = random.Random(1), [N_REQUESTS * n // N_KILLS for n in range(1, N_KILLS)]
        while not stop.wait(0.005):
            children = self._router.children()
            self.most = max(self.most, len(children))
            if points and sum(self.told.values()) >= points[0] and children:
                points.pop(0)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(drawn.choice(children), signal.SIGKILL)
                    self.killed += 1


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="[machine] no /proc")
def test_every_answer_is_right_or_says_why_and_nothing_is_left(tmp_path):
    models = [{"name": n, "model": f"tiny-{n}.gguf", "memory": 100 * MIB} for n in NAMES]
    with toy_router(tmp_path, {"models": models, "memory": 200 * MIB}) as router:
        sockets = Path(f"/proc/{router.process.pid}/fd")
        before = len(list(sockets.iterdir()))
        chaos, stop = Chaos(router), threading.Event()
        killer = threading.Thread(target=chaos.kill, args=[stop])
        killer.start()
        try:
            with ThreadPoolExecutor(N_CLIENTS) as pool:
                list(pool.map(chaos.client, range(N_CLIENTS)))
        finally:
            stop.set()
            killer.join()
        assert sum(chaos.told.values()) == N_REQUESTS
        assert chaos.told["left"] > 0
        assert chaos.killed == N_KILLS - 1
        # A kill costs the answers that its process was giving, and no more.
        assert chaos.told["error"] <= chaos.killed * N_CLIENTS, chaos.told
        assert chaos.most <= 2  # as many as fit
        loads = router.log.read_text().count(" is loaded, ")
        print(chaos.told, f"{loads} loads, {chaos.killed} kills")
        assert loads < N_REQUESTS // 4  # models answer many requests in each turn
        for name in NAMES:
            router.client.post("/models/unload", json={"model": name})
        router.client.close()
        wait_for(lambda: len(list(sockets.iterdir())) <= before, "the end of all connections")
        children = router.children()
        assert router.stop() == 0
        assert all(map(is_gone, children))
        assert not list(router.folder.iterdir())
