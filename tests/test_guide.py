"""The guide and README: references as the code is, links that lead somewhere, pages that serve."""

import re
from pathlib import Path

import pytest

import topics
from deploy.guide import reference, site
from guide_text import blocks, links, table_cells
from lanewise.api.endpoints import guide
from lanewise.guide import pages
from toy_server import toy_server

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
FILES = [README, *map(pages.path_of, pages.names())]
EVERY = {name for part in pages.PARTS.values() for name in part}


@pytest.fixture(scope="module")
def server():
    with toy_server() as running:
        yield running


@pytest.mark.parametrize("page", reference.references())
def test_references_are_as_the_code_is(page):
    text = pages.path_of(page).read_text(encoding="utf-8")
    assert reference.made(page, text) == text, "run: make guide"


def test_a_setting_that_changes_makes_the_reference_stale(monkeypatch):
    text = pages.path_of("configure").read_text(encoding="utf-8")
    monkeypatch.setattr(reference, "shown_value", lambda item, value: "another")
    assert reference.made("configure", text) != text


def test_every_endpoint_is_on_a_page():
    told = "".join(pages.markdown_of(page) for page in reference.DIALECTS)
    for endpoint in reference.ENDPOINTS:
        if endpoint.method != "HEAD":
            path = endpoint.path.replace(":path}", "}")
            assert f"`{endpoint.method} {path}`" in told


def test_every_page_has_its_place():
    found = {path.relative_to(pages.FOLDER).with_suffix("") for path in pages.FOLDER.rglob("*.md")}
    assert {path.as_posix() for path in found} == EVERY | set(pages.decisions())


def test_readme_is_one_screen():
    assert len(README.read_text(encoding="utf-8").split()) <= 900
    longest = max(table_cells(README), key=lambda cell: len(cell.split()))
    assert len(longest.split()) <= 20, longest


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    for link in links(path):
        if link.startswith("http"):
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.is_file(), f"{link}: no such file"
        if anchor and found.parent == pages.FOLDER:
            anchors = {one.anchor for one in pages.page_of(found.stem).headings}
            assert anchor in anchors, f"{link}: no such heading"


@pytest.mark.parametrize("path", FILES[1:], ids=lambda path: path.stem)
def test_what_cannot_be_run_says_why(path):
    """Each command is run by tests/e2e/test_guide_commands.py, or says why it is not."""
    for block in blocks(path):
        assert block.kind in ("console", "python", "text")
        assert block.kind == "text" or block.why or block.kind == "python" or block.commands()


def test_pages_are_served_without_a_network(server):
    index = server.client.get("/guide")
    assert index.status_code == 200
    for name in pages.names():
        assert f'href="guide/{name}"' in index.text
        page = server.client.get(f"/guide/{name}")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "<h1 id=" in page.text
        # Nothing comes from elsewhere, and no link leads to a file that is not served.
        assert "http" not in " ".join(re.findall(r'(?:src|<link[^>]*href)="([^"]*)"', page.text))
        inner = [one for one in re.findall(r'<a href="([^"]*)"', page.text) if "//" not in one]
        assert not [one for one in inner if ".md" in one]


def test_links_between_pages_are_followed(server):
    text = server.client.get("/guide/quickstart").text
    assert '<a href="choose">' in text
    assert server.client.get("/guide/choose").status_code == 200
    assert (
        '<a href="quickstart#the-first-model">' in server.client.get("/guide/troubleshooting").text
    )


def test_a_page_that_did_not_change_is_not_sent_again(server):
    tag = server.client.get("/guide/choose").headers["etag"]
    again = server.client.get("/guide/choose", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/guide/", "/guide/choose/", "/guide/decisions/index/"])
def test_a_slash_at_the_end_leads_to_the_page(server, path):
    assert server.client.get(path, follow_redirects=True).status_code == 200


def test_a_search_finds_sections(server):
    text = server.client.get("/guide", params={"q": "kv_memory container"}).text
    assert '<a href="guide/configure#memory">' in text
    assert "No section" in server.client.get("/guide", params={"q": "zebra unicorn"}).text


def test_a_search_lets_no_markup_through(server):
    text = server.client.get("/guide", params={"q": '"><script>alert(1)</script>'}).text
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text


def test_text_of_pages_becomes_no_markup(monkeypatch):
    monkeypatch.setattr(
        pages, "markdown_of", lambda name: "# A\n\n<script>x</script> [b](c.md#d)\n"
    )
    found = pages.page_of.__wrapped__("any")
    assert "<script>" not in found.html
    assert '<a href="c#d">' in found.html


def test_the_policy_of_the_guide_lets_no_script_in(server):
    policy = server.client.get("/guide").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "trusted-types 'none'" in policy
    assert guide.HEADERS["x-content-type-options"] == "nosniff"


def test_the_guide_needs_no_key():
    with toy_server(api_keys=("secret",)) as running:
        assert running.client.get("/guide/choose").status_code == 200
        assert running.client.get("/v1/models").status_code == 401


def test_the_site_has_all_pages_and_no_link_out_of_it(tmp_path):
    site.write_sources(tmp_path / "sources")
    index = (tmp_path / "sources" / "index.md").read_text()
    for name in pages.names():
        assert f"\n{name}\n" in index
        assert "](../" not in (tmp_path / "sources" / f"{name}.md").read_text()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    topics.module("sphinx", "docs")
    assert site.main(tmp_path / "guide") == 0
    assert (tmp_path / "guide" / "choose.html").is_file()
