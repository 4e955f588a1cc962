"""Conversations on the page in a real browser: branches, the list, files, and several tabs."""

import json

from playwright.sync_api import expect

from browsing import CITY, Visit, calling, visit


def say(seen: Visit, question: str, answer: str) -> None:
    seen.answer_with(answer)
    seen.send(question)
    seen.wait_for_answer()


def texts(seen: Visit) -> list[str]:
    # Not their inner texts: a turn out of sight is not drawn, and has none.
    return seen.page.locator(".turn .text").all_text_contents()


def entries(seen: Visit):
    return seen.page.locator("#history-list .open")


def other_tab(seen: Visit) -> Visit:
    page = seen.page.context.new_page()
    page.goto(seen.page.url)
    return Visit(page)


def test_what_is_edited_or_retried_stays_as_a_branch(seen):
    page = seen.page
    say(seen, "one", "first")
    say(seen, "two", "second")
    long = ["one", "first", "two", "second"]
    seen.answer_with("other")
    page.get_by_role("button", name="Retry: Model").first.click()
    seen.wait_for_answer()
    assert texts(seen) == ["one", "other"]
    expect(page.locator(".branches:not(:empty)")).to_contain_text("2 / 2")
    page.get_by_role("button", name="Previous version: Model").click()
    assert texts(seen) == long
    assert seen.barriers() == []

    seen.answer_with("third")
    page.get_by_role("button", name="Edit: You").first.click()
    page.locator(".editor").fill("changed")
    page.keyboard.press("Control+Enter")
    seen.wait_for_answer()
    assert texts(seen) == ["changed", "third"]
    page.reload()
    expect(page.locator(".turn .text")).to_have_text(["changed", "third"])
    page.get_by_role("button", name="Previous version: You").click()
    assert texts(seen) == ["one", "other"]  # what was made last
    page.get_by_role("button", name="Previous version: Model").click()
    assert texts(seen) == long


def test_conversations_outlive_the_tab_and_can_be_found(seen):
    page = seen.page
    say(seen, "about ships", "They sail.")
    page.click("#new")
    say(seen, "about trains", "They roll.")
    other = other_tab(seen)
    page.close()
    seen.page = page = other.page
    expect(entries(seen)).to_have_text(["about trains", "about ships"])
    page.fill("#history-search", "SAIL")
    expect(entries(seen)).to_have_text(["about ships"])
    entries(seen).click()
    expect(page.locator(".turn .text")).to_have_text(["about ships", "They sail."])
    page.fill("#history-search", "")
    assert seen.barriers() == []

    page.get_by_role("button", name="Rename: about ships").click()
    page.keyboard.type("Boats")
    page.keyboard.press("Enter")
    expect(entries(seen)).to_have_text(["about trains", "Boats"])
    say(seen, "more", "Yes.")
    expect(entries(seen)).to_have_text(["Boats", "about trains"])
    page.get_by_role("button", name="Delete: Boats").click()
    expect(entries(seen)).to_have_text(["about trains"])
    assert texts(seen) == []
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".turn .text")).to_have_text(["about ships", "They sail.", "more", "Yes."])
    expect(entries(seen)).to_have_text(["Boats", "about trains"])


def test_tabs_that_write_to_one_conversation_lose_nothing(seen):
    say(seen, "one", "first")
    other = other_tab(seen)
    entries(other).click()
    expect(other.page.locator(".turn .text")).to_have_text(["one", "first"])
    say(other, "there", "away")
    say(seen, "here", "at home")
    assert texts(other) == ["one", "first", "there", "away"]
    for tab, mine in ((seen, "here"), (other, "there")):
        expect(tab.page.locator(".branches:not(:empty)")).to_contain_text("/ 2")
        tab.page.reload()
        expect(tab.page.locator(".turn .text").first).to_have_text("one")
        branches = tab.page.locator(".branches:not(:empty)")
        expect(branches).to_contain_text("/ 2")
        shown = {texts(tab)[2]}
        branches.locator("button:enabled").click()
        assert shown | {texts(tab)[2]} == {"here", "there"}, mine


def test_the_open_conversation_is_a_markdown_file(seen):
    page = seen.page
    page.click("#history-markdown")
    expect(page.locator("#history-said")).to_have_text("No conversation is open.")
    say(seen, "one: *two*", "gone")
    seen.answer_with_deltas({"content": "It is\n\n- **this**"}, *calling("weather"))
    page.get_by_role("button", name="Retry: Model").click()
    seen.wait_for_answer()
    page.get_by_label("Result of weather").fill("sunny")
    seen.answer_with("Fine.")
    seen.asked(page.get_by_role("button", name="Send result").click)
    with page.expect_download() as download:
        page.click("#history-markdown")
    assert download.value.suggested_filename == "one-two.md"
    assert download.value.path().read_text() == (
        "# one: *two*\n\n## You\n\none: *two*\n\n## Model\n\nIt is\n\n- **this**\n\n"
        "Calls `weather`:\n\n```\n" + CITY + "\n```\n\n## Result of weather\n\nsunny\n\n"
        "## Model\n\nFine.\n"
    )


def test_all_of_it_is_a_file_and_comes_back_from_it(seen, tmp_path):
    page = seen.page
    say(seen, "one", "**first**")
    with page.expect_download() as download:
        page.click("#history-export")
    path = tmp_path / "all.json"
    download.value.save_as(path)
    content = json.loads(path.read_text())
    page.set_input_files("#history-file", path)
    said = page.locator("#history-said")
    expect(said).to_have_text("0 imported, 1 were here already.")
    page.get_by_role("button", name="Delete: one").click()
    expect(entries(seen)).to_have_count(0)
    page.set_input_files("#history-file", path)
    expect(said).to_have_text("1 imported, 0 were here already.")
    entries(seen).click()
    expect(page.locator(".turn strong")).to_have_text("first")

    turn = content["conversations"][0]["turns"][1]
    for field, value, wrong in (
        ("role", "system", "turns[1].role is not user or assistant or tool"),
        ("content", 5, "turns[1].content is not a text"),
        ("parent", turn["id"], "turns[1].parent is not null or the id of a turn before it"),
        ("calls", [None], "turns[1].calls is not a list of names with arguments"),
    ):
        before = turn.get(field)
        turn[field] = value
        path.write_text(json.dumps(content))
        page.set_input_files("#history-file", path)
        expect(said).to_contain_text(wrong)
        turn[field] = before
    path.write_text("{}")
    page.set_input_files("#history-file", path)
    expect(said).to_contain_text("no export of this page")


def test_a_browser_that_keeps_nothing_only_forgets(browser, server):
    with visit(browser, server.url) as seen:
        page = seen.page
        page.add_init_script("Object.defineProperty(window, 'indexedDB', {value: undefined})")
        page.reload()
        say(seen, "one", "first")
        expect(entries(seen)).to_have_text(["one"])
        page.reload()
        expect(page.locator("#empty")).to_be_visible()
        assert texts(seen) == []
