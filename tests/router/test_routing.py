"""Several models behind one address, on real sockets: the servers are toys in processes."""

import contextlib
import json
import os
import signal
import threading

import httpx
import pytest

from processes import command_line, is_gone
from serving import wait_for
from toy_router import toy_router

MIB = 1 << 20
TYPE = "content-type"


def entry(name, **more):
    return {"name": name, "model": f"{name}.gguf", "memory": 100 * MIB, **more}


def total(router, name):
    """The sum of a metric over all models, which call themselves by other names."""
    lines = router.client.get("/metrics").text.splitlines()
    return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(name))


def ask_in_vain(router, body):
    """Ask for what nobody waits for."""
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{router.url}/v1/completions", json=body, timeout=60)


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    models = [
        entry("chat", aliases=["gpt-4o"], pinned=True, settings={"lora": ["sql=/adapters/sql"]}),
        entry("coder"),
        entry("broken"),
        entry("large", memory=900 * MIB),
    ]
    catalogue = {"models": models, "default": "chat", "memory": 500 * MIB}
    with toy_router(tmp_path_factory.mktemp("router"), catalogue) as running:
        wait_for(lambda: running.states()["chat"] == "loaded", "the pinned model")
        yield running


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 4},
    "/chat/completions": {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "ab", "max_tokens": 4},
    "/v1/responses": {"input": "ab", "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 4},
    "/api/chat": {"messages": [{"role": "user", "content": "ab"}], "options": {"num_predict": 4}},
    "/api/generate": {"prompt": "ab", "stream": False, "options": {"num_predict": 4}},
    "/completion": {"prompt": "ab", "n_predict": 4},
    "/tokenize": {"prompt": "ab"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("model", ["chat", "coder", "gpt-4o", None])
def test_every_dialect_reaches_the_model_it_names(router, path, model):
    named = {} if model is None else {"model": model}
    answer = router.client.post(path, json=BODIES[path] | named)
    if (path, model) == ("/v1/messages", None):  # which wants a name, as it does of one server
        assert answer.json()["error"]["message"] == "model is required"
        return
    assert answer.status_code == 200, answer.text
    told = answer.text.splitlines()[-1] if path == "/api/chat" else answer.text
    if path not in ("/completion", "/tokenize"):
        assert json.loads(told)["model"] in ("chat", "gpt-4o", "coder")
        assert json.loads(told)["model"] == (model or "chat")
    assert len(answer.headers.get_list("x-request-id")) == 1


def test_an_answer_is_the_same_as_without_a_router(router):
    ask = {"model": "chat", "prompt": "some text", "max_tokens": 8, "seed": 1, "stream": True}
    texts = []
    for _ in range(2):
        with router.client.stream("POST", "/v1/completions", json=ask) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
        texts.append("".join(json.loads(line[6:])["choices"][0]["text"] for line in lines))
    whole = router.client.post("/v1/completions", json=ask | {"stream": False}).json()
    assert texts == [whole["choices"][0]["text"]] * 2


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/v1/chat/completions", lambda body: body["error"]["message"]),
        ("/v1/messages", lambda body: body["error"]["message"] if body["type"] == "error" else ""),
        ("/api/chat", lambda body: body["error"]),
    ],
)
def test_an_unknown_model_is_an_error_of_the_dialect(router, path, read):
    answer = router.client.post(path, json=BODIES[path] | {"model": "none"})
    assert answer.status_code == 404
    assert "'chat', 'gpt-4o', 'sql', 'coder'" in read(answer.json())


def test_the_list_has_all_models_and_their_states(router):
    router.client.post("/v1/completions", json=BODIES["/v1/completions"] | {"model": "coder"})
    rows = {one["id"]: one for one in router.client.get("/models").json()["data"]}
    assert [*rows] == ["chat", "gpt-4o", "sql", "coder", "broken", "large"]
    assert rows["sql"]["parent"] == "chat"
    assert rows["gpt-4o"]["parent"] is None
    assert rows["coder"]["status"]["value"] == rows["gpt-4o"]["status"]["value"] == "loaded"
    assert rows["large"]["status"]["value"] == "unloaded"
    assert rows["chat"]["context_length"] == 512
    assert router.client.get("/v1/models/coder").json()["id"] == "coder"
    assert router.client.get("/v1/models/none").status_code == 404
    tags = [one["name"] for one in router.client.get("/api/tags").json()["models"]]
    assert tags[:2] == ["chat:latest", "gpt-4o:latest"]
    running = {one["name"] for one in router.client.get("/api/ps").json()["models"]}
    assert running == {"chat:latest", "coder:latest"}


def test_what_has_no_body_names_its_model_in_its_address(router):
    ask = BODIES["/v1/responses"] | {"model": "coder"}
    path = f"/v1/responses/{router.client.post('/v1/responses', json=ask).json()['id']}"
    assert router.client.get(path).status_code == 404  # the default model has it not
    assert router.client.get(path, params={"model": "coder"}).json()["model"] == "coder"


