"""System prompts that the page keeps under names, in a real browser."""

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
