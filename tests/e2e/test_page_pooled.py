"""The page of a model that makes vectors, in a real browser."""

import httpx
import pytest
from playwright.sync_api import expect

from browsing import visit
from serving import lanewise_server
from tiny_embedder import write_embedder

QUERY, TEXTS = "the sea", ["an <b>old</b> house", "the sea", "a ship at sea"]


@pytest.fixture(scope="module")
def embedder(_native_library, tmp_path_factory):
    folder = write_embedder(tmp_path_factory.mktemp("models") / "tiny-bert")
    with lanewise_server(str(folder), "--threads", "1") as url:
        yield url


def test_texts_are_compared_and_the_nearest_comes_first(browser, embedder):
    with visit(browser, embedder) as seen:
        page = seen.page
        expect(page.locator("#pooled")).to_be_visible()
        for name in ("#composer", "#modes", "#conversation"):
            expect(page.locator(name)).to_be_hidden()
        compute = page.get_by_role("button", name="Compute")
        compute.click()
        expect(page.locator("#pooled-error")).to_have_text("There is a text missing.")
        page.fill("[name=query]", QUERY)
        page.fill("[name=texts]", "\n".join(TEXTS) + "\n\n")
        compute.click()
        rows = page.locator("#pooled-rows tbody tr")
        expect(rows).to_have_count(len(TEXTS))
        shown = [row.locator("td").all_text_contents() for row in rows.all()]
        body = {"text_1": QUERY, "text_2": TEXTS}
        data = httpx.post(f"{embedder}/v1/score", json=body).json()["data"]
        want = sorted(((one["score"], TEXTS[one["index"]]) for one in data), reverse=True)
        assert shown == [[f"{score:.4f}", text] for score, text in want]
        assert len({score for score, _ in want}) == len(TEXTS)
        assert seen.barriers() == []


def test_what_the_server_refuses_is_told(browser, embedder):
    with visit(browser, embedder) as seen:
        seen.page.fill("[name=query]", QUERY)
        seen.page.fill("[name=texts]", "\n".join(["x"] * 3000))
        seen.page.get_by_role("button", name="Compute").click()
        expect(seen.page.locator("#pooled-error")).to_contain_text("2048")
        expect(seen.page.locator("#pooled-rows")).to_be_hidden()
        assert any("400" in problem for problem in seen.problems)
        seen.problems.clear()
