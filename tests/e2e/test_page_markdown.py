"""Answers in Markdown on the page, in a real browser: what they show, and what they cannot do."""

import hashlib
import json

from playwright.sync_api import expect

from lanewise.api.endpoints import page as files

RICH = """# Title

Some **bold**, *slanted*, ~~gone~~ and `a < b` &amp; a [link](https://example.org/a?b=c).
And https://example.org/bare too.

- one
  1. inner
- [x] done

| left | right |
|:-----|------:|
| 1    | `2`   |

> said

```python
def f(a):  # é
    return "<b>"
```

![picture](https://example.org/p.png)
"""
CODE = 'def f(a):  # é\n    return "<b>"\n'

HOSTILE = (
    "<script>document.title = 'hurt'</script>",
    "<img src=x onerror=\"document.title = 'hurt'\">",
    "<svg onload=\"document.title = 'hurt'\"><script>document.title='hurt'</script></svg>",
    '<math><mtext><style><img src=x onerror="document.title=1"></style></mtext></math>',
    "<style>* { display: none }</style>",
    '<iframe src="https://evil.example/"></iframe>',
    '<iframe srcdoc="<script>parent.document.title=1</script>"></iframe>',
    '<object data="https://evil.example/"></object><embed src="https://evil.example/">',
    '<link rel="stylesheet" href="https://evil.example/a.css">',
    '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
    '<base href="https://evil.example/">',
    '<form action="https://evil.example/"><button autofocus onfocus="x()">go</button></form>',
    "[a](javascript:document.title='hurt')",
    "[a](JaVaScRiPt&colon;document.title='hurt')",
    "[a](\x01javascript:document.title='hurt')",
    "[a](java&#10;script:document.title=1)",
    "[a](vbscript:x) [b](data:text/html,<script>1</script>) [c](file:///etc/passwd)",
    "[a](data:image/svg+xml;base64,PHN2Zy8+) [b](blob:x) [c](//evil.example) [d](/metrics)",
    "<javascript:document.title='hurt'> <https://evil.example/\" onclick=\"x()>",
    "![a](https://evil.example/a.png) ![b](data:image/svg+xml,<svg/>) ![c](/v1/models)",
    '[a]: javascript:x "t"\n\n[a] [b](https://evil.example/ "\\" onmouseover=\\"x()")',
    "```html\n<script>document.title = 'hurt'</script>\n<img src=x onerror=x()>",
    '```"><img src=x onerror="document.title=\'hurt\'">\n</code></pre><script>1</script>\n```',
    "~~~~\n```\n~~~\n</pre><img src=x onerror=x()>",
    "| <img src=x onerror=x()> |\n|:-:|\n| [a](javascript:x) <svg/onload=x()> |",
    '{{constructor.constructor("document.title=1")()}} ${document.title=1} <%= 1 %>',
    "`\u202e<tpircs>\u2066` \u202etxet\u2069 \u0645\u0631\u062d\u0628\u0627 \u202e",
    "x" * 100_000,
    "[" * 5_000 + "](" * 500,
    "> " * 2_000 + "deep",
    "*a_ " * 3_000,
    "<" * 20_000 + "!--" * 5_000,
)
# Elements of an answer; all else would be markup that the model has written itself.
BLOCKS = "h3 h4 h5 h6 p blockquote ul ol li table thead tbody tr th td hr pre div"
KNOWN = {*BLOCKS.split(), "em", "strong", "s", "a", "br", "span", "code", "button"}


