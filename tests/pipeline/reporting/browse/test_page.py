"""The page of browse in Chromium: views, keyboard, narrow and dark windows, hostile documents."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pipeline.reporting.browse.index import Index
from tests.pipeline.reporting.conftest import URLS

sync_api = pytest.importorskip("playwright.sync_api")

expect = sync_api.expect

TIMEOUT_MS = 600_000  # beside other work
expect.set_options(timeout=TIMEOUT_MS)

SIZES = {"wide": (1280, 900), "narrow": (400, 800)}


@pytest.fixture(
    scope="module",
    params=[("wide", "light"), ("narrow", "dark")],
    ids=["wide", "narrow-dark"],
)
def window(
    browser: sync_api.Browser, request: pytest.FixtureRequest
) -> Iterator[sync_api.Page]:
    """An empty window. Each new one starts a process, which takes a second of CPU."""
    size, scheme = request.param
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme
    )
    context.set_default_timeout(TIMEOUT_MS)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(window: sync_api.Page, address: str) -> Iterator[sync_api.Page]:
    """The page in a window. At the end, no error and no violation of the policy was logged."""
    logged: list[str] = []
    listeners = {
        "console": lambda message: logged.append(message.text),
        "pageerror": lambda error: logged.append(str(error)),
        "request": lambda made: logged.extend(find_foreign(address, made.url)),
    }
    # From one fragment to another, a browser does not load the page again.
    window.goto("about:blank")
    for event, listener in listeners.items():
        window.on(event, listener)
    window.goto(address)
    window.wait_for_selector(".documents > li")
    yield window
    for event, listener in listeners.items():
        window.remove_listener(event, listener)
    assert logged == []


def find_foreign(address: str, url: str) -> list[str]:
    """Return the address of a request that is not to our server."""
    return [] if url.startswith(address) else [url]


def find_overflow(page: sync_api.Page) -> list[str]:
    """Return the elements that are wider than the window, if the page can be scrolled sideways."""
    return page.evaluate(
        "document.documentElement.scrollWidth <= innerWidth ? [] :"
        " [...document.querySelectorAll('*')]"
        ".filter((node) => node.getBoundingClientRect().right > innerWidth)"
        ".map((node) => `${node.tagName} ${node.className} ${node.textContent.slice(0, 60)}`)"
    )


def open_view(page: sync_api.Page, view: str, selector: str) -> None:
    """Go to a view and wait for what it shows."""
    page.evaluate("view => { location.hash = view }", view)
    page.wait_for_selector(selector)


def search(page: sync_api.Page, query: str) -> None:
    """Search for documents from their view, and wait for the answer."""
    # Until it comes, the results of the last search are shown.
    with page.expect_response(lambda response: f"api/documents?{query}" in response.url):
        page.evaluate("query => { location.hash = `#/documents?${query}` }", query)
    page.wait_for_selector(".results:not([aria-busy])")


def test_hostile_documents_are_shown_as_text(page: sync_api.Page) -> None:
    """URLs, titles and texts with scripts: in the list, as a document, and as a domain."""
    search(page, "decision=kept&order=input")
    shown = page.locator(".documents .url").all_text_contents()
    assert set(URLS) <= set(shown)
    for link in page.query_selector_all(".documents h3 a"):
        assert re.fullmatch(r"#/document/\d+", link.get_attribute("href") or "")
    page.get_by_text("</title><img", exact=False).first.click()
    expect(page.locator(".document .line").first).to_contain_text("<script>")
    assert page.query_selector_all("main img, main script, iframe") == []
    open_view(page, "#/domains", ".domains tbody tr")
    assert page.title() == "corpusmill browse"
    assert find_overflow(page) == []


def test_a_search_is_typed_and_its_address_can_be_opened_again(page: sync_api.Page) -> None:
    """A slash goes to the first field; Enter searches; the address keeps the search."""
    page.keyboard.press("/")
    page.keyboard.type("near.example/1")
    page.keyboard.press("Enter")
    expect(page.locator(".summary")).to_contain_text("1 document of")
    assert "url=near.example%2F1" in page.url
    page.reload()
    page.wait_for_selector(".documents > li")
    assert page.input_value("[name=url]") == "near.example/1"
    assert page.locator(".documents > li").count() == 1
    # A slash is an ordinary character in a field.
    page.focus("[name=url]")
    page.keyboard.type("/")
    assert page.input_value("[name=url]") == "near.example/1/"
    assert find_overflow(page) == []


def test_every_control_is_reached_by_the_keyboard(page: sync_api.Page) -> None:
    """In the order of the page, each with a visible focus and a name."""
    wanted = page.locator("a, button, input, select, summary").filter(visible=True).count()
    reached: list[str] = []
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(() => { const node = document.activeElement;"
                " return node === document.body ? '' : getComputedStyle(node).outlineStyle })()"
            )
        )
        if reached[-1] == "":
            break
    assert reached[-1] == ""
    assert set(reached[:-1]) <= {"solid", "auto"}
    assert (
        len(reached) - 1 >= wanted - 1
    )  # the skip link counts only while it has the focus
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select')].filter("
        "(node) => !node.labels.length && !node.ariaLabel).length"
    )
    assert unnamed == 0


def test_removed_lines_are_marked_beside_what_is_left(
    page: sync_api.Page, index: Index
) -> None:
    """With words, not by colour alone. In a narrow window there is one column."""
    numbers = [number for number in index.doc_ids.tolist() if number >> 32 == 0]
    for number in numbers:
        open_view(page, f"#/document/{number}", f'.facts >> text="document {number}"')
        if page.locator(".line.duplicate").count():
            break
    assert "removed: duplicate line" in page.locator(".line.duplicate").first.inner_text()
    is_wide = page.viewport_size["width"] > 500
    assert page.locator(".line.left").first.is_visible() == is_wide
    assert find_overflow(page) == []


def test_a_cluster_leads_to_its_other_documents(page: sync_api.Page) -> None:
    """The representative is marked, and the document itself."""
    search(page, "decision=minhash")
    page.locator(".documents h3 a").first.click()
    page.wait_for_selector(".cluster li")
    assert page.locator(".cluster li").count() == 3
    assert "representative" in page.locator(".cluster li").first.inner_text()
    page.locator(".cluster summary").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".differences del").first).to_have_text(
        re.compile("first|second|third")
    )
    expect(page.locator(".differences ins").first).to_have_text(
        re.compile("first|second|third")
    )
    page.locator(".cluster a").first.click()
    page.wait_for_selector(".document h1 + .url + .facts .badge.kept")
    assert page.locator(".cluster a[aria-current]").count() == 1
    assert find_overflow(page) == []


def test_a_domain_leads_to_its_documents(page: sync_api.Page) -> None:
    """The table is filtered while typing, and every number is a search."""
    open_view(page, "#/domains", ".domains tbody tr")
    page.keyboard.press("/")
    page.keyboard.type("near")
    expect(page.locator(".domains tbody tr")).to_have_count(1)
    assert find_overflow(page) == []
    page.locator(".domains td a").first.click()
    page.wait_for_selector(".summary >> text=3 documents")


def test_a_slider_shows_at_once_what_would_be_kept(page: sync_api.Page) -> None:
    """Arrow keys move it; its score is shown; the address keeps it; a button undoes it."""
    open_view(page, "#/scores", ".effect .summary")
    before = page.inner_text(".effect .summary")
    slider = page.get_by_label("quality.min_words", exact=True)
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("code")).to_contain_text("--set 'select.quality.min_words=")
    assert page.input_value("[data-search]") == "rps_doc_word_count"
    page.keyboard.press("End")
    expect(page.locator("code")).to_contain_text(f"min_words={slider.input_value()}'")
    expect(page.locator("h2").first).to_contain_text("Newly dropped")
    expect(page.locator(".documents .excerpt").first).to_be_visible()
    assert "set=select.quality.min_words" in page.url
    assert find_overflow(page) == []
    after = page.inner_text(".effect .summary")
    page.reload()
    expect(page.locator(".effect .summary")).to_have_text(after)
    page.get_by_role("button", name="Reset limits").click()
    expect(page.locator(".effect .summary")).to_have_text(before)
    assert page.locator(".histogram path.kept").count() > 0


def test_a_limit_can_be_turned_off(page: sync_api.Page) -> None:
    """By its check box."""
    open_view(page, "#/scores?score=num_chars", ".effect .summary")
    page.get_by_label("quality.min_words is on").click()
    expect(page.locator("code")).to_contain_text("select.quality.min_words=null")
    assert page.get_by_label("quality.min_words", exact=True).is_disabled()


def test_an_error_is_a_message(browser: sync_api.Browser, address: str) -> None:
    """The page shows the message of the server, and goes on."""
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    page.goto(f"{address}#/document/999999999999")
    message = page.get_by_role("alert")
    expect(message).to_contain_text("no document '999999999999' was read")
    open_view(page, "#/scores?set=select.quality.max_words=2", "[role=alert]")
    expect(message).to_contain_text("no document could be kept")
    page.get_by_role("button", name="Reset limits").click()
    page.wait_for_selector(".effect .summary")
    context.close()
