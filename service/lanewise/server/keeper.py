"""A process that keeps a model's file open and its tokenizer made, and forks the model's servers.

Of a packed model these take longer than its weights, and they take little memory: so they are made
before the memory of the weights is free, and kept when the model goes.
"""

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanewise import forking, host
from lanewise.api.observing.logs import set_up_logging
from lanewise.server.opening import Opened
from lanewise.server.start import run_opened
from lanewise.settings import Settings, resolve_mapping


def keep(message: dict[str, Any], router: int) -> int:
    """Open a model, say so, and serve it whenever that is asked; the exit status.

    ``message`` has its ``name`` and ``settings``. Standard input is a socket for messages
    (``lanewise.forking``). The first thing said is ``bytes`` that opening took. What asks for a
    server has its ``address`` and ``warms_up``; the reply has its ``pid``, or it is ``changed``:
    other files lie there now, and this process ends.
    """
    control = socket.socket(fileno=os.dup(0))
    forking.leave_signals()
    forking.call_it(message["name"])
    settings = resolve_mapping(Settings, message["settings"], message["name"])
    set_up_logging(settings.log_level, settings.log_format)
    before = _own_bytes()
    with host.garbage_left_alone(for_good=True):
        opened = Opened(settings)
    forking.send(control, {"bytes": max(0, _own_bytes() - before)})
    while (received := forking.receive(control)) is not None:
        asked, fds = received
        if opened.is_changed():
            forking.send(control, {"changed": True})
            return 0
        # Only the address is not known before.
        own = replace(settings, host=asked["address"])

        def serve(own: Settings = own, warms_up: bool = asked["warms_up"]) -> int:
            return run_opened(own, opened, warms_up=warms_up)

        if not (opened.may_be_shared and forking.is_alone()):
            forking.take_standard(fds)
            forking.send(control, {"pid": os.getpid()})
            control.close()
            forking.heed_signals()
            return serve()
        forking.answer(control, router, fds, serve)
    return 0


def _own_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0
