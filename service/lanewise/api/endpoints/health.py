"""Health: alive, and ready for requests only after a real one has been answered."""

from prometheus_client import Gauge
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api import warm_up
from lanewise.api.shared.state import Phase, ServerState


async def live(_: Request, state: ServerState) -> Response:
    """Whether the engine's thread runs."""
    if state.engine.is_alive:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "the engine has stopped"}, 503)


# From the warm-up request until the server begins to shut down; not while a step hangs, after
# nothing but failures, or while the system starts no processes for conversations: others should
# serve what comes now. If the step ends after all, or one succeeds, it is 200 again; where no
# request comes any more because of the 503, asking here makes the server try one of its own.
async def ready(_: Request, state: ServerState) -> Response:
    """Whether requests are welcome."""
    reason = why_not_ready(state)
    if reason is None:
        return JSONResponse({"status": "ready"})
    if state.phase is Phase.READY:
        warm_up.try_again(state)
    return JSONResponse({"status": reason}, 503)


def why_not_ready(state: ServerState) -> str | None:
    """Why requests should go elsewhere; None: they are welcome."""
    age = state.engine.step_age_s()
    if 0 < state.step_timeout_s < age:
        return f"a step has been running for {age:.0f} s"
    if state.phase is not Phase.READY:
        return state.failure or state.phase.value
    if reason := state.engine.failures.reason or state.failure or state.sandbox.shortage.reason:
        return reason
    return None if state.engine.is_alive else "the engine has stopped"


def count_readiness(state: ServerState) -> None:
    """Show readiness among the metrics, as it is when they are scraped."""
    gauge = Gauge(
        "lanewise_ready",
        "1 where /health/ready is 200, else 0.",
        registry=state.engine.metrics.registry,
    )
    gauge.set_function(lambda: why_not_ready(state) is None)
