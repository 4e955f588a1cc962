"""A real browser for tests: Debian's Chromium without a window, which reaches one server alone."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

import topics

expect.set_options(timeout=60_000)
CITY = '{"city": "Rome"}'  # what calls are given
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 800}


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; skips where there is none. No event loop can be run beside it in this thread."""
    program = shutil.which("chromium")
    if program is None:
        topics.skip("browser", "chromium is not installed")
    with sync_playwright() as playwright:
        # Its own sandbox needs namespaces, which containers and root have not.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page of a server, and whatever went wrong on it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)  # requests for what is elsewhere

    def send(self, text: str) -> None:
        """Write into the composer and send it."""
        self.page.fill("#input", text)
        self.page.keyboard.press("Enter")

    def answer_with(self, *texts: str, finish_reason: str = "stop") -> None:
        """Let the next answers of the chat be of these pieces, whatever the model would write."""
        self.answer_with_deltas(*({"content": text} for text in texts), finish_reason=finish_reason)

    def answer_with_deltas(self, *deltas: dict, finish_reason: str = "stop") -> None:
        """Let the next answers of the chat be of these pieces of a message."""
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
        events = [json.dumps({"choices": [choice]}) for choice in choices]
        body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
        path = "**/v1/chat/completions"
        self.page.unroute(path)
        self.page.route(
            path, lambda route: route.fulfill(body=body, content_type="text/event-stream")
        )

    def asked(self, do: Callable[[], object]) -> dict[str, Any]:
        """What a chat is asked when something is done; back when the answer is complete."""
        with self.page.expect_request("**/v1/chat/completions") as request:
            do()
        self.wait_for_answer()
        body: dict[str, Any] = request.value.post_data_json
        return body

    def wait_for_answer(self) -> None:
        """Until the answer that is made is complete."""
        expect(self.page.locator("#send")).to_be_visible()

    def numbers(self) -> dict[str, str]:
        """What is said of the last answer."""
        rows = self.page.locator(".turn").last.locator(".numbers div").all()
        return {row.locator("dt").inner_text(): row.locator("dd").inner_text() for row in rows}

    def barriers(self) -> list[str]:
        """What axe finds to be in the way of people who do not see or point."""
        found = Axe().run(self.page).response["violations"]
        return [f"{one['impact']}: {one['help']} {one['nodes'][0]['html']}" for one in found]


def calling(*names: str) -> Iterator[dict[str, Any]]:
    """What an answer that calls these says, in pieces."""
    for index, name in enumerate(names):
        head = {"index": index, "id": f"id-{index}", "type": "function"}
        yield {"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]}
        for piece in (CITY[:5], CITY[5:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


@contextmanager
def visit(browser: Browser, url: str, also: str = "", **options: object) -> Iterator[Visit]:
    """Open a page of a server; leaving fails if anything went wrong or anybody else was asked.

    The address ``also`` may be asked too.
    """
    with browser.new_context(**{"viewport": DESKTOP, **options}) as context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        seen = Visit(page)
        origin = "/".join(url.split("/")[:3])

        def only_here(route: Route) -> None:
            if route.request.url.startswith(origin) or route.request.url == also:
                route.continue_()
            else:
                seen.foreign.append(route.request.url)
                route.abort()

        context.route("**/*", only_here)
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on(
            "console",
            lambda said: said.type in ("error", "warning") and seen.problems.append(said.text),
        )
        page.goto(url)
        yield seen
        assert seen.foreign == []
        assert seen.problems == []
