"""Formulas in answers on the page, in a real browser."""

from playwright.sync_api import expect

FORMULAS = r"""Euler: $e^{i\pi} + 1 = 0$, or \(a_1 < b\), for $5 and $6 and `$x$`.

$$
\frac{1}{2}

+ \sqrt{x}
$$

> \[
> \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
> \]

Not one: $\nosuchcommand{x}$
"""
HOSTILE = (
    r"$\href{javascript:document.title='hurt'}{a}$ $\url{javascript:1}$",
    r"$\includegraphics{https://evil.example/a.png}$",
    r"$\htmlStyle{position:fixed}{a} \htmlData{x=1}{b} \htmlId{input}{c}$",
    r"$\text{<img src=x onerror=alert(1)>}$",
    r"$\def\a{\a\a}\a$",
    r"$\rule{99999em}{99999em}\kern99999em x$",
    "$" + "{" * 1900 + "x" + "}" * 1900 + "$",
    r"$\color{red;position:fixed}{x}$",
    "$" * 50_000,
    r"\(" * 50_000,
    "$$x\n" * 5_000,
)
SHOW = """async ([texts, address]) => {
  const { MarkdownView } = await import(address);
  return texts.map((text) => {
    const element = document.createElement("div");
    element.className = "text rendered";
    document.getElementById("conversation").append(element);
    new MarkdownView(element).show(text);
    const all = [...element.querySelectorAll("*")];
    return [all.map((one) => one.localName), all.flatMap((one) => one.getAttributeNames())];
  });
}"""


def loads(page) -> int:
    """How often the library was asked for."""
    names = "performance.getEntriesByType('resource').map((one) => one.name)"
    return sum(name.endswith("katex.js") for name in page.evaluate(names))


def test_formulas_are_mathml_of_a_library_that_comes_with_the_first(seen):
    page = seen.page
    seen.answer_with("It costs $5 and $6, no `$formula$`.")
    seen.send("the")
    seen.wait_for_answer()
    assert loads(page) == 0
    seen.answer_with(*(FORMULAS[at : at + 7] for at in range(0, len(FORMULAS), 7)))
    seen.send("the")
    seen.wait_for_answer()
    answer = page.locator(".turn.assistant").last.locator(".text")
    expect(answer.locator("math")).to_have_count(4)
    assert loads(page) == 1
    texts = ["".join(text.split()) for text in answer.locator("math").all_text_contents()]
    assert texts == ["eiπ+1=0", "a1<b", "12+x", "(1234)"]
    assert answer.locator("math[display=block]").count() == 2
    assert answer.locator("mfrac, msqrt").count() == 2
    assert answer.locator("blockquote mtable mtd").count() == 4
    assert "for $5 and $6 and $x$." in answer.locator("p").first.text_content()
    assert answer.locator("p").last.text_content() == r"Not one: \nosuchcommand{x}"
    assert seen.barriers() == []


def test_hostile_formulas_run_nothing_and_load_nothing(seen):
    page = seen.page
    before = page.title(), page.url
    address = page.url + "page/markdown.js"
    page.evaluate(SHOW, [["$x$"], address])
    expect(page.locator("math")).to_have_count(1)  # the library is here
    for text, (tags, names) in zip(HOSTILE, page.evaluate(SHOW, [HOSTILE, address]), strict=True):
        assert not {"a", "img", "script", "annotation", "style"} & set(tags), text[:60]
        assert not [name for name in names if name.startswith("on")], text[:60]
        assert not {"style", "src", "href", "id"} & set(names), text[:60]
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    assert (page.title(), page.url) == before
