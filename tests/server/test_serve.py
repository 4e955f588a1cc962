"""The parts of `lanewise serve` that need no model."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn

from family_models import family_model, write_model
from lanewise.api import http_server
from lanewise.api.app import create_app
from lanewise.api.http.web_pages import WebPages
from lanewise.api.observing.logs import JsonFormatter
from lanewise.api.shared.state import Phase
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.host import MemoryLimit
from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.server import make_state, model_text, opening, start
from lanewise.server.listener import bind
from lanewise.server.make_engine import plan_cache
from lanewise.server.prepare_sandbox import prepare_sandbox
from lanewise.server.progress import progress_lines
from lanewise.settings import Settings, SettingsError
from lanewise.text.chat_template import ChatTemplate
from toy_server import make_engine, outputs_of, toy_state
from toy_tokenizer import toy_tokenizer

LOADED = {"weights": "f32", "parts": "", "info": SimpleNamespace(numerics=3)}


@pytest.fixture
def state():
    engine, _ = make_engine()
    yield toy_state(engine, toy_tokenizer())
    engine.stop()


def test_more_sequences_than_tokens_of_a_step_are_refused():
    with pytest.raises(SettingsError, match="max_seqs is 64; accepted: at most max_step_tokens"):
        start.run(Settings(max_step_tokens=32))


def test_bound_port_is_taken_but_not_yet_listening():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_longrope_is_told_the_longest_text(tmp_path, monkeypatch):
    model = family_model("phi3_longrope")
    path = write_model(model, tmp_path / "m")
    monkeypatch.setattr(opening, "load_beside", lambda _, checkpoint, *more: checkpoint.config)
    limit = MemoryLimit(1 << 30, "test", dedicated=True)
    for longest, is_short in ((None, False), (32, True), (33, False)):
        config = opening.open_model(Settings(model=str(path), max_model_len=longest), 1, limit)
        assert config.is_for_short_context == is_short
        assert (config.ropes[0].factors == config.ropes[0].short_factors) == is_short
        found = make_state._fingerprint(SimpleNamespace(config=config, **LOADED))
        assert found.endswith("-f32-short" if is_short else "-f32")


def test_chat_template_comes_from_a_file(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{{ bos_token }}{{ messages[0].content }}")
    assert model_text.read_template(Settings(), str(path)) == path.read_text()
    path.write_text("{% for %}")
    with pytest.raises(SettingsError, match=r"template\.jinja"):
        model_text.read_template(Settings(), str(path))


def test_a_template_that_cannot_be_used_is_told(state, caplog):
    state.phase = Phase.READY
    state.chat_template = ChatTemplate({"default": "{% for %}"})

    async def check() -> None:
        await prepare_sandbox(state)
        await state.sandbox.close()

    with caplog.at_level(logging.WARNING, "lanewise"):
        asyncio.run(check())
    assert "chat requests get status 400: chat template 'default' at line 1" in caplog.text


def test_loading_is_told_in_lines_without_a_terminal(caplog):
    with caplog.at_level(logging.INFO, "lanewise"):
        show = progress_lines("model")
        for done in range(0, 101, 10):
            show(done << 20, 100 << 20)
    assert caplog.messages == ["loading model: 100 % of 100.00 MiB"]


class FakeModel:
    closed = False

    def close(self):
        self.closed = True


def fake_loading(monkeypatch, load, make_text):
    monkeypatch.setattr(opening, "load_weights", load)
    monkeypatch.setattr(opening, "make_text", make_text)
    checkpoint = SimpleNamespace(tokenizer=None, config=SimpleNamespace(pooling=None))
    limit = MemoryLimit(1 << 30, "test", dedicated=True)
    return opening.load_beside(Settings(), checkpoint, 1, limit)


def test_tokenizer_is_made_while_weights_load(monkeypatch):
    model, made = FakeModel(), threading.Event()

    def load(settings, checkpoint, threads, limit, begun, stop):
        begun.set()
        assert made.wait(60)
        return model

    def make_text(template, files):
        made.set()
        return "text"

    assert fake_loading(monkeypatch, load, make_text) == (model, "text")
    assert not model.closed


def test_nobody_waits_for_a_model_without_a_tokenizer(monkeypatch):
    stopped = []

    def load(settings, checkpoint, threads, limit, begun, stop):
        begun.set()
        stopped.append(stop.wait(60))
        raise InterruptedError

    def make_text(template, files):
        raise ModelFileError("no tokenizer")

    with pytest.raises(ModelFileError, match="no tokenizer"):
        fake_loading(monkeypatch, load, make_text)
    assert stopped == [True]


def test_model_is_closed_when_its_tokenizer_fails_later(monkeypatch):
    model = FakeModel()

    def make_text(template, files):
        raise ModelFileError("no tokenizer")

    with pytest.raises(ModelFileError, match="no tokenizer"):
        fake_loading(monkeypatch, lambda *_: model, make_text)
    assert model.closed


def test_weights_that_cannot_be_loaded_are_the_error(monkeypatch):
    def load(*_):
        raise ModelFileError("damaged")

    with pytest.raises(ModelFileError, match="damaged"):
        fake_loading(monkeypatch, load, lambda *_: "text")


def test_start_imports_nothing_that_only_some_requests_need():
    code = (
        "import sys, lanewise.cli, lanewise.server.start, lanewise.server.serve, "
        "lanewise.api.http_server\n"
        "print([name for name in ('fastapi', 'rich', 'yaml', 'huggingface_hub')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_server_drains_in_a_thread(state, caplog):
    """Signals aside: not ready at once, gone when nothing runs, a line about the load before."""
    server = http_server.DrainingServer(
        uvicorn.Config(create_app(state, WebPages(host="", has_keys=True)), log_config=None),
        state,
        5,
    )
    state.engine.start()

    def run() -> None:
        with bind("127.0.0.1", 0) as listener:
            server.run(sockets=[listener])

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(1000):
        if state.phase is Phase.READY:
            break
        threading.Event().wait(0.01)
    params = SamplingParams(seed=0, max_tokens=3)  # the warm-up is no load
    asyncio.run(outputs_of(state.engine, GenerationRequest([1, 2, 3], params)))
    with caplog.at_level(logging.INFO, "lanewise"):
        server._log_activity()
    assert "tokens/s, 0 running, 0 waiting, KV 0 %" in caplog.text
    server.handle_exit(15, None)
    assert state.phase is Phase.DRAINING
    thread.join(10)
    assert not thread.is_alive()


def test_a_signal_does_not_wait_for_the_next_tick(state, monkeypatch):
    monkeypatch.setattr(http_server, "TICK_S", 1000.0)
    monkeypatch.setattr(state, "phase", Phase.READY)
    config = uvicorn.Config(create_app(state, WebPages(host="", has_keys=True)), log_config=None)
    server = http_server.DrainingServer(config, state, 1000.0)
    state.engine.start()

    def run() -> None:
        with bind("127.0.0.1", 0) as listener:
            server.run(sockets=[listener])

    thread = threading.Thread(target=run)
    thread.start()
    while server._loop is None:
        threading.Event().wait(0.01)
    server.on_signal(15, None)
    thread.join(60)
    assert not thread.is_alive()


def test_json_lines_have_the_request_id():
    record = logging.LogRecord("lanewise.access", logging.INFO, "", 0, "a %s", ("b",), None)
    record.request_id = "id-1"
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["level"], line["request_id"]) == ("a b", "info", "id-1")
    assert line["time"].endswith("Z")


def test_how_answers_are_drawn_is_told_at_the_start(caplog):
    said = {"generation_config.json": {"temperature": 0.6}}
    files = TokenizerFiles(Path("model"), 4, json_files=said)
    with caplog.at_level(logging.INFO, "lanewise"):
        assert model_text.read_sampling(Settings(), files).temperature == 0.6
        assert model_text.read_sampling(Settings(generation_config="off"), files).temperature == 1
    (message,) = caplog.messages
    assert "temperature 0.6 (generation_config.json; --generation-config off: not)" in message


@pytest.mark.parametrize(("kv_memory", "is_warned"), [(64 << 20, False), (2 << 30, True)])
def test_more_kv_memory_than_there_is_is_warned_of(library, caplog, kv_memory, is_warned):
    limit = MemoryLimit(1 << 30, "test", dedicated=True)
    settings = Settings(kv_memory=kv_memory)
    model, _ = opening.open_model(settings, 1, limit)
    with model:
        plan_cache(settings, model, None, limit, None)
    assert ("are more than the 1.00 GiB that there are (test)" in caplog.text) == is_warned