def test_a_model_is_loaded_and_unloaded_by_request(router):
    assert router.client.post("/models/load", json={"model": "coder"}).json() == {"success": True}
    assert router.states()["coder"] == "loaded"
    assert router.client.post("/models/unload", json={"model": "coder"}).json()["success"]
    assert router.states()["coder"] == "unloaded"
    assert router.client.post("/models/load", json={"model": "none"}).status_code == 404


def test_a_model_that_cannot_be_loaded_says_why_and_waits_before_the_next_try(router):
    ask = BODIES["/v1/completions"] | {"model": "broken"}
    first = router.client.post("/v1/completions", json=ask)
    assert first.status_code == 503
    assert "broken.gguf: no such file" in first.json()["error"]["message"]
    second = router.client.post("/v1/completions", json=ask)
    assert second.status_code == 503
    assert "broken.gguf: no such file" in second.json()["error"]["message"]
    assert int(second.headers["retry-after"]) >= 1
    row = router.client.get("/v1/models/broken").json()
    assert row["status"]["failed"]


def test_a_model_larger_than_the_budget_is_refused_before_it_starts(router):
    ask = BODIES["/v1/messages"] | {"model": "large"}
    answer = router.client.post("/v1/messages", json=ask)
    assert answer.status_code in (503, 529)
    assert "it takes 900.00 MiB; accepted: at most 500.00 MiB" in answer.json()["error"]["message"]


