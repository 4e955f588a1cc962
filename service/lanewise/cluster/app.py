"""The application that a configuration of Ray Serve names: ``lanewise.cluster.app:build``."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lanewise.settings import Settings, SettingsError, resolve_mapping

try:
    from ray import serve
except ImportError as error:
    raise ImportError(
        f"lanewise.cluster needs Ray Serve ({error}): pip install aiohttp 'ray[serve]'"
    ) from error

from lanewise.cluster.ingress import Ingress
from lanewise.cluster.replica import Replica

OF_REPLICAS = ("host", "port")  # settings that are each replica's own


class Arguments(BaseModel):
    """``args`` of the application."""

    model_config = ConfigDict(extra="forbid")

    serve: dict[str, Any] = Field(
        default_factory=dict, description="settings of `lanewise serve`, by their names in its YAML"
    )
    start_s: float = Field(3600.0, gt=0, description="time a server may take to be ready")
    wait_s: float = Field(60.0, gt=0, description="time a request waits for a server to take it")
    attempts: int = Field(3, ge=1, description="servers that are asked, one after another dying")


def build(arguments: Arguments) -> Any:
    """The application; SettingsError where a setting of `lanewise serve` is wrong or unknown."""
    if own := sorted(arguments.serve.keys() & OF_REPLICAS):
        raise SettingsError(f"args.serve: {own[0]} is each replica's own; leave it out")
    settings = resolve_mapping(Settings, arguments.serve, "args.serve")
    replicas = serve.deployment(Replica, name="Server").bind(arguments.serve, arguments.start_s)
    return serve.deployment(Ingress, name="Ingress").bind(
        replicas, arguments.wait_s, arguments.attempts, settings.max_body_bytes
    )
