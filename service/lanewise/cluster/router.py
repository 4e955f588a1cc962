"""Which replica a request goes to: Ray's router by prefix, which one dead actor does not stop."""

import contextlib
from typing import Any

from ray.exceptions import RayActorError

# The public name, ray.serve.llm.request_router, cannot be imported without vLLM.
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)


class PromptRouter(PrefixCacheAffinityRouter):
    """Sends a prompt to the replica that has seen most of it, others to one that has little to do.

    Ray keeps the tree of prompts in one actor. Whatever is wrong with it, a request is routed by
    load instead of never; the tree then begins again.
    """

    def initialize_state(self, **options: Any) -> None:
        """What PrefixCacheAffinityRouter takes."""
        self._options = options
        super().initialize_state(**options)

    def _extract_text_from_request(self, pending_request: Any) -> str | None:
        return pending_request.args[0].text or None

    async def _prefix_match_best_replicas(self, pending_request: Any, candidates: Any) -> Any:
        try:
            return await super()._prefix_match_best_replicas(pending_request, candidates)
        except KeyError:  # the tree still has a replica that is gone
            return [[]]
        except RayActorError:
            self._begin_again()
            return [[]]

    def on_request_routed(self, *arguments: Any, **named: Any) -> None:
        """Remember the prompt, if it can be."""
        with contextlib.suppress(RayActorError):
            super().on_request_routed(*arguments, **named)

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Send nothing more there, whether or not the tree can be told."""
        with contextlib.suppress(RayActorError):
            super().on_replica_actor_died(replica_id)

    def update_replicas(self, replicas: Any) -> None:
        """Route to these from now on, whether or not the tree can be told."""
        with contextlib.suppress(RayActorError):
            super().update_replicas(replicas)

    def _begin_again(self) -> None:
        with contextlib.suppress(RayActorError, ValueError):
            super().initialize_state(**self._options)
            self._eviction_loop_running = False
            replicas = list(self._replicas.values())
            self._replica_id_set.clear()  # all are new to the tree
            self.update_replicas(replicas)