def test_metrics_are_of_all_models_and_requests_count_once(router):
    router.client.post("/v1/completions", json=BODIES["/v1/completions"] | {"model": "coder"})
    lines = router.client.get("/metrics").text.splitlines()
    ready = [line for line in lines if line.startswith("lanewise_ready")]
    assert sorted(ready) == [
        'lanewise_ready{model_name="chat"} 1.0',
        'lanewise_ready{model_name="coder"} 1.0',
    ]
    assert 'lanewise_router_models{state="loaded"} 2.0' in lines
    counts = [line for line in lines if line.startswith("http_requests_total")]
    assert counts
    assert not any("model_name" in line for line in counts)
    names = [line.split(" ")[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_a_client_that_goes_ends_the_work_for_it(router):
    # More tokens than are made before the router writes again, and finds nobody there.
    ask = {"model": "chat", "prompt": "a", "n": 8, "max_tokens": 400, "stream": True}
    ask["ignore_eos"] = True

    router.client.post("/v1/completions", json=BODIES["/v1/completions"])
    before = total(router, "vllm:generation_tokens_total{")
    pid = next(pid for pid in router.children() if "1.yaml" in " ".join(command_line(pid)))
    os.kill(pid, signal.SIGUSR1)  # it computes no further step
    try:
        with httpx.stream("POST", f"{router.url}/v1/completions", json=ask, timeout=5) as _:
            pass
    except httpx.ReadTimeout:
        pass
    finally:
        for _ in range(5):  # it has noticed that the client has gone when it has answered others
            router.client.post("/tokenize", json={"model": "chat", "content": "a"})
        os.kill(pid, signal.SIGUSR1)
    wait_for(lambda: total(router, "vllm:num_requests_running{") == 0, "the end of the work")
    assert total(router, "vllm:generation_tokens_total{") < before + 2_400


def test_the_page_and_pages_of_this_machine_are_answered_without_a_model(router):
    assert "text/html" in router.client.get("/", headers={"accept": "text/html"}).headers[TYPE]
    local = {"origin": "http://localhost:3000"}
    asks = local | {"access-control-request-method": "POST"}
    answer = router.client.options("/v1/completions", headers=asks)
    assert answer.headers["access-control-allow-origin"] == local["origin"]
    answer = router.client.post("/v1/completions", json=BODIES["/v1/completions"], headers=local)
    assert answer.headers.get_list("access-control-allow-origin") == [local["origin"]]
    foreign = {"origin": "https://example.com"}
    assert router.client.get("/v1/models", headers=foreign).status_code == 403


def test_what_is_nowhere_loads_nothing(router):
    router.client.post("/models/unload", json={"model": "coder"})
    ask = BODIES["/v1/completions"] | {"model": "coder"}
    for method, path, status in (
        ("POST", "/v1/chat/completion", 404),
        ("GET", "/favicon.png", 404),
        ("DELETE", "/v1/completions", 405),
    ):
        answer = router.client.request(method, path, params={"model": "coder"}, json=ask)
        assert answer.status_code == status
    assert "did you mean /v1/chat/completions" in router.client.post("/v1/chat/completion").text
    assert router.client.post("/ping").status_code == 200
    assert router.states()["coder"] == "unloaded"


def test_guide_and_documents_are_answered_without_a_model(router):
    assert "several models" in router.client.get("/guide/several-models").text.lower()
    assert "/v1/chat/completions" in router.client.get("/openapi.json").json()["paths"]


def test_clients_of_lm_studio_see_all_models(router):
    router.client.post("/models/load", json={"model": "coder"})
    rows = {one["id"]: one for one in router.client.get("/api/v0/models").json()["data"]}
    assert [*rows] == ["chat", "gpt-4o", "sql", "coder", "broken", "large"]
    assert (rows["coder"]["state"], rows["large"]["state"]) == ("loaded", "not-loaded")
    assert rows["coder"]["max_context_length"] == 512


def test_a_body_beyond_the_limit_is_refused(router):
    ask = {"model": "chat", "prompt": "a" * (9 * MIB)}
    assert router.client.post("/v1/completions", json=ask).status_code == 413


def test_the_longest_idle_goes_when_memory_is_short_and_a_pinned_one_stays(tmp_path):
    models = [entry("a", pinned=True), entry("b"), entry("c"), entry("d")]
    with toy_router(tmp_path, {"models": models, "memory": 300 * MIB}) as router:
        for name in ("b", "c", "b", "d"):
            ask = BODIES["/v1/completions"] | {"model": name}
            assert router.client.post("/v1/completions", json=ask).status_code == 200
        wait_for(lambda: router.states()["a"] == "loaded", "the pinned model")
        assert router.states() == {
            "a": "loaded",
            "b": "loaded",
            "c": "unloaded",
            "d": "loaded",
        }
        children = router.children()
        assert len(children) == 3
        assert router.stop() == 0
        assert all(map(is_gone, children))
        assert not list(router.folder.iterdir())


def test_requests_of_a_loading_model_are_bounded_and_one_process_serves_them(tmp_path):
    gate = tmp_path / "slow"
    models = [entry("a", model=str(gate))]
    with toy_router(tmp_path, {"models": models, "max_waiting": 2, "memory": 300 * MIB}) as router:
        ask = BODIES["/v1/completions"] | {"model": "a"}
        answers = []

        def post():
            answers.append(httpx.post(f"{router.url}/v1/completions", json=ask, timeout=60))

        threads = [threading.Thread(target=post) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: answers, "the refusal of the third")
        assert answers[0].status_code == 429
        assert answers[0].headers["retry-after"]
        gate.touch()
        for thread in threads:
            thread.join()
        assert [one.status_code for one in answers] == [429, 200, 200]
        assert len(router.children()) == 1


def test_an_idle_model_goes_by_itself(tmp_path):
    models = [entry("a", idle_s=0.2)]
    with toy_router(tmp_path, {"models": models, "memory": 300 * MIB}) as router:
        router.client.post("/v1/completions", json=BODIES["/v1/completions"])
        wait_for(lambda: router.states()["a"] == "unloaded" and not router.children(), "its end")


@pytest.mark.parametrize(
    ("path", "more", "error"),
    [
        ("/v1/completions", {"prompt": "a", "ignore_eos": True}, b'data: {"error": '),
        ("/v1/messages", BODIES["/v1/messages"], b"event: error\ndata: "),
        ("/api/generate", {"prompt": "a"}, b'{"error":'),
    ],
)
def test_a_stream_whose_server_is_killed_ends_with_an_error(tmp_path, path, more, error):
    models = [entry("a"), entry("b")]
    with toy_router(tmp_path, {"models": models, "memory": 300 * MIB}) as router:
        router.client.post("/models/load", json={"model": "a"})
        [child] = router.children()
        ask = {**more, "model": "a", "max_tokens": 450, "stream": True}
        got = b""
        # With much else to answer, it has not answered this before it is killed.
        others = {"model": "a", "prompt": "a", "max_tokens": 450, "ignore_eos": True, "n": 8}
        threading.Thread(target=ask_in_vain, args=(router, others)).start()
        wait_for(lambda: total(router, "vllm:num_requests_running{") > 0, "the other answers")
        with httpx.stream("POST", f"{router.url}{path}", json=ask, timeout=60) as answer:
            assert answer.status_code == 200
            for some in answer.iter_raw():
                if not got:
                    os.kill(child, signal.SIGKILL)
                got += some
        assert error.replace(b" ", b"") in got.replace(b" ", b"")
        assert b"SIGKILL" in got
        ask = BODIES["/v1/completions"]
        other = router.client.post("/v1/completions", json=ask | {"model": "b"})
        assert other.status_code == 200

        def is_back():
            answer = router.client.post("/v1/completions", json=ask | {"model": "a"})
            return answer.status_code == 200

        wait_for(is_back, "a new process of the model")


def test_keys_are_wanted_before_anything_is_loaded(tmp_path):
    keys = {"api_key": ["user"], "admin_api_key": ["admin"]}
    with toy_router(tmp_path, {"models": [entry("a")], "memory": 300 * MIB}, **keys) as router:
        path, ask = "/v1/completions", BODIES["/v1/completions"]
        assert router.client.post(path, json=ask).status_code == 401
        assert router.states() == {"a": "unloaded"}
        user, admin = ({"authorization": f"Bearer {key}"} for key in ("user", "admin"))
        assert router.client.post(path, json=ask, headers=user).status_code == 200
        name = {"model": "a"}
        assert router.client.post("/models/unload", json=name, headers=user).status_code == 403
        assert router.client.post("/models/unload", json=name, headers=admin).status_code == 200
        assert router.states() == {"a": "unloaded"}
        assert router.client.get("/health/ready").status_code == 200
