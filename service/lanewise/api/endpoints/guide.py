"""The guide at ``/guide``: its pages as HTML, and a search that needs no script and no network."""

import asyncio
from functools import cache
from html import escape

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.endpoints import page
from lanewise.guide import pages

INDEX = "/guide"
NAMES = {f"{INDEX}/{name}": name for name in (*pages.names(), *pages.decisions())}
PATHS = (INDEX, *NAMES)
# Decisions share a route: one for each would make every unknown path slower to refuse.
ROUTES = (
    *(path for path in PATHS if not path.startswith(f"{INDEX}/{pages.DECISIONS}/")),
    f"{INDEX}/{pages.DECISIONS}/{{name}}",
)
HEADERS = page.HEADERS | {
    # The search is a form.
    "content-security-policy": page.HEADERS["content-security-policy"].replace(
        "form-action 'none'", "form-action 'self'"
    )
}
SHELL = (pages.FOLDER / "shell.html").read_text(encoding="utf-8")


async def answer(request: Request) -> Response:
    """The page, the list of pages, or what a search finds."""
    path = request.scope["route"].path.format(**request.path_params)
    if path not in PATHS:
        raise HTTPException(404)
    if request.scope["raw_path"].endswith(b"/"):
        return Response(status_code=308, headers={"location": f"../{path.rpartition('/')[2]}"})
    asked = request.query_params.get("q", "").strip()
    name = NAMES.get(path)
    if name is None and asked:
        # Reading and rendering take tens of milliseconds, which streams of others should not feel.
        text = await asyncio.to_thread(_results, asked)
        return Response(text, headers=HEADERS, media_type="text/html")
    content, tag = await asyncio.to_thread(_read, name)
    headers = {**HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="text/html")


@cache
def _read(name: str | None) -> tuple[bytes, str]:
    """A page, or the list of all, and its tag."""
    if name is None:
        body = f"<h1>Guide</h1>{pages.contents_html('guide/')}"
        text = SHELL.format(title="Guide", up="", index="guide", asked="", body=body)
    else:
        found = pages.page_of(name)
        inner = [one for one in found.headings if one.level == 2]
        links = "".join(f'<li><a href="#{one.anchor}">{escape(one.text)}</a></li>' for one in inner)
        contents = f'<nav class="inner" aria-label="On this page"><ul>{links}</ul></nav>'
        text = SHELL.format(
            title=escape(found.title),
            up=(up := "../" * (1 + name.count("/"))),
            index=f"{up}guide",
            asked="",
            body=contents + found.html,
        )
    content = text.encode()
    return content, page.tag_of(content)


def _results(asked: str) -> str:
    found = pages.search(asked)
    shown = escape(asked, quote=True)
    items = "".join(
        f'<li><a href="guide/{one.page}#{one.anchor}">{escape(pages.title_of(one.page))}:'
        f" {escape(one.title)}</a><p>{escape(one.text)}</p></li>"
        for one in found
    )
    body = f"<h1>{len(found)} found for “{shown}”</h1><ul>{items}</ul>"
    if not found:
        body += "<p>No section holds all of these words.</p>" + pages.contents_html("guide/")
    return SHELL.format(title=f"Search: {shown}", up="", index="guide", asked=shown, body=body)
