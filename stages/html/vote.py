r"""Find the main content of a page by a vote: two of three extractors keep a block.

    extract_by_vote(tree.body.html, markup)      # "Bread\n\nFlour, water."

Our rules judge sentences and names of elements (`main_content.py`), trafilatura the tree, and jusText
stop words and links. They err on different pages: over several sets of pages, a majority of
extractors is better than each of them (Bevendorff et al. 2023, "An Empirical Comparison of Web
Content Extraction Algorithms", SIGIR). No limit was chosen here.
"""

from __future__ import annotations

from stages.html.blocks import read_blocks
from stages.html.justext import extract_in_any_language
from stages.html.main_content import find_main_blocks, join_blocks
from stages.html.trafilatura import extract_main_content

# Raise it if an equal page gives other main content.
VERSION = 1

MAJORITY = 2

# A page with more blocks * characters is decided by our rules alone: the search takes quadratic
# time. 1,171 labelled pages have up to 0.7e9; 4e9 take a few seconds.
MAX_SEARCHED = 4_000_000_000


def extract_by_vote(html: str, markup: str) -> str:
    """Return the main content; "" if there is none.

    Args:
        html: the body of the page as resiliparse serializes it.
        markup: the page, decoded.

    Raises:
        ExtraNotInstalled: trafilatura is not installed.
        Exception: any error of lxml for a page that it cannot parse.
    """
    page = read_blocks(html)
    ours = find_main_blocks(page)
    others = [
        _squeeze(extract_main_content(markup)),
        _squeeze(extract_in_any_language(markup)),
    ]
    if len(page.blocks) * sum(map(len, others)) > MAX_SEARCHED:
        return join_blocks(page, ours)
    is_ours = set(ours)
    our_texts = {_squeeze(page.blocks[i].text) for i in ours}
    kept: list[int] = []
    for i, block in enumerate(page.blocks):
        text = _squeeze(block.text)
        num_votes = (i in is_ours) + sum(text in other for other in others)
        # The others do not say which of several equal blocks they keep; our rules do.
        is_elsewhere = i not in is_ours and text in our_texts
        if num_votes >= MAJORITY and text and not is_elsewhere:
            kept.append(i)
    return join_blocks(page, kept)


def _squeeze(text: str) -> str:
    """Return the text without white space and "|", with which trafilatura separates cells."""
    return "".join(text.split()).replace("|", "")
