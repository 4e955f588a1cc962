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
from tiny_embedder import write_embedder
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


def n_answers(folder):
    """Whole lines in the files of answers of unfinished batches."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*/answers.jsonl"))


def completed(client, batch_id):
    wait_for(lambda: status(client, batch_id)["status"] == "completed", "a whole batch")
    return status(client, batch_id)


def test_a_server_killed_at_any_moment_answers_each_request_once(tmp_path):
    port, draw = free_port(), random.Random(5)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "lanewise", "serve", "--port", str(port), "--threads", "1"]
    command += ["--data-dir", str(tmp_path / "data"), "--batch-concurrency", "4"]
    count, seen, batch_id = 60 * KILLS, [], None
    answered = tmp_path / "data" / "batches"
    with httpx.Client(base_url=url, timeout=30) as client, (tmp_path / "log").open("wb") as log:
        for kills in range(KILLS + 1):
            with subprocess.Popen(command, stdout=log, stderr=log) as server:
                try:
                    wait_for(lambda: answers(f"{url}/health/ready"), "a server", 120)
                    batch_id = batch_id or create(client, count)
                    if kills < KILLS:
                        before = n_answers(answered)
                        if kills % 3:  # else it is killed while it starts
                            wait_for(lambda b=before: n_answers(answered) > b, "an answer")
                        time.sleep(draw.uniform(0, 0.3))
                        seen.append(n_answers(answered))
                    else:
                        done = completed(client, batch_id)
                        text = client.get(f"/v1/files/{done['output_file_id']}/content").text
                finally:
                    server.send_signal(signal.SIGKILL)
    assert seen == sorted(seen)
    assert len({*seen}) > KILLS // 3  # it was at work when it was killed
    said = [json.loads(one) for one in text.splitlines()]
    assert sorted(one["custom_id"] for one in said) == sorted(f"n{i}" for i in range(count))
    assert done["request_counts"] == {"total": count, "completed": count, "failed": 0}
    texts = {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in said}
    with lanewise_server("--threads", "1") as url, httpx.Client(base_url=url) as client:
        for i in draw.sample(range(count), 20):
            alone = client.post(COMPLETIONS, json=body(i)).json()["choices"][0]["text"]
            assert texts[f"n{i}"] == alone


def batch(folder, *more, **options):
    command = [sys.executable, "-m", "lanewise", "batch", "in.jsonl", "-o", "out.jsonl"]
    command += ["--threads", "1", *more]
    if "--model" not in more:
        command += ["--model", "demo"]
    return subprocess.Popen(command, cwd=folder, text=True, stderr=subprocess.PIPE, **options)


def test_the_command_goes_on_where_it_was_killed(tmp_path):
    """Files of vLLM's run-batch, whose requests name models that are not here."""
    count = 240
    text = lines(count).replace('"body": {', '"body": {"model": "org/other", ')
    (tmp_path / "in.jsonl").write_text(text + "\n")
    out = tmp_path / "out.jsonl"

    def n_written():
        return out.read_bytes().count(b"\n") if out.exists() else 0

    for wanted in (20, 100):
        with batch(tmp_path, "--batch-concurrency", "4") as command:
            wait_for(lambda wanted=wanted: n_written() >= wanted, f"{wanted} answers")
            command.send_signal(signal.SIGKILL)
    assert n_written() < count
    with out.open("ab") as torn:
        torn.write(b'{"id":"batch_req_0123","custom_id":"n5","resp')
    with batch(tmp_path, stdout=subprocess.PIPE) as command:
        said, told = command.communicate(timeout=120)
    assert (command.returncode, said) == (0, "out.jsonl: 240 of 240 requests answered, 0 failed\n")
    assert "Traceback" not in told
    found = [json.loads(one) for one in out.read_text().splitlines()]
    assert sorted(one["custom_id"] for one in found) == sorted(f"n{i}" for i in range(count))
    texts = {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in found}
    with lanewise_server("--threads", "1") as url, httpx.Client(base_url=url) as client:
        for i in range(0, count, 24):
            alone = client.post(COMPLETIONS, json=body(i)).json()["choices"][0]["text"]
            assert texts[f"n{i}"] == alone


@pytest.mark.parametrize(
    ("given", "before", "said"),
    [
        ("", None, "input: in.jsonl: the file has no requests"),
        (lines(2) + "x", None, "input: in.jsonl:3: the line is not JSON"),
        (lines(2), '{"my": "settings"}', "output: out.jsonl has something else than answers"),
        (lines(2), "line\n", "output: out.jsonl has something else than answers"),
    ],
)
def test_files_that_are_none_are_refused_and_left_alone(tmp_path, given, before, said):
    (tmp_path / "in.jsonl").write_text(given)
    if before is not None:
        (tmp_path / "out.jsonl").write_text(before)
    with batch(tmp_path) as command:
        _, told = command.communicate(timeout=60)
    assert command.returncode == 2
    assert said in told
    if before is not None:
        assert (tmp_path / "out.jsonl").read_text() == before


def test_vectors_of_a_batch_are_those_of_the_server(tmp_path):
    model = write_embedder(tmp_path / "tiny-bert")
    asked = [{"input": [f"text {i}", "another"], "model": "any"} for i in range(20)]
    lines = [
        {"custom_id": f"{i}", "method": "POST", "url": "/v1/embeddings", "body": one}
        for i, one in enumerate(asked)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with batch(tmp_path, "--model", str(model), stdout=subprocess.PIPE) as command:
        said, _ = command.communicate(timeout=60)
    assert said == "out.jsonl: 20 of 20 requests answered, 0 failed\n"
    found = {
        one["custom_id"]: one["response"]["body"]["data"]
        for one in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    }
    with (
        lanewise_server(str(model), "--threads", "1") as url,
        httpx.Client(base_url=url) as client,
    ):
        for i in range(0, 20, 6):
            body = {"input": asked[i]["input"]}
            assert client.post("/v1/embeddings", json=body).json()["data"] == found[f"{i}"]
