"""System prompts that the page keeps under names, in a real browser."""

import re

import httpx
from playwright.sync_api import expect


def test_a_system_prompt_is_kept_chosen_changed_and_removed(seen):
    page = seen.page
    opened = page.locator("#system-box summary")
    opened.click()
    for name, text in (("pirate", "Arr."), ("<b>terse</b>", "Be brief."), ("pirate", "Ahoy.")):
        page.fill("#system", text)
        page.fill("#preset-name", name)
        page.keyboard.press("Enter")
        expect(page.locator("#preset-said")).to_have_text(f"Saved as {name}")
    page.fill("#system", "")
    page.reload()
    opened.click()
    options = page.locator("#preset option")
    expect(options).to_have_count(3)
    assert sorted(options.all_text_contents()) == ["<b>terse</b>", "none", "pirate"]
    page.select_option("#preset", "pirate")
    expect(page.locator("#system")).to_have_value("Ahoy.")
    assert seen.barriers() == []
    seen.answer_with("Aye.")
    with page.expect_request("**/v1/chat/completions") as request:
        seen.send("the")
    assert request.value.post_data_json["messages"][0] == {"role": "system", "content": "Ahoy."}
    seen.wait_for_answer()
    page.click("#preset-remove")
    expect(options).to_have_count(2)
    page.reload()
    expect(options).to_have_count(2)


def test_empty_settings_show_what_the_server_takes(seen, server):
    params = httpx.get(f"{server.url}/props").json()["default_generation_settings"]["params"]
    for name, theirs in (
        *((one, one) for one in ("temperature", "top_p", "top_k", "min_p", "presence_penalty")),
        ("repetition_penalty", "repeat_penalty"),
    ):
        field = seen.page.locator(f"[name={name}]")
        expect(field).to_have_attribute("placeholder", re.compile(r"[\d.]+"))
        assert float(field.get_attribute("placeholder")) == params[theirs]
        expect(field).to_have_value("")
