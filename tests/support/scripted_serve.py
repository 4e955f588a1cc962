"""``lanewise serve`` with a model that says what a script tells it, for clients of others.

Run as a script: the folder of the script, then the arguments of ``lanewise serve``. The script is
``script.json`` there, read again for each request; ``exchanges.jsonl`` has the requests and their
answers, ``refused.txt`` what a grammar did not let the model say.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from lanewise import cli
from lanewise.api import http_server
from lanewise.engine.engine import Engine
from lanewise.runtime import Session
from lanewise.server import make_engine, serve
from scripted_engine import Director, Lines, Told
from scripted_forms import Script


class ScriptedSession(Told, Session):  # type: ignore[misc]
    """The library's session, whose draws are told what to say."""

    lines: ClassVar[dict[int, Lines]] = {}


class Recorder:
    """Writes down requests and their answers."""

    def __init__(self, app: Any, path: Path) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as the application does."""
        if scope["type"] != "http" or scope["path"].startswith("/health"):
            await self._app(scope, receive, send)
            return
        status, asked, answered = [0], bytearray(), bytearray()

        async def received() -> Any:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def sent(message: Any) -> None:
            status[0] = message.get("status", status[0])
            answered.extend(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, received, sent)
        finally:
            self._write(scope, status[0], asked.decode(errors="replace"), answered)

    def _write(self, scope: Any, status: int, asked: str, answered: bytearray) -> None:
        exchange = {
            "method": scope["method"],
            "path": scope["path"],
            "query": scope["query_string"].decode(),
            "headers": {name.decode(): value.decode() for name, value in scope["headers"]},
            "status": status,
            "asked": asked,
            "answered": answered.decode(errors="replace"),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(exchange) + "\n")


def read_script(path: Path) -> Script | None:
    """What is to be said from now on; None before a test has said anything."""
    return Script.of(path.read_text()) if path.exists() else None


def append(path: Path, line: str) -> None:
    """Add a line to a file."""
    with path.open("a") as file:
        file.write(f"{line}\n")


def main(folder: Path, arguments: list[str]) -> int:
    """Serve as the command does."""
    ScriptedSession.refused = staticmethod(partial(append, folder / "refused.txt"))
    make_engine.Session = ScriptedSession  # type: ignore[misc]
    made, created = serve.make_engine, http_server.create_app
    script: Callable[[], Script | None] = partial(read_script, folder / "script.json")

    def directed(
        settings: Any, model: Any, draft: Any, tokenizer: Any, *more: Any, **named: Any
    ) -> Engine:
        template = Path(settings.model, "chat_template.jinja").read_text()
        engine = made(settings, model, draft, tokenizer, *more, **named)
        return Director(script, tokenizer, template, ScriptedSession).direct(engine)

    def recorded(*given: Any) -> Any:
        app = created(*given)
        app.add_middleware(Recorder, path=folder / "exchanges.jsonl")
        return app

    serve.make_engine = directed  # type: ignore[assignment]
    http_server.create_app = recorded
    return cli.main(["serve", *arguments])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
