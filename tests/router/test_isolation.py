"""What goes wrong with one model does nothing to another."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from processes import command_line
from tiny_child import LEAK, words_of
from toy_router import toy_router

MIB = 1 << 20


def said(router, name, prompt, timeout=60):
    body = {"model": name, "prompt": prompt, "stream": True}
    with httpx.stream("POST", f"{router.url}/v1/completions", json=body, timeout=timeout) as answer:
        return [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]


def right(name, prompt):
    return [*words_of(name, prompt), "[DONE]"]


@pytest.fixture
def router(tmp_path):
    models = [{"name": n, "model": f"tiny-{n}.gguf", "memory": 64 * MIB} for n in "ab"]
    with toy_router(tmp_path, {"models": models, "memory": 200 * MIB}) as running:
        for name in "ab":
            assert said(running, name, "x") == right(name, "x")
        yield running


def process_of(router, number):
    """The process that was started as the first, or the second."""
    files = {pid: " ".join(command_line(pid)) for pid in router.children()}
    [pid] = [pid for pid, command in files.items() if f"/{number}.yaml" in command]
    return pid


def test_one_that_is_stopped_holds_up_its_own_requests_alone(router):
    stopped = process_of(router, 1)
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(httpx.ReadTimeout):
            said(router, "a", "y", timeout=0.5)
        for at in range(20):
            assert said(router, "b", f"y {at}") == right("b", f"y {at}")
        assert router.states() == {"a": "loaded", "b": "loaded"}
        assert [one["id"] for one in router.client.get("/v1/models").json()["data"]] == ["a", "b"]
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert said(router, "a", "z") == right("a", "z")


def test_one_that_takes_more_than_its_memory_is_ended_and_comes_back(router):
    other = process_of(router, 2)
    answer = router.client.post("/v1/completions", json={"model": "a", "prompt": LEAK})
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert error["code"] == "model_ended"
    assert "MiB of memory; its limit is 64.00 MiB (memory)" in error["message"]
    assert said(router, "b", "z") == right("b", "z")
    assert process_of(router, 2) == other
    assert said(router, "a", "z") == right("a", "z")


def test_the_kernel_ends_a_model_before_its_router():
    program = (
        "import os, pathlib, lanewise.child\n"
        "os.execv = lambda *_: print(pathlib.Path('/proc/self/oom_score_adj').read_text())\n"
        "lanewise.child.main([str(os.getppid()), 'serve'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(done.stdout) > own, done.stderr
