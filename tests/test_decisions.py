"""The decisions in the guide: one form, one index, and pages that serve."""

import re

import pytest

from guide_text import links
from lanewise.guide import pages
from toy_server import toy_server

HEADINGS = ["Context", "Choice", "Consequences", "Look again when"]
MAX_WORDS = 260
DATE = r"\d{4}-\d\d-\d\d"


@pytest.fixture(scope="module")
def listed():
    """The lines of the index: (date, title, name of the page)."""
    text = pages.markdown_of(f"{pages.DECISIONS}/index")
    lines = re.findall(rf"^- ({DATE}): \[(.+)\]\(([\w-]+)\.md\)$", text, re.MULTILINE)
    assert len(lines) == text.count("\n- ")
    return lines


def test_a_decision_has_four_headings_and_is_short():
    assert pages.decisions()
    faults = []
    for name in pages.decisions():
        text = pages.markdown_of(name)
        sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
        if sections[1::2] != HEADINGS or not all(map(str.strip, sections[2::2])):
            faults.append(f"{name}: sections {sections[1::2]}; needed are {HEADINGS}, none empty")
        if len(text.split()) > MAX_WORDS:
            faults.append(f"{name}: {len(text.split())} words; at most {MAX_WORDS}")
    assert not faults, "\n".join(faults)


def test_the_index_lists_each_decision_once_by_its_date_and_title(listed):
    own = []
    for name in pages.decisions():
        found = re.match(rf"# (.+)\n\n({DATE}), ", pages.markdown_of(name))
        assert found, f"{name}: a title, and a line that begins with the date"
        own.append((found[2], found[1], name.removeprefix(f"{pages.DECISIONS}/")))
    assert sorted(listed) == sorted(own)


def test_links_of_decisions_lead_somewhere():
    for name in pages.decisions():
        for link in links(pages.path_of(name)):
            target, _, anchor = link.partition("#")
            found = pages.path_of(name).parent / target
            assert found.is_file(), f"{name}: {link}: no such file"
            there = pages.page_of(f"{pages.DECISIONS}/{found.stem}")
            assert not anchor or anchor in {one.anchor for one in there.headings}, f"{name}: {link}"


def test_decisions_are_served_beside_their_index():
    with toy_server(api_keys=("secret",)) as running:
        index = running.client.get("/guide/decisions/index")
        assert "<h1 id=" in index.text
        for name in pages.decisions()[:3]:
            own = name.removeprefix(f"{pages.DECISIONS}/")
            assert f'href="{own}"' in index.text
            page = running.client.get(f"/guide/{name}")
            assert page.status_code == 200
            assert 'href="../../page/base.css"' in page.text
            assert 'href="../../guide"' in page.text
            assert f'href="guide/{name}"' not in running.client.get("/guide").text
        assert running.client.get("/guide/decisions/unheard-of").status_code in (401, 404)
    with toy_server() as running:
        assert running.client.get("/guide/decisions/unheard-of").status_code == 404


def test_a_search_finds_decisions_behind_other_pages():
    found = [one.page.startswith(pages.DECISIONS) for one in pages.search("cache")]
    assert {False, True} == set(found)
    assert found == sorted(found)
