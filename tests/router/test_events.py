"""``/models/sse``: the states of models as they change."""

import json
import threading

import httpx

from serving import wait_for
from toy_router import toy_router

MIB = 1 << 20


def entry(name):
    return {"name": name, "model": f"{name}.gguf", "memory": 100 * MIB}


def test_each_change_of_a_state_is_told_once(tmp_path):
    models = {"models": [entry("a"), entry("broken")], "memory": 300 * MIB}
    with toy_router(tmp_path, models) as router:
        told, ended = [], threading.Event()

        def listen():
            with httpx.stream("GET", f"{router.url}/models/sse", timeout=60) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                lines = (line for line in answer.iter_lines() if line.startswith("data: "))
                told.extend(json.loads(line[6:]) for line in lines)
            ended.set()

        thread = threading.Thread(target=listen)
        thread.start()
        wait_for(lambda: len(told) == 2, "the first states")
        router.client.post("/models/load", json={"model": "a"})
        router.client.post("/models/unload", json={"model": "a"})
        router.client.post("/models/load", json={"model": "broken"})
        wait_for(lambda: any("failed" in one["data"] for one in told), "the failure")
        assert router.stop() == 0
        thread.join(60)
        assert ended.is_set()  # the stream ends as streams do
    assert {one["event"] for one in told} == {"model_status"}
    of_a = [one["data"]["status"] for one in told if one["model"] == "a"]
    assert of_a == ["unloaded", "loading", "loaded", "unloaded"]
    failed = [one["data"] for one in told if "failed" in one["data"]]
    assert failed[0]["status"] == "unloaded"
    assert "broken.gguf: no such file" in failed[0]["reason"]
