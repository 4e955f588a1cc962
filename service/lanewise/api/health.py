"""Health: alive, and ready for requests only after a real one has been answered."""

from starlette.responses import JSONResponse, Response

from lanewise.api.state import Phase, ServerState


def live(state: ServerState) -> Response:
    """200 while the engine's thread runs."""
    if state.engine.is_alive:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "the engine has stopped"}, 503)


def ready(state: ServerState) -> Response:
    """200 after the warm-up request and until the server begins to shut down.

    Not while a step hangs: others should serve what comes now. If the step ends after all, it is
    200 again.
    """
    age = state.engine.step_age_s()
    if 0 < state.step_timeout_s < age:
        return JSONResponse({"status": f"a step has been running for {age:.0f} s"}, 503)
    if state.engine.is_alive and state.phase is Phase.READY:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": state.failure or state.phase.value}, 503)
