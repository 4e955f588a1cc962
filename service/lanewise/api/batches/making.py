"""Makes what runs the batches of a server, around the endpoints that it has."""

from lanewise.api.batches.asking import Asker
from lanewise.api.batches.paths import PATHS
from lanewise.api.batches.runner import Runner
from lanewise.api.endpoints.table import ENDPOINTS, error_forms
from lanewise.api.http.keys import Keys
from lanewise.api.http.limits import DEFAULT_BYTES, RequestMemory
from lanewise.api.shared.state import ServerState
from lanewise.batches.lines import Limits


def make_asker(
    state: ServerState, memory_bytes: int = DEFAULT_BYTES, *, any_model: bool = False
) -> Asker:
    """What asks in this process; its requests hold no more than ``memory_bytes`` together."""
    endpoints = {e.path: e for e in ENDPOINTS if e.path in PATHS and e.method == "POST"}
    memory = RequestMemory(memory_bytes)
    return Asker(state, endpoints, error_forms(), memory, any_model=any_model)


def make_runner(state: ServerState) -> Runner | None:
    """What runs the batches of the data directory; None where there is none."""
    if state.files is None:
        return None
    asker, keys = (
        make_asker(state, state.batch_rules.memory_bytes),
        Keys(state.api_keys, state.admin_keys),
    )
    return Runner(
        state.files,
        asker.ask,
        keys.number_of,
        Limits(PATHS, state.max_body_bytes, parse=asker.parse),
        state.batch_rules,
        state.engine.metrics.registry,
    )
