"""Health: alive, and ready for requests only after a real one has been answered."""

from starlette.responses import JSONResponse, Response

from lanewise.api import warm_up
from lanewise.api.state import Phase, ServerState


def live(state: ServerState) -> Response:
    """200 while the engine's thread runs."""
    if state.engine.is_alive:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "the engine has stopped"}, 503)


def ready(state: ServerState) -> Response:
    """200 after the warm-up request and until the server begins to shut down.

    Not while a step hangs, or after nothing but failures: others should serve what comes now. If
    the step ends after all, or one succeeds, it is 200 again; where no request comes any more
    because of the 503, asking for it makes the server try one of its own.
    """
    age = state.engine.step_age_s()
    if 0 < state.step_timeout_s < age:
        return JSONResponse({"status": f"a step has been running for {age:.0f} s"}, 503)
    if state.phase is Phase.READY and (reason := state.engine.failures.reason):
        warm_up.try_again(state)
        return JSONResponse({"status": reason}, 503)
    if state.engine.is_alive and state.phase is Phase.READY and state.failure is None:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": state.failure or state.phase.value}, 503)
