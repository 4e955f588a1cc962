"""Batches of the real server: killed at any moment, each request has one answer, and the right."""

import json
import random
import signal
import subprocess
import sys
import time

import httpx
import pytest

from serving import answers, free_port, lanewise_server, wait_for
from topics import cases

pytestmark = pytest.mark.e2e

KILLS = cases(12, 50)
COMPLETIONS = "/v1/completions"


def body(i):
    return {"prompt": f"The {i} old men and the sea", "max_tokens": 24, "seed": i}


def lines(count):
    return "".join(
        json.dumps({"custom_id": f"n{i}", "method": "POST", "url": COMPLETIONS, "body": body(i)})
        + "\n"
        for i in range(count)
    )


def create(client, count):
    file = client.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", lines(count))}
    ).json()
    ask = {"input_file_id": file["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
    return client.post("/v1/batches", json=ask).json()["id"]


def status(client, batch_id):
    return client.get(f"/v1/batches/{batch_id}").raise_for_status().json()


def completed(client, batch_id):
    wait_for(lambda: status(client, batch_id)["status"] == "completed", "a whole batch")
    return status(client, batch_id)


def test_a_server_killed_at_any_moment_answers_each_request_once(tmp_path):
    port, draw = free_port(), random.Random(5)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "lanewise", "serve", "--port", str(port), "--threads", "1"]
    command += ["--data-dir", str(tmp_path / "data"), "--batch-concurrency", "4"]
    count, seen, batch_id = 80 * KILLS, [], None
    with httpx.Client(base_url=url, timeout=30) as client, (tmp_path / "log").open("wb") as log:
        for kills in range(KILLS + 1):
            with subprocess.Popen(command, stdout=log, stderr=log) as server:
                try:
                    wait_for(lambda: answers(f"{url}/health/ready"), "a server", 120)
                    batch_id = batch_id or create(client, count)
                    seen.append(status(client, batch_id)["request_counts"]["completed"])
                    if kills < KILLS:
                        time.sleep(draw.uniform(0, 0.4))
                    else:
                        done = completed(client, batch_id)
                        text = client.get(f"/v1/files/{done['output_file_id']}/content").text
                finally:
                    server.send_signal(signal.SIGKILL)
    assert seen == sorted(seen)
    assert 0 < seen[KILLS // 2] < seen[-1]  # it was at work when it was killed
    said = [json.loads(one) for one in text.splitlines()]
    assert sorted(one["custom_id"] for one in said) == sorted(f"n{i}" for i in range(count))
    assert done["request_counts"] == {"total": count, "completed": count, "failed": 0}
    texts = {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in said}
    with lanewise_server("--threads", "1") as url, httpx.Client(base_url=url) as client:
        for i in draw.sample(range(count), 20):
            alone = client.post(COMPLETIONS, json=body(i)).json()["choices"][0]["text"]
            assert texts[f"n{i}"] == alone
