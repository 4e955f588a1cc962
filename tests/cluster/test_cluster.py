"""The parts of the application for Ray Serve that need no Ray."""

import json
import os
import signal
import subprocess
import sys

import pytest

from lanewise.api.observing.merging import merged
from lanewise.cluster.prompt import MAX_CHARACTERS, prompt_text
from processes import command_line, is_gone
from serving import wait_for


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"prompt": "Once", "max_tokens": 4}', "Once"),
        (b'{"prompt": [12, 7]}', "12,7,"),
        (b'{"messages": [{"role": "system", "content": "A."}, {"content": "Hi"}]}', "A.Hi"),
        (b'{"messages": [{"content": [{"type": "text", "text": "Hi"}]}], "system": "S"}', "SHi"),
        (b'{"input": "What?", "instructions": "Answer."}', "Answer.What?"),
        (b'{"model": "m"}', ""),
        (b"[1]", ""),
        (b"{", ""),
        (b'{"prompt": ' + b"[" * 100_000, ""),
        (b"", ""),
    ],
)
def test_prompt_text(body, text):
    assert prompt_text(body) == text


def test_prompt_text_is_a_beginning():
    text = "ab" * MAX_CHARACTERS
    assert prompt_text(json.dumps({"prompt": text}).encode()) == text[:MAX_CHARACTERS]
    messages = [{"content": part} for part in ("a" * 5000, "b", text)]
    found = prompt_text(json.dumps({"messages": messages}).encode())
    assert found == ("a" * 5000 + "b" + text)[:MAX_CHARACTERS]


def test_metrics_of_several_servers_are_one_text():
    about = "# HELP a_total Things.\n# TYPE a_total counter\n"
    first = about + 'a_total 1\n# TYPE b gauge\nb{x="{ y"} 2.5\n'
    second = about + "a_total 3\n# TYPE c gauge\nc{} 4\n"
    assert merged({"h:1": first, "h:2": second}) == (
        about + 'a_total{instance="h:1"} 1\na_total{instance="h:2"} 3\n'
        '# TYPE b gauge\nb{instance="h:1",x="{ y"} 2.5\n'
        '# TYPE c gauge\nc{instance="h:2"} 4\n'
    )


PARENT = """
import os, subprocess, sys
command = [sys.executable, "-m", "lanewise.child", sys.argv[1] or str(os.getpid())]
command += ["serve", "--port", "0", "--threads", "1"]
child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.exit(child.wait())
"""


@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_a_server_ends_when_its_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT, ""], stdout=subprocess.PIPE)
    with parent:
        child = int(parent.stdout.readline())
        wait_for(lambda: "lanewise serve" in " ".join(command_line(child)), "the server's program")
        assert not is_gone(child)
        os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: is_gone(child), "the end of the server")


def test_a_server_does_not_begin_without_its_parent():
    arguments = [sys.executable, "-c", PARENT, "1"]
    assert subprocess.run(arguments, stdout=subprocess.DEVNULL, timeout=60).returncode == 1
