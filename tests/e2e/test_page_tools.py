"""Tools that a person defines on the page and answers by hand, in a real browser."""

import json

from playwright.sync_api import expect

from browsing import CITY, calling, visit
from lanewise.text.chat_template import ChatTemplate
from toy_server import toy_server

FUNCTION = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TEMPLATE = (
    "{{ tools }}{% for m in messages %}{{ m.role }}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
    "{# <tool_call> #}"
)


def test_calls_get_their_results_and_the_model_goes_on(seen):
    page = seen.page
    page.fill(
        "[name=tools]", json.dumps([FUNCTION, {"type": "function", "function": {"name": "time"}}])
    )
    seen.answer_with_deltas(*calling("weather", "time"), finish_reason="tool_calls")
    body = seen.asked(lambda: seen.send("How is it in Rome?"))
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather", "time"]
    assert body["tools"][0]["function"] == FUNCTION

    page.get_by_label("Result of weather").fill("sunny")
    page.get_by_label("Result of time").fill("<b>noon</b>")
    assert seen.barriers() == []
    seen.answer_with("It is sunny.")
    body = seen.asked(lambda: page.get_by_role("button", name="Send results").click())
    user, answer, *results = body["messages"]
    assert user["content"] == "How is it in Rome?"
    assert [call["id"] for call in answer["tool_calls"]] == ["id-0", "id-1"]
    assert answer["tool_calls"][0]["function"] == {"name": "weather", "arguments": CITY}
    assert results == [
        {"role": "tool", "tool_call_id": "id-0", "content": "sunny"},
        {"role": "tool", "tool_call_id": "id-1", "content": "<b>noon</b>"},
    ]
    expect(page.locator(".turn").last.locator(".text")).to_have_text("It is sunny.")
    expect(page.get_by_role("button", name="Send results")).to_have_count(0)

    page.reload()  # all of it is kept
    expect(page.locator(".turn")).to_have_count(5)
    page.get_by_role("button", name="Edit: Result").first.click()
    page.get_by_role("textbox", name="Edit: Result").fill("rainy")
    seen.answer_with("It rains.")
    body = seen.asked(lambda: page.keyboard.press("Control+Enter"))
    assert [one["content"] for one in body["messages"][2:]] == ["rainy", "<b>noon</b>"]
    expect(page.locator(".turn").last.locator(".text")).to_have_text("It rains.")


def test_calls_that_nobody_answers_are_not_sent_again(seen):
    seen.answer_with_deltas({"content": "Let me see."}, *calling("weather"))
    seen.asked(lambda: seen.send("Hello"))
    seen.answer_with("Hi.")
    body = seen.asked(lambda: seen.send("Never mind."))
    assert body["messages"][1] == {"role": "assistant", "content": "Let me see."}


def test_tools_are_checked_before_they_are_sent(seen):
    page = seen.page
    for wrong, words in (
        ("[", "the tools are not JSON"),
        ("{}", "the tools is not a list of functions"),
        ('[{"name": "a b"}]', "the tools[0].name is not a name"),
        ('[{"name": "a", "parameters": {"type": "text"}}]', "the tools[0].parameters.type"),
    ):
        page.fill("[name=tools]", wrong)
        seen.send("the")
        expect(page.locator("#tools-error")).to_contain_text(words)
        expect(page.locator("[name=tools]")).to_be_focused()
    page.fill("[name=tools]", "")
    expect(page.locator("#tools-error")).to_be_hidden()
    seen.answer_with("Yes.")
    assert "tools" not in seen.asked(lambda: page.get_by_role("button", name="Send").click())


def test_the_server_reads_calls_and_results(browser):
    with (
        toy_server(chat_template=ChatTemplate({"default": TEMPLATE})) as server,
        visit(browser, server.url) as seen,
    ):
        page = seen.page
        page.fill("[name=max_tokens]", "8")
        page.fill("[name=tools]", json.dumps([FUNCTION]))
        seen.answer_with_deltas(*calling("weather"), finish_reason="tool_calls")
        seen.asked(lambda: seen.send("How is it in Rome?"))
        page.unroute("**/v1/chat/completions")
        page.get_by_label("Result of weather").fill("sunny")
        page.get_by_role("button", name="Send result").click()
        seen.wait_for_answer()
        assert seen.numbers()["Prompt"] != "0 tokens"
        expect(page.locator(".turn .error:visible")).to_have_count(0)
