"""Files that go with a message on the page, in a real browser."""

import base64
import re

from playwright.sync_api import expect

from browsing import visit
from pictures import png
from toy_server import CONFIG, toy_server
from toy_tokenizer import toy_tokenizer
from toy_tower import NAMES, ToyTower, toy_eyes

GIVE = """([kind, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const init = { bubbles: true, cancelable: true };
  const event = kind === "drop"
    ? new DragEvent("drop", { ...init, dataTransfer: data })
    : new ClipboardEvent("paste", { ...init, clipboardData: data });
  document.getElementById("input").dispatchEvent(event);
}"""
CODE = "let a = `b`;\n```\n"


def pdf(*pages: str) -> bytes:
    """A PDF file with a line of text on each page."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, text in enumerate(pages):
        fonts = "/Resources << /Font << /F1 3 0 R >> >>"
        box = f"/MediaBox [0 0 300 300] /Contents {5 + 2 * i} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R {fonts} {box} >>")
        drawn = f"BT /F1 24 Tf 20 200 Td ({text}) Tj ET" if text else ""
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    made, places = "%PDF-1.4\n", []
    for number, text in enumerate(objects, start=1):
        places.append(len(made))
        made += f"{number} 0 obj\n{text}\nendobj\n"
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    made += f"xref\n0 {size}\n0000000000 65535 f \n{rows}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return f"{made}startxref\n{made.index('xref')}\n%%EOF\n".encode()


def file(name: str, content: bytes) -> dict:
    """As a person chooses one."""
    return {"name": name, "mimeType": "", "buffer": content}


def test_files_are_chosen_dropped_and_pasted_and_counted_before_they_are_sent(seen):
    page = seen.page
    listed = page.locator("#attachments li span")
    with page.expect_file_chooser() as chooser:
        page.click("#attach")
    chooser.value.set_files([file("a.csv", b"x,y\r\n1,2\r\n"), file("b.txt", b"gone")])
    page.evaluate(GIVE, ["drop", "c.js", CODE])
    page.evaluate(GIVE, ["paste", "d.py", "print(1)"])
    expect(listed).to_have_count(4)
    for index, size in enumerate(("10 bytes", "4 bytes", "17 bytes", "8 bytes")):
        expect(listed.nth(index)).to_contain_text(size)
        expect(listed.nth(index)).to_contain_text(" tokens")
    page.get_by_role("button", name="Remove b.txt").click()
    assert seen.barriers() == []

    seen.answer_with("Read.")
    with page.expect_request("**/v1/chat/completions") as request:
        seen.send("Look:")
    seen.wait_for_answer()
    said = request.value.post_data_json["messages"][-1]["content"]
    assert said == (
        "Look:\n\na.csv:\n```csv\nx,y\n1,2\n```"
        f"\n\nc.js:\n````js\n{CODE}````\n\nd.py:\n```py\nprint(1)\n```"
    )
    expect(page.locator("#attachments")).to_be_hidden()


def test_what_is_not_text_is_refused_by_name(seen):
    page = seen.page
    error = page.locator("#attach-error")
    for name, content, why in (
        ("p.bin", b"\x89PNG\r\n\xff", "not text in UTF-8"),
        ("z.bin", b"a\0b", "not text"),
        ("e.txt", b" \n", "empty"),
        ("l.txt", b"a" * 1_000_001, "1 MB"),
    ):
        page.set_input_files("#attach-file", [file(name, content)])
        expect(error).to_contain_text(f"{name} is not attached")
        expect(error).to_contain_text(why)
    expect(page.locator("#attachments")).to_be_hidden()


def test_the_text_of_a_pdf_is_attached_and_its_reader_comes_with_the_first(seen):
    page = seen.page
    loaded = (
        "() => performance.getEntriesByType('resource').filter(one => one.name.includes('pdf'))"
    )
    assert page.evaluate(loaded) == []
    page.set_input_files("#attach-file", file("a.pdf", pdf("Page one <b>here</b>", "and two")))
    expect(page.locator("#attachments li span")).to_contain_text(" tokens")
    assert page.evaluate(loaded) != []
    seen.answer_with("Read.")
    body = seen.asked(lambda: seen.send("Look:"))
    said = body["messages"][0]["content"]
    assert said == "Look:\n\na.pdf:\n```\nPage one <b>here</b>\n\nand two\n```"

    for content, words in (
        (pdf(""), "no text"),
        (b"%PDF-1.4\nnothing more", "no PDF file that can be read"),
        (b"word", "no PDF file that can be read"),
    ):
        page.set_input_files("#attach-file", file("b.pdf", content))
        expect(page.locator("#attach-error")).to_contain_text(words)
    expect(page.locator("#attachments li")).to_have_count(0)


def test_an_image_goes_with_a_message_to_a_model_that_sees(browser):
    eyes = toy_eyes(toy_tokenizer(NAMES).encode("<image>", add_bos=False, parse_special=True)[0])
    image = {"name": "a.png", "mimeType": "image/png", "buffer": png(40, 30)}
    with (
        toy_server(CONFIG, more_special=NAMES, tower=ToyTower(), see=eyes) as server,
        visit(browser, server.url) as seen,
    ):
        page = seen.page
        with page.expect_file_chooser() as chooser:
            page.click("#attach")
        chooser.value.set_files([image])
        listed = page.locator("#attachments li span")
        expect(listed).to_have_text(re.compile(r"a\.png, .* bytes, \d+ tokens"))
        with page.expect_request("**/v1/chat/completions") as request:
            seen.send("What is it?")
        seen.wait_for_answer()
        shown, asked = request.value.post_data_json["messages"][-1]["content"]
        assert base64.b64decode(shown["image_url"]["url"].partition(",")[2]) == image["buffer"]
        assert asked == {"type": "text", "text": "What is it?"}
        expect(page.locator(".turn.user .images")).to_have_text("With a.png")
        # It stays with the conversation. The toy may have filled its context by now.
        seen.answer_with("A ramp.")
        with page.expect_request("**/v1/chat/completions") as request:
            seen.send("And now?")
        seen.wait_for_answer()
        assert request.value.post_data_json["messages"][0]["content"][0] == shown


def test_a_model_that_reads_text_alone_gets_no_image(seen):
    page = seen.page
    with page.expect_file_chooser() as chooser:
        page.click("#attach")
    chooser.value.set_files([{"name": "a.png", "mimeType": "image/png", "buffer": png(8, 8)}])
    expect(page.locator("#attach-error")).to_contain_text("this model reads text only")
