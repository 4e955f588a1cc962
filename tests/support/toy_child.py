"""A program: the toy's server in place of ``lanewise serve``, with the same file of settings."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import tiny_child


def main(config: str, host: str) -> None:
    """Serve until told to stop; a model called broken, slow or tiny is that."""
    given = json.loads(Path(config).read_text())
    if "broken" in given["model"]:
        print("lanewise: broken.gguf: no such file", file=sys.stderr)
        sys.exit(1)
    if "slow" in given["model"]:
        gate = Path(given["model"])
        while not gate.exists():
            time.sleep(0.01)
    if "tiny" in given["model"]:
        tiny_child.serve(given, host)
    else:
        serve(given, config, host)


def serve(given: dict[str, object], config: str, host: str) -> None:
    """The toy's own server, which takes a second to import."""
    from lanewise.api.http_server import make_server
    from lanewise.api.observing.tracing import Tracer
    from lanewise.server.listener import bind
    from lanewise.settings import Settings, resolve_mapping
    from toy_server import make_engine, toy_state
    from toy_tokenizer import toy_tokenizer

    settings = resolve_mapping(Settings, given, config)
    engine, runner = make_engine()
    engine.start()
    names = settings.served_model_name
    endpoint = settings.otlp_traces_endpoint
    tracer = Tracer(endpoint, "0") if endpoint else None
    keys = {"api_keys": settings.api_key, "admin_keys": settings.admin_api_key}
    state = toy_state(engine, toy_tokenizer(), names, tracer=tracer, **keys)

    def open_gate(*_: object) -> None:
        (runner.gate.clear if runner.gate.is_set() else runner.gate.set)()

    signal.signal(signal.SIGUSR1, open_gate)
    with bind(host, 0) as listener:
        server = make_server(settings, state)
        server.run(sockets=[listener])
    runner.gate.set()
    engine.stop()
    if tracer is not None:
        tracer.close()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
