"""A program: the toy's server in place of ``lanewise serve``, with the same file of settings."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from lanewise.api.http_server import make_server
from lanewise.server.listener import bind
from lanewise.settings import Settings, resolve_mapping
from toy_server import make_engine, toy_state
from toy_tokenizer import toy_tokenizer


def main(config: str, host: str) -> None:
    """Serve until told to stop; a model called broken or slow is that."""
    given = json.loads(Path(config).read_text())
    if "broken" in given["model"]:
        print("lanewise: broken.gguf: no such file", file=sys.stderr)
        sys.exit(1)
    if "slow" in given["model"]:
        gate = Path(given["model"])
        while not gate.exists():
            time.sleep(0.01)
    settings = resolve_mapping(Settings, given, config)
    engine, runner = make_engine()
    engine.start()
    names = settings.served_model_name
    state = toy_state(engine, toy_tokenizer(), names, api_keys=settings.api_key)

    def open_gate(*_: object) -> None:
        (runner.gate.clear if runner.gate.is_set() else runner.gate.set)()

    signal.signal(signal.SIGUSR1, open_gate)
    with bind(host, 0) as listener:
        server = make_server(settings, state)
        server.run(sockets=[listener])
    runner.gate.set()
    engine.stop()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
