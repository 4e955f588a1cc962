"""Tools of MCP servers on the page, in a real browser."""

import json

import httpx
from playwright.sync_api import expect

from browsing import calling, visit
from lanewise.settings import Settings
from toy_mcp import TOOLS, mcp_server
from toy_server import toy_server


def test_its_tools_are_offered_and_run_with_consent(browser):
    with (
        mcp_server() as (url, messages),
        toy_server(settings=Settings(mcp_servers=(url,))) as server,
        visit(browser, server.url, also=url) as seen,
    ):
        page = seen.page
        seen.answer_with("Hi.")
        assert "tools" not in seen.asked(lambda: seen.send("Hello"))
        assert messages == []  # nothing is asked before it is ticked
        box = page.get_by_label(f"Tools of {url}")
        box.check()
        said = page.locator("#mcp [role=status]")
        expect(said).to_have_text("weather, fail")
        assert seen.barriers() == []

        own = [{"name": "fail", "description": "of this person"}]
        page.fill("[name=tools]", json.dumps(own))
        seen.answer_with_deltas(*calling("weather"), finish_reason="tool_calls")
        tools = seen.asked(lambda: seen.send("How is it in Rome?"))["tools"]
        assert [tool["function"].get("description") for tool in tools] == [
            "of this person",
            TOOLS[0]["description"],
        ]
        assert tools[1]["function"]["parameters"] == TOOLS[0]["inputSchema"]
        assert messages[-1]["method"] == "tools/list"  # the call waits for a person

        page.get_by_role("button", name=f"Run weather on {url}").click()
        result = page.get_by_label("Result of weather")
        expect(result).to_have_value("sunny in Rome\n[image]")
        assert messages[-1]["params"] == {"name": "weather", "arguments": {"city": "Rome"}}
        seen.answer_with_deltas(*calling("fail"), finish_reason="tool_calls")
        send = page.get_by_role("button", name="Send result")
        body = seen.asked(send.click)
        assert body["messages"][-1]["content"] == "sunny in Rome\n[image]"
        page.get_by_role("button", name=f"Run fail on {url}").click()
        expect(page.get_by_label("Result of fail")).to_have_value("Error: no <i>luck</i>")

        page.reload()
        expect(said).to_have_text("weather, fail")
        box.uncheck()
        page.fill("[name=tools]", "")
        seen.answer_with("Bye.")
        assert "tools" not in seen.asked(lambda: seen.send("Bye"))


def test_a_server_that_cannot_be_had_is_told(browser):
    with (
        mcp_server(origin="http://elsewhere.example") as (url, _),
        toy_server(settings=Settings(mcp_servers=(url,))) as server,
        visit(browser, server.url, also=url) as seen,
    ):
        box = seen.page.get_by_label(f"Tools of {url}")
        box.click()
        expect(seen.page.locator("#mcp [role=status]")).to_contain_text("cannot be used")
        expect(box).not_to_be_checked()
        assert any("CORS" in problem for problem in seen.problems)
        seen.problems.clear()


def test_the_page_asks_no_servers_but_these():
    servers = (
        "https://user:word@tools.example/a?b=1",
        "https://tools.example/c",
        "http://[::1]:9/",
    )
    with toy_server(settings=Settings(mcp_servers=servers)) as server:
        html = {"accept": "text/html"}
        answer = httpx.get(server.url, headers=html)
        policy = answer.headers["content-security-policy"]
        assert "connect-src 'self' https://tools.example http://[::1]:9;" in policy
        assert "https://tools.example/c" in answer.text
        tag = answer.headers["etag"]
        assert httpx.get(server.url, headers=html | {"if-none-match": tag}).status_code == 304
    with toy_server() as server:
        other = httpx.get(server.url, headers=html)
        assert "connect-src 'self';" in other.headers["content-security-policy"]
        assert other.headers["etag"] != tag
