"""Which web pages may use a server that wants no key: those of this machine, unless settings say.

Any page in a browser can send requests to the browser's own machine, and read the answers if a
name of the page's leads there (DNS rebinding) or CORS allows it. A key keeps pages out; without one
a server that listens on this machine alone is asked by the names and addresses of this machine, and
by pages from here. One that listens to others is asked by names that are not known here.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from lanewise.api.errors import ApiError, ForbiddenError, cut

ANY = "*"
MAX_SHOWN = 60
# Names that cannot be registered lead to no page of others; nor does a name without a dot.
LOCAL_NAMES = ("localhost", "local", "internal")
# Pages of this machine, and of programs that show some.
LOCAL_ORIGIN = re.compile(
    r"https?://(localhost|[^/:@]+\.localhost|127(\.\d+){3}|0\.0\.0\.0|\[::1\])(:\d+)?"
    r"|(app|file|tauri|vscode-webview|vscode-file)://.*"
)


class WebPages:
    """Refuses what pages of others send to a server without a key."""

    def __init__(
        self,
        *,
        host: str,
        has_keys: bool,
        allowed_hosts: Sequence[str] = (),
        cors_origins: Sequence[str] = (),
    ) -> None:
        """``host`` is what the server listens on."""
        self._hosts = {name.lower() for name in allowed_hosts}
        self._hosts_matter = ANY not in self._hosts and (
            bool(self._hosts) or (_is_loopback(host) and not has_keys)
        )
        self.origins = list(cors_origins) or ([ANY] if has_keys else [])
        self._origins_matter = _is_loopback(host) and not has_keys and ANY not in self.origins
        self._hosts.add(host.lower())

    @property
    def local_origins(self) -> str | None:
        """The expression of the origins that may read answers beside ``origins``."""
        return None if self.origins else LOCAL_ORIGIN.pattern

    @property
    def cors(self) -> dict[str, Any]:
        """The arguments of Starlette's ``CORSMiddleware``."""
        return {
            "allow_origins": self.origins,
            "allow_origin_regex": self.local_origins,
            "allow_methods": ["*"],
            "allow_headers": ["*"],
            "expose_headers": ["x-request-id", "request-id", "retry-after"],
        }

    def refusal(self, host: bytes | None, origin: bytes | None) -> ApiError | None:
        """Why a request with these fields is not answered, if it is not."""
        asked = (host or b"").decode("latin-1").lower()
        if self._hosts_matter and not self._is_ours(asked):
            shown = cut(asked, MAX_SHOWN)
            return ForbiddenError(
                f"the field Host has {shown!r}; accepted where no key is wanted: names and"
                " addresses of this machine, and those of --allowed-hosts"
            )
        if self._origins_matter and origin is not None:
            page = origin.decode("latin-1").lower()
            if not self._may_ask(page, asked):
                return ForbiddenError(
                    f"the page's origin is {cut(page, MAX_SHOWN)!r}; accepted where no key is"
                    " wanted: pages of this machine, and those of --cors-origins"
                )
        return None

    def _is_ours(self, asked: str) -> bool:
        name = asked.rpartition(":")[0] if re.search(r":\d*$", asked) else asked
        if name in self._hosts or asked in self._hosts or not name:
            return True
        _, dot, end = name.removesuffix(".").rpartition(".")
        return not dot or end in LOCAL_NAMES or _is_address(name)

    def _may_ask(self, page: str, asked: str) -> bool:
        if page in self.origins or page.partition("://")[2] == asked:
            return True
        return not self.origins and LOCAL_ORIGIN.fullmatch(page) is not None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_address(name: str) -> bool:
    """Whether a name is none: an address leads where it says, whatever page names it."""
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
