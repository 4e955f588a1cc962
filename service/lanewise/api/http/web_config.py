"""uvicorn, set up so that our own protocol looks after its connections."""

from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from lanewise.api.http.front import Front
from lanewise.api.http.protocol import Connection

Config = uvicorn.Config


def make_config(front: Front, app: ASGIApp, **options: Any) -> uvicorn.Config:
    """uvicorn's configuration of a server whose connections are bounded."""
    return uvicorn.Config(
        front.around(app),
        http=cast(Any, partial(Connection, front)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        **options,
    )
