"""Health: alive, and ready for requests only after a real one has been answered."""

from starlette.responses import JSONResponse, Response

from lanewise.api.state import Phase, ServerState


def live(state: ServerState) -> Response:
    """200 while the engine's thread runs."""
    if state.engine.is_alive:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "the engine has stopped"}, 503)


def ready(state: ServerState) -> Response:
    """200 after the warm-up request and until the server begins to shut down."""
    if state.engine.is_alive and state.phase is Phase.READY:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": state.failure or state.phase.value}, 503)
