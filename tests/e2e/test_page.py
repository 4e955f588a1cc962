"""The page at / and the reference at /docs in a real browser, against the real server."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import httpx
import pytest
from playwright.sync_api import expect

import topics
from browsing import DESKTOP, PHONE, visit
from lanewise.api.endpoints import page as files
from lanewise.text.chat_template import ChatTemplate
from real_models import NoModelError, smollm2
from serving import lanewise_server, metric, wait_for
from toy_server import CONFIG, toy_server


@pytest.fixture
def seen(browser, url):
    with visit(browser, url) as seen:
        seen.page.fill("[name=max_tokens]", "24")
        seen.page.fill("[name=seed]", "1")  # so that no answer ends by chance
        yield seen


def test_it_streams_retries_edits_and_says_what_it_took(seen):
    page = seen.page
    page.fill("[name=max_tokens]", "150")  # so many do not come at once, which would have no speed
    seen.send("It was a dark night, and the old house stood empty.")
    seen.wait_for_answer()
    answer = page.locator(".turn.assistant .text")
    first = answer.inner_text()
    assert first.strip()
    numbers = seen.numbers()
    assert re.fullmatch(r"[\d.]+ tokens/s", numbers["Speed"])
    assert re.fullmatch(r"[\d.]+ ms", numbers["First token"])
    assert numbers["Answer"] == "150 tokens"
    assert numbers["Ended"] == "the limit of tokens was reached"
    prompt, cached = numbers["Prompt"], numbers["Cached"]
    assert int(prompt.split()[0]) > 10

    page.fill("[name=seed]", "2")
    page.get_by_role("button", name="Retry: Model").click()
    seen.wait_for_answer()
    assert answer.count() == 1
    assert answer.inner_text() != first
    assert seen.numbers()["Prompt"] == prompt
    assert seen.numbers()["Cached"] != cached == "0 tokens"

    page.fill("#input", "")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("Rain.")
    page.keyboard.press("Control+Enter")
    seen.wait_for_answer()
    assert page.locator(".turn .text").count() == 2
    assert page.locator(".turn.user .text").inner_text() == "Rain."
    assert int(seen.numbers()["Prompt"].split()[0]) < int(prompt.split()[0])

    kept = page.locator(".turn .text").all_text_contents()
    page.reload()
    expect(page.locator(".turn .text")).to_have_count(len(kept))
    assert page.locator(".turn .text").all_text_contents() == kept


def test_probabilities_are_shading_that_keys_reach(seen):
    page = seen.page
    page.check("[name=probabilities]")
    for mode in ("Chat", "Completion"):
        page.get_by_role("radio", name=mode).check(force=True)
        seen.send("The old man — ça va? — said")
        seen.wait_for_answer()
        tokens = page.locator(".turn").last.locator(".token")
        assert 0 < tokens.count() <= 24
        levels = set(tokens.evaluate_all("all => all.map((one) => one.className)"))
        assert len(levels) > 1
        page.get_by_role("group", name="Answer by tokens").focus()
        page.keyboard.press("End")
        info = page.locator(".turn").last.locator(".info")
        expect(info).to_have_text(re.compile(r"had (under )?[\d.]+ %; likeliest: “"))
        before = info.inner_text()
        page.keyboard.press("Home")
        assert info.inner_text() != before


def test_a_completion_goes_on(seen):
    page = seen.page
    page.get_by_role("radio", name="Completion").check(force=True)
    seen.send("The ship sailed")
    seen.wait_for_answer()
    prompt, written = page.locator(".turn .text").all_text_contents()
    assert (prompt, bool(written)) == ("The ship sailed", True)
    page.get_by_role("button", name="Continue: Continuation").click()
    seen.wait_for_answer()
    longer, more = page.locator(".turn .text").all_text_contents()
    assert (longer, bool(more)) == (prompt + written, True)


def test_what_is_asked_for_is_what_comes(seen):
    page = seen.page
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["glad", "sad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    page.select_option("[name=structure]", "json_schema")
    page.fill("[name=pattern]", "{")
    seen.send("How are you?")
    expect(page.locator("#pattern-error")).to_contain_text("not JSON")
    expect(page.locator("[name=pattern]")).to_be_focused()
    page.fill("[name=pattern]", json.dumps(schema))
    page.locator("#input").press("Enter")
    seen.wait_for_answer()
    answer = page.locator(".turn.assistant .text").inner_text()
    assert json.loads(answer)["mood"] in ("glad", "sad")

    page.fill("[name=temperature]", "3")
    seen.send("And now?")
    expect(page.locator("[name=temperature]")).to_be_focused()
    assert page.locator(".turn").count() == 2
    page.fill("[name=temperature]", "")
    page.select_option("[name=structure]", "regex")
    page.fill("[name=pattern]", "(unfinished")
    page.locator("#input").press("Enter")
    expect(page.locator(".turn .error").last).to_contain_text("unfinished")
    seen.problems = [one for one in seen.problems if "status of 400" not in one]


def test_the_request_runs_as_curl_and_as_python(seen):
    page = seen.page
    page.fill("[name=temperature]", "0")
    page.fill("[name=top_k]", "7")
    page.fill("[name=seed]", "5")
    page.locator("#system-box summary").click()
    page.fill("#system", 'It\'s a "story" of $HOME & `rain`\\.\n')
    page.fill("#input", "Who's there?\n\t“Ça va”")
    page.click("#show-request")
    curl, python = (page.locator(f"#{name}").inner_text() for name in ("curl", "python"))
    page.click("#request-close")
    page.locator("#input").press("Enter")
    seen.wait_for_answer()
    page.get_by_role("button", name="Raw: Model").click()
    shown = page.locator(".turn.assistant .text").text_content()
    environment = os.environ | {"LANEWISE_API_KEY": "any"}
    ran = subprocess.run(
        [sys.executable, "-c", python], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == shown + "\n"
    ran = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True)
    events = [json.loads(line[6:]) for line in ran.stdout.split("\n\n")[:-2]]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == shown


def test_what_a_model_writes_is_never_markup(seen):
    page = seen.page
    evil = '<img src=x onerror="document.title=1"><b>bold</b>'
    page.select_option("[name=structure]", "choice")
    page.fill("[name=pattern]", evil)
    page.fill("[name=max_tokens]", "")
    seen.send(evil)
    seen.wait_for_answer()
    assert page.locator(".turn .text").all_text_contents() == [evil, evil]
    assert page.locator(".turn b, .turn img").count() == 0


def test_code_and_thoughts_stand_apart(browser):
    code = "Look:\n\n```js\nlet a = '<b>';\n\nlet c;\n```\n\nThat is all."
    with toy_server(CONFIG) as server, visit(browser, server.url) as seen:
        page = seen.page
        page.select_option("[name=structure]", "regex")
        page.fill("[name=pattern]", re.escape(code))
        seen.send("the")
        seen.wait_for_answer()
        answer = page.locator(".turn").last
        assert answer.locator(".code").all_text_contents() == ["let a = '<b>';\n\nlet c;\n"]
        expect(answer.locator(".rendered > p")).to_have_text(["Look:", "That is all."])
        expect(answer.locator(".reasoning")).to_be_hidden()

        page.select_option("[name=structure]", "")
        page.fill("[name=max_tokens]", "9")
        page.fill("[name=seed]", "1")
        # A model that thinks first, and comes to no end of it in nine tokens.
        template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}"
        server.state.chat_template = ChatTemplate({"default": template})
        seen.send("the")
        seen.wait_for_answer()
        answer = page.locator(".turn").last
        expect(answer.locator(".reasoning p")).to_be_visible()
        expect(answer.locator(".reasoning p")).not_to_be_empty()
        assert answer.locator(".text").text_content() == ""


@pytest.mark.real_model
def test_a_trained_model_is_stopped_in_the_middle(browser):
    try:
        model = smollm2()
    except NoModelError as error:
        topics.skip("real model", str(error))
    with lanewise_server(str(model)) as url, visit(browser, url) as seen:
        page = seen.page
        page.fill("[name=temperature]", "0")
        seen.send("What is the capital of France?")
        seen.wait_for_answer()
        assert "France" in page.locator(".turn.assistant .text").inner_text()
        seen.send("Tell me a story of three thousand words about the sea.")
        answer = page.locator(".turn").last.locator(".text")
        expect(answer).to_contain_text("sea")
        page.click("#stop")
        seen.wait_for_answer()
        assert seen.numbers()["Ended"] == "stopped here"
        assert int(seen.numbers()["Answer"].split()[0]) > 1
        wait_for(lambda: metric(url, "vllm:num_requests_running") == 0, "the end of the request")


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(PHONE, "dark", id="phone-dark"),
        pytest.param(DESKTOP, "light", id="desktop-light"),
    ],
)
def test_nothing_is_in_the_way_of_anybody(browser, url, scheme, size):
    with visit(browser, url, viewport=size, color_scheme=scheme) as seen:
        page = seen.page
        if size is PHONE:
            page.get_by_role("button", name="Settings").click()
            assert seen.barriers() == []
        page.check("[name=probabilities]")
        page.fill("[name=max_tokens]", "24")
        if size is PHONE:
            page.get_by_role("button", name="Close").click()
        seen.send("It was")
        seen.wait_for_answer()
        assert seen.barriers() == []
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size["width"]
        page.get_by_role("button", name="Request").click()
        assert seen.barriers() == []
        if size is PHONE:  # looking through all operations takes twenty seconds
            page.keyboard.press("Escape")
            page.goto(url + "/docs")
            expect(page.locator("article").first).to_be_visible()
            assert seen.barriers() == []
            for name in ("/configure", "?q=memory"):
                page.goto(f"{url}/guide{name}")
                assert seen.barriers() == []
                assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_the_guide_is_read_and_searched_without_a_script(seen, url):
    page = seen.page
    page.get_by_role("link", name="Guide").click()
    page.get_by_role("link", name="Choose a model and a format").click()
    expect(page.locator("h1")).to_have_text("Choose a model and a format")
    page.fill("[name=q]", "x-lanewise-warning")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("found for")
    page.locator("main li a").first.click()
    expect(page.locator("main")).to_contain_text("x-lanewise-warning")


def test_the_toy_is_called_one(seen):
    expect(seen.page.locator("#notice")).to_contain_text("toy")
    expect(seen.page.locator("#notice")).to_contain_text("lanewise serve smollm2")


def test_colours_are_as_chosen(seen):
    page = seen.page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.select_option("#theme", "dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    page.goto(page.url + "docs")
    assert page.evaluate(ground) == dark


def test_the_reference_has_every_endpoint_and_field(seen, url):
    page = seen.page
    described = httpx.get(url + "/openapi.json", timeout=60).json()
    page.goto(url + "/docs")
    expect(page.locator("#contents a").first).to_be_visible()
    text = page.locator("main").inner_text()
    for path in described["paths"]:
        assert path in text
    for name, schema in described["components"]["schemas"].items():
        article = page.locator(f"#schema-{name}").inner_text()
        assert all(field in article for field in schema.get("properties", ()))
    page.get_by_role("link", name="CompletionRequest").first.click()
    expect(page.locator("#schema-CompletionRequest")).to_be_in_viewport()


def test_how_far_the_prompt_is_read_and_how_full_the_context_is(browser):
    config = replace(CONFIG, max_step_tokens=16, max_step_logits=16)
    with toy_server(config) as server, visit(browser, server.url) as seen:
        page = seen.page
        page.fill("[name=max_tokens]", "5")
        server.runner.delay_s = 0.2  # of a step of sixteen tokens
        seen.send("a b c d e f g h i j k l m n o p " * 4)
        told = page.locator(".turn.assistant .info")
        expect(told).to_have_text(re.compile(r"Reading the prompt: \d+ of \d+ tokens"))
        server.runner.delay_s = 0.0
        seen.wait_for_answer()
        expect(told).to_be_empty()
        numbers = seen.numbers()
        used = int(numbers["Prompt"].split()[0]) + 5
        assert numbers["Context"].startswith(f"{used} of {CONFIG.max_model_len} tokens, ")


def test_an_answer_can_be_stopped(browser):
    with toy_server(CONFIG) as server:
        server.runner.delay_s = 0.02
        with visit(browser, server.url) as seen:
            for how in ("click", "Escape"):
                seen.page.select_option("[name=structure]", "regex")
                seen.page.fill("[name=pattern]", "[a-z]{400}")
                seen.send("the")
                answer = seen.page.locator(".turn").last.locator(".text")
                expect(answer).not_to_be_empty()
                if how == "click":
                    seen.page.click("#stop")
                else:
                    seen.page.keyboard.press(how)
                seen.wait_for_answer()
                assert 0 < len(answer.inner_text()) < 400
                assert seen.numbers()["Ended"] == "stopped here"
                expect(seen.page.locator("#input")).to_be_focused()
                server.wait_until(lambda: server.state.engine.unfinished == 0)


def test_it_asks_for_a_key_and_keeps_it_in_the_tab(browser):
    with toy_server(api_keys=("secret",)) as server, visit(browser, server.url) as seen:
        page = seen.page
        assert seen.barriers() == []
        page.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-why")).to_contain_text("does not know this key")
        page.get_by_label("Key", exact=True).fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator("#model option")).to_have_text("toy")
        page.fill("[name=max_tokens]", "5")
        seen.send("the")
        seen.wait_for_answer()
        assert seen.numbers()["Answer"].endswith("tokens")
        page.reload()
        expect(page.locator("#model option")).to_have_text("toy")
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        page.click("#show-request")
        assert "secret" not in page.locator("#request-dialog").inner_text()
        seen.problems = [one for one in seen.problems if "status of 401" not in one]


def test_files_are_whole_and_come_with_their_policy(url):
    accept = {"accept": "text/html,*/*"}  # as browsers say
    for path, name in files.FILES.items():
        answer = httpx.get(url + path, headers=accept)
        assert answer.content == (files.FOLDER / name).read_bytes()
        assert answer.headers["content-type"].split(";")[0] in (
            *("text/html", "text/css", "text/javascript", "image/svg+xml"),
        )
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        known = accept | {"if-none-match": answer.headers["etag"]}
        again = httpx.get(url + path, headers=known)
        assert (again.status_code, again.content) == (304, b"")
    on_disk = {
        str(path.relative_to(files.FOLDER))
        for path in files.FOLDER.rglob("*")
        if path.suffix not in (".LICENSE", ".json") and path.is_file()
    }
    assert set(files.FILES.values()) == on_disk
    assert httpx.get(url + "/page/..%2fpage.py").status_code == 404
