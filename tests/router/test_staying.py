"""``keep_alive``: what it may be, who may say it, and when a model goes then."""

import datetime
import json
import math

import pytest

from lanewise.api.errors import BadRequestError
from lanewise.router.staying import stay_of
from serving import wait_for
from toy_router import toy_router

MIB = 1 << 20


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        *((0, 0), (60, 60), (1.5, 1.5), ("0", 0), ("5m", 300), ("1h30m", 5400), ("300", 300)),
        *(("250ms", 0.25), ("1.5h", 5400), ("-1", math.inf), (-1, math.inf), ("-1m", math.inf)),
    ],
)
def test_times_are_read_as_ollama_reads_them(written, seconds):
    body = json.dumps({"model": "a", "prompt": "b", "keep_alive": written}).encode()
    assert stay_of("/api/generate", body).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "soon", "5 m", "5m3", "--1", "1d", [], {}, True])
def test_what_is_no_time_is_refused_with_what_is(written):
    body = json.dumps({"model": "a", "keep_alive": written}).encode()
    with pytest.raises(BadRequestError, match=r"keep_alive: .*accepted: seconds, or text such as"):
        stay_of("/api/chat", body)


@pytest.mark.parametrize(
    ("path", "body", "is_goodbye"),
    [
        ("/api/generate", {"keep_alive": 0}, True),
        ("/api/generate", {"keep_alive": "0s", "prompt": ""}, True),
        ("/api/generate", {"keep_alive": 0, "prompt": "a"}, False),
        ("/api/generate", {"keep_alive": 5}, False),
        ("/api/chat", {"keep_alive": 0, "messages": []}, True),
        ("/api/chat", {"keep_alive": 0, "messages": [{"role": "user"}]}, False),
        ("/api/embed", {"keep_alive": 0, "input": "a"}, False),
    ],
)
def test_a_request_for_nothing_is_a_goodbye(path, body, is_goodbye):
    assert stay_of(path, json.dumps(body).encode()).is_goodbye == is_goodbye


def test_most_requests_say_nothing_of_it():
    said = b'{"model": "a", "messages": [{"content": "\\"keep_alive\\""}], "keep_alive": 0}'
    assert stay_of("/v1/chat/completions", said) is None
    assert stay_of("/api/chat", b'{"model": "a", "keep_alive": null}') is None
    assert stay_of("/api/chat", b'{"options": {"keep_alive": 5}}') is None


def entry(name, **more):
    return {"name": name, "model": f"{name}.gguf", "memory": 100 * MIB, **more}


def ask(router, name, **more):
    body = {"model": name, "prompt": "ab", "stream": False, "options": {"num_predict": 2}, **more}
    answer = router.client.post("/api/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    models = [entry("a", idle_s=1000), entry("kept", pinned=True), entry("short", idle_s=0.2)]
    folder = tmp_path_factory.mktemp("staying")
    with toy_router(folder, {"models": models, "memory": 500 * MIB}) as running:
        yield running


def expires(router, name):
    rows = {one["name"]: one for one in router.client.get("/api/ps").json()["models"]}
    return datetime.datetime.fromisoformat(rows[f"{name}:latest"]["expires_at"])


def left(router, name):
    return (expires(router, name) - datetime.datetime.now(datetime.UTC)).total_seconds()


def test_a_model_goes_when_its_last_word_said_so(router):
    ask(router, "a")
    assert 900 < left(router, "a") <= 1000
    ask(router, "a", keep_alive="2h")
    assert 7000 < left(router, "a") <= 7200
    ask(router, "a")  # what says nothing changes nothing
    assert left(router, "a") > 7000
    ask(router, "a", keep_alive=-1)
    assert expires(router, "a").year == 9999
    ask(router, "a", keep_alive=0)
    wait_for(lambda: router.states()["a"] == "unloaded", "its end")
    ask(router, "a")  # and the next time it stays as its file says
    assert 900 < left(router, "a") <= 1000


def test_a_model_stays_beyond_its_own_time_where_a_request_asks_for_it(router):
    ask(router, "short", keep_alive=-1)
    ask(router, "a", keep_alive=0)
    wait_for(lambda: router.states()["a"] == "unloaded", "the end of another")  # looks go on
    assert router.states()["short"] == "loaded"
    router.client.post("/models/unload", json={"model": "short"})


def test_a_goodbye_loads_nothing(router):
    router.client.post("/models/unload", json={"model": "a"})
    answer = router.client.post("/api/generate", json={"model": "a", "keep_alive": 0})
    assert answer.json() | {"created_at": ""} == {
        "model": "a",
        "created_at": "",
        "response": "",
        "done": True,
        "done_reason": "unload",
    }
    assert router.states()["a"] == "unloaded"
    ask(router, "a")
    answer = router.client.post("/api/chat", json={"model": "a", "messages": [], "keep_alive": 0})
    assert answer.json()["done_reason"] == "unload"
    wait_for(lambda: router.states()["a"] == "unloaded", "its end")


def test_what_is_pinned_stays_and_the_client_is_told(router):
    wait_for(lambda: router.states()["kept"] == "loaded", "the pinned model")
    answer = ask(router, "kept", keep_alive=0)
    assert answer.headers["x-lanewise-warning"] == "keep_alive is ignored: kept is pinned"
    assert expires(router, "kept").year == 9999


def test_a_time_that_is_none_is_an_error_of_ollama(router):
    body = {"model": "a", "prompt": "b", "keep_alive": "soon"}
    answer = router.client.post("/api/generate", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith('keep_alive: "soon"; accepted: seconds')


def test_where_there_are_keys_only_administrators_say_how_long(tmp_path):
    keys = {"api_key": ["user"], "admin_api_key": ["admin"]}
    models = {"models": [entry("a", idle_s=1000)], "memory": 300 * MIB}
    with toy_router(tmp_path, models, **keys) as router:
        router.client.headers["authorization"] = "Bearer user"
        answer = ask(router, "a", keep_alive=-1)
        assert "it is an administrator's" in answer.headers["x-lanewise-warning"]
        assert 900 < left(router, "a") <= 1000
        router.client.headers["authorization"] = "Bearer admin"
        ask(router, "a", keep_alive=-1)
        assert expires(router, "a").year == 9999
