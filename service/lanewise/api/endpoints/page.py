"""The page at ``/`` and the reference of the API at ``/docs``: the files of the folder ``page``.

They load nothing from anywhere else, need no key themselves, and ask this server's API as any other
client does. The policy that goes with them lets no script run that is not one of these files, and
no text become markup, whatever a model writes.
"""

import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

FOLDER = Path(__file__).with_name("page")
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Every path and its file. Browsers keep /page/ apart from whatever else the API has. The folder
# vendor/ has the libraries of others; its packages.json says of what release each is, unchanged.
INDEX = "index.html"
FILES = {"/": INDEX, "/docs": "docs.html", "/redoc": "docs.html"} | {
    f"/page/{path.relative_to(FOLDER)}": str(path.relative_to(FOLDER))
    for path in sorted(FOLDER.rglob("*"))
    if path.suffix in MEDIA_TYPES and path.suffix != ".html"
}
HEADERS = {
    "content-security-policy": "; ".join(
        (
            *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'"),
            *("connect-src 'self'", "base-uri 'none'", "form-action 'none'"),
            *("frame-ancestors 'none'", "require-trusted-types-for 'script'"),
            "trusted-types 'none'",
        )
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # Asked for again each time, and answered with 304: a new version of the server has new files.
    "cache-control": "no-cache",
}


# Of the index: the page's own word for the addresses of MCP servers.
NO_SERVERS = b'<meta name="mcp-servers" content="[]">'
# What clients of Ollama look for at /, to see whether a server is there.
FOR_PROGRAMS = "Ollama is running: this is Lanewise, which speaks its API too"


class Page:
    """The page that offers the tools of some MCP servers, and may ask no server but these."""

    def __init__(self, mcp_servers: Sequence[str] = ()) -> None:
        """``mcp_servers`` are their addresses."""
        asked = " ".join(("'self'", *dict.fromkeys(map(_origin, mcp_servers))))
        policy = HEADERS["content-security-policy"].replace(
            "connect-src 'self'", f"connect-src {asked}"
        )
        self._headers = {**HEADERS, "content-security-policy": policy}
        self._servers = html.escape(json.dumps(list(mcp_servers)))

    async def answer(self, request: Request) -> Response:
        """The file at one of ``FILES``; at / for browsers, which say that they read HTML."""
        name = FILES[request.scope["route"].path]
        content, tag = _read(name)
        if name == INDEX:
            content = content.replace(NO_SERVERS, NO_SERVERS.replace(b"[]", self._servers.encode()))
            tag = tag_of(content)
        return _answer(request, content, tag, self._headers)


def _origin(url: str) -> str:
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"


def _answer(request: Request, content: bytes, tag: str, headers: dict[str, str]) -> Response:
    path = request.scope["route"].path
    if len(path) > 1 and request.scope["raw_path"].endswith(b"/"):
        # What it asks for is beside it, wherever a gateway has put all of this.
        return Response(status_code=308, headers={"location": f"../{path.rpartition('/')[2]}"})
    if path == "/" and "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(FOR_PROGRAMS, headers={"vary": "accept"})
    headers = {**headers, "etag": tag}
    if path == "/":
        headers["vary"] = "accept"
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=MEDIA_TYPES[Path(FILES[path]).suffix])


@cache
def _read(name: str) -> tuple[bytes, str]:
    """What a file holds, and its tag."""
    content = (FOLDER / name).read_bytes()
    return content, tag_of(content)


def tag_of(content: bytes) -> str:
    """The entity tag of what is answered: another for another content."""
    return f'"{hashlib.sha256(content).hexdigest()[:16]}"'