def pieces(text: str, size: int = 7) -> list[str]:
    """As a model sends them."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def test_markdown_is_shown_and_can_be_seen_raw(seen):
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seen.answer_with(*pieces(RICH))
    seen.send("the")
    seen.wait_for_answer()
    answer = seen.page.locator(".turn.assistant")
    text = answer.locator(".text")
    assert text.locator("h3").inner_text() == "Title"
    for tag, said in (("strong", "bold"), ("em", "slanted"), ("s", "gone")):
        assert text.locator(tag).inner_text() == said
    assert "a < b & a link." in text.locator("p").first.inner_text()
    assert text.locator("ul > li").count() == 2
    assert text.locator("ul > li > ol > li").inner_text() == "inner"
    assert text.locator("ul > li").last.inner_text() == "☑ done"
    assert text.locator("th, td").all_inner_texts() == ["left", "right", "1", "2"]
    assert text.locator("td.to-right").inner_text() == "2"
    assert text.locator("blockquote").inner_text() == "said"
    links = text.locator("a").evaluate_all("all => all.map((a) => [a.href, a.target, a.rel])")
    way = ["_blank", "noopener noreferrer nofollow"]
    assert [link[0] for link in links] == [
        *("https://example.org/a?b=c", "https://example.org/bare", "https://example.org/p.png"),
    ]
    assert all(link[1:] == way for link in links)
    assert text.locator(".language").inner_text() == "python"
    assert text.locator("pre").text_content() == CODE
    assert text.locator(".code-keyword").all_inner_texts() == ["def", "return"]
    text.get_by_role("button", name="Copy code").click()
    expect(text.locator(".code-head button")).to_have_text("Copied")
    assert seen.page.evaluate("navigator.clipboard.readText()") == CODE
    assert seen.barriers() == []

    raw = answer.get_by_role("button", name="Raw: Model")
    raw.click()
    assert text.text_content() == RICH
    raw.click()
    assert text.locator("strong").inner_text() == "bold"


def test_a_text_that_grows_is_drawn_as_the_whole_is(seen):
    growing = """async ([text, address]) => {
      const { MarkdownView } = await import(address);
      const [grown, whole] = [document.createElement("div"), document.createElement("div")];
      const view = new MarkdownView(grown);
      const wrong = [];
      for (let end = 0; end <= text.length; end += 1) {
        view.show(text.slice(0, end));
        whole.replaceChildren();
        new MarkdownView(whole).show(text.slice(0, end));
        if (!grown.isEqualNode(whole)) wrong.push(end);
      }
      const first = grown.firstChild;
      view.show(text + "!");
      return [wrong, grown.firstChild === first];
    }"""
    address = seen.page.url + "page/markdown.js"
    assert seen.page.evaluate(growing, [RICH, address]) == [[], True]
    late = "Look at [a].\n\nAnd\n\n[a]: https://example.org/\n\nend"
    assert seen.page.evaluate(growing, [late, address])[0] == []


SHOW = """async ([texts, address]) => {
  const { MarkdownView } = await import(address);
  const elements = texts.map((text) => {
    const element = document.createElement("div");
    element.className = "text rendered";
    document.getElementById("conversation").append(element);
    const view = new MarkdownView(element);
    for (const part of [5, 3, 2, 1]) view.show(text.slice(0, Math.ceil(text.length / part)));
    return element;
  });
  for (const link of document.querySelectorAll("a")) link.dispatchEvent(new Event("mouseover"));
  return elements.map((element) => {
    const all = [...element.querySelectorAll("*")];
    const names = all.flatMap((one) => one.getAttributeNames());
    return [all.map((one) => one.localName), names, all.map((one) => one.href ?? "")];
  });
}"""


def test_what_a_hostile_answer_says_runs_nothing_and_loads_nothing(seen):
    page = seen.page
    before = page.title(), page.url
    shown = page.evaluate(SHOW, [HOSTILE, page.url + "page/markdown.js"])
    for text, (tags, names, links) in zip(HOSTILE, shown, strict=True):
        assert set(tags) <= KNOWN, text[:80]
        assert not [name for name in names if name.startswith("on") or name in ("src", "style")]
        assert {link.split(":")[0] for link in links} <= {"", "https"}, text[:80]
    for text in ("\n".join(HOSTILE[:12]), HOSTILE[-1]):
        seen.answer_with(*pieces(text, 500))
        seen.send("the")
        seen.wait_for_answer()
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    assert (page.title(), page.url) == before


def test_code_shows_signs_that_turn_text_around(seen):
    seen.answer_with('```c\nif (a /*\u202e */ ) "x"\n```\n')
    seen.send("the")
    seen.wait_for_answer()
    code = seen.page.locator(".turn.assistant pre")
    assert code.locator(".control").all_inner_texts() == ["U+202E"]
    assert "\u202e" not in code.text_content()


def test_calls_of_tools_and_why_it_ended_are_shown(seen):
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "look_up"}}
    rest = [{"index": 0, "function": {"arguments": part}} for part in ('{"city": ', '"<b>"}')]
    other = {"index": 1, "function": {"name": "stop", "arguments": '{"cut'}}
    deltas = [{"tool_calls": [one]} for one in (call, *rest, other)]
    seen.answer_with_deltas(*deltas, finish_reason="tool_calls")
    seen.send("the")
    seen.wait_for_answer()
    answer = seen.page.locator(".turn.assistant")
    assert answer.locator(".call code").all_text_contents() == ["look_up", "stop"]
    given = answer.locator(".call pre").all_text_contents()
    assert given == ['{\n  "city": "<b>"\n}', '{"cut']
    assert seen.numbers()["Ended"] == "the model calls tools"
    assert seen.barriers() == []
    seen.page.reload()
    expect(answer.locator(".call code").first).to_have_text("look_up")


def test_reasoning_is_open_until_there_is_an_answer(seen):
    seen.answer_with_deltas({"reasoning_content": "I think"}, finish_reason="length")
    seen.send("the")
    seen.wait_for_answer()
    thoughts = seen.page.locator(".turn").last.locator(".reasoning p")
    expect(thoughts).to_be_visible()
    seen.answer_with_deltas({"reasoning_content": "I think"}, {"content": "So it is."})
    seen.send("the")
    seen.wait_for_answer()
    expect(thoughts).to_be_hidden()
    seen.page.locator(".reasoning summary").last.click()
    expect(thoughts).to_have_text("I think")
    expect(thoughts).to_be_visible()


def test_libraries_are_the_releases_that_are_named():
    folder = files.FOLDER / "vendor"
    packages = json.loads((folder / "packages.json").read_text())
    for one in packages:
        for file in one["files"]:
            content = (folder / file["file"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == file["sha256"]
            assert one["version"] in content.decode()
        assert all("opyright" in (folder / name).read_text() for name in one["notices"])
    named = {name for one in packages for name in one["notices"]}
    named |= {file["file"] for one in packages for file in one["files"]}
    assert named | {"packages.json"} == {path.name for path in folder.iterdir()}
