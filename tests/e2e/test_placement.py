"""A server whose threads are pinned and whose memory is placed, seen from outside by the kernel."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import topics
from lanewise.runtime import placing_refusal
from serving import free_port, running, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.native]

# Runs `lanewise` with its messages in a file; as a container would, it can forbid a system call.
LAUNCHER = """
import ctypes, os, sys
log, forbidden, *arguments = sys.argv[1:]
os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)

class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8),
                ("k", ctypes.c_uint32)]

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction))]

if int(forbidden) >= 0:
    filter = (Instruction * 4)(
        (0x20, 0, 0, 0),  # the number of the call
        (0x15, 0, 1, int(forbidden)),
        (0x06, 0, 0, 0x00050000 | 1),  # EPERM
        (0x06, 0, 0, 0x7FFF0000),  # allowed
    )
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    assert libc.prctl(22, 2, ctypes.byref(Program(4, filter)), 0, 0) == 0, "PR_SET_SECCOMP"
os.execv(sys.executable, [sys.executable, "-m", "lanewise", *arguments])
"""
MBIND = {"x86_64": 237, "aarch64": 235}[os.uname().machine]
BODY = {"prompt": "It was a dark night, and", "max_tokens": 24, "temperature": 0.8, "seed": 3}


@pytest.fixture(autouse=True)
def _placeable():
    if refused := placing_refusal([0]):
        topics.skip("machine", f"this kernel or container places no memory: {refused}")


def serve(log: Path, *arguments: str, forbidden: int = -1):
    """A context with the server's process and its URL."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-c", LAUNCHER, str(log), str(forbidden)]
    command += ["serve", "--port", str(port), *arguments]
    return running(command, f"{url}/health/ready"), url


def answer(url: str) -> str:
    response = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60)
    return response.json()["choices"][0]["text"]


def pinned_masks(pid: int) -> list[set[int]]:
    """The masks of the process's threads that may run on one CPU only."""
    masks = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            masks.append(os.sched_getaffinity(int(task)))
    assert len(masks) > 2
    return [mask for mask in masks if len(mask) == 1]


def test_pinned_and_interleaved(tmp_path, url):
    """Only the native thread is pinned, the rest of Python runs anywhere between two steps."""
    cpus = sorted(os.sched_getaffinity(0))
    log = tmp_path / "log"
    options = ("--threads", "2", "--cpu-pinning", "on", "--numa", "interleave")
    if len(cpus) < 2:
        topics.skip("machine", "this CPU is the only one: two threads cannot be pinned")
    server, placed_url = serve(log, *options)
    with server as process:
        assert answer(placed_url) == answer(url)
        assert re.search(
            r"threads pinned to CPUs [\d,-]+ .*; memory weights and KV cache interleaved over node",
            log.read_text(),
        )
        wait_for(lambda: len(pinned_masks(process.pid)) == 1, "only the native thread is pinned")
        assert pinned_masks(process.pid)[0] < set(cpus)
        maps = Path(f"/proc/{process.pid}/numa_maps")
        if not maps.exists():
            topics.skip("machine", "this kernel has no numa_maps")
        # In turn over the only node is a preference for it.
        placed = re.findall(r"^\S+ (?:interleave|prefer):.*\banon=", maps.read_text(), re.MULTILINE)
        assert len(placed) >= 2  # weights, keys and values


def test_container_that_forbids_placing_gets_a_server_all_the_same(tmp_path, url):
    log = tmp_path / "log"
    server, placed_url = serve(log, "--numa", "interleave", forbidden=MBIND)
    with server:
        assert answer(placed_url) == answer(url)
    assert (
        "memory wherever the system puts it: interleave is not possible here: "
        "numa: mbind: Operation not permitted" in log.read_text()
    )


def test_more_pinned_threads_than_cpus_are_refused_in_one_line():
    command = [sys.executable, "-m", "lanewise", "serve", "--port", "0", "--cpu-pinning", "on"]
    cpus = len(os.sched_getaffinity(0))
    if cpus >= 1024:
        topics.skip("machine", "this CPU has as many cores as threads can be asked for")
    done = subprocess.run(
        [*command, "--threads", "1024"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"lanewise: cpu_pinning is on and threads is 1024; accepted: at most {cpus}, the CPUs in"
        " the affinity mask"
    )
