"""Limits that the system sets a process: taken over at the start, or told in one line."""

import contextlib
import json
import socket
import subprocess
import sys
import urllib.request

from serving import answers, free_port, running, wait_for

SERVE = [sys.executable, "-m", "lanewise", "serve", "--threads", "1", "--port"]
LIMITED = ["sh", "-c", 'ulimit "$0" "$1" && shift && exec "$@"']
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def test_connections_fit_the_files_that_the_process_may_open():
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [*LIMITED, "-n", "64", *SERVE, str(port)]
    with running(command, f"{url}/health/ready"), contextlib.ExitStack() as held:
        for _ in range(150):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        for path in ("health", "health/ready", "metrics"):
            wait_for(lambda path=path: answers(f"{url}/{path}"), path)
        head = {"content-type": "application/json"}
        asked = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(CHAT).encode(), head
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.status == 200


def test_too_few_files_are_told_in_a_line():
    command = [*LIMITED, "-n", "32", *SERVE, str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "this process may open 32 files (ulimit -n); accepted: at least 56" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_address_space_is_told_in_a_line():
    command = [*LIMITED, "-v", "900000", *SERVE, str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "what ulimit -v leaves beside 1.25 GiB for threads" in done.stderr
    assert "Traceback" not in done.stderr
