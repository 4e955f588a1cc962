"""What keys use, with the installed command: killed, started again, reported."""

import csv
import io
import json
import signal
import subprocess
import sys
import time

import httpx
import pytest

from serving import free_port, running

BODY = {"prompt": "The river", "max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def command(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# key, name, limits\nfirst-key name=first requests_per_day=3\nsecond-key\n")
    keys.chmod(0o600)
    base = [sys.executable, "-m", "lanewise", "serve", "--threads", "1"]
    base += ["--api-key-file", str(keys), "--data-dir", str(tmp_path / "data")]
    return [*base, "--tokens-per-day", "1000"]


def ask(port, key):
    headers = {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{port}/v1/completions"
    return httpx.post(url, json=BODY, headers=headers, timeout=60)


def report(tmp_path, *more):
    usage = [sys.executable, "-m", "lanewise", "usage", "--data-dir", str(tmp_path / "data")]
    return subprocess.run([*usage, *more], capture_output=True, text=True, timeout=60)


def test_a_killed_server_knows_what_keys_have_used(tmp_path, command):
    def ready(port):
        return f"http://127.0.0.1:{port}/health/ready"

    port = free_port()
    with running([*command, "--port", str(port)], ready(port)) as process:
        assert [ask(port, "first-key").status_code for _ in range(2)] == [200, 200]
        shown = ask(port, "second-key").headers
        assert shown["x-ratelimit-limit-tokens"] == "1000"
        assert "x-ratelimit-limit-requests" not in shown
        time.sleep(2.5)  # what is new is written every second
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    port = free_port()
    with running([*command, "--port", str(port)], ready(port)):
        assert [ask(port, "first-key").status_code for _ in range(2)] == [200, 429]
        time.sleep(2.5)
        beside = report(tmp_path)  # while the server runs
        assert beside.returncode == 0, beside.stderr
        rows = list(csv.DictReader(io.StringIO(beside.stdout)))
        counts = {row["key"]: int(row["requests"]) for row in rows}
        assert counts.pop("first") == 3
        assert list(counts.values()) == [1]
        assert all(int(row["completion_tokens"]) == 4 * int(row["requests"]) for row in rows)
        again = json.loads(report(tmp_path, "--format", "json").stdout)
        assert [str(row["prompt_tokens"]) for row in again] == [r["prompt_tokens"] for r in rows]
        assert report(tmp_path, "--last-day", "2020-01-01").stdout.count("\n") == 1


def test_wrong_directories_and_days_are_named(tmp_path):
    gone = report(tmp_path)
    assert gone.returncode != 0
    assert "data_dir: " in gone.stderr
    wrong = report(tmp_path, "--first-day", "yesterday")
    assert "YYYY-MM-DD" in wrong.stderr
