"""The pages of a crawl, each computed on demand from the seed and its role.

    position --keyed permutation--> role --ranges of roles--> kind and offset
    kind and offset --> language, site, URL, lines

A role is a number; the roles of one kind are a range. A copy finds its source by offset: page k of
`mirror_copy` copies page k of `mirror_source` (modulo their number). No page depends on another one
that was made before, so memory does not grow with the crawl.

Each good paragraph begins with three sentences that no other paragraph has in this order. So the
numbers of unique and repeated lines in the truth table are true by construction.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.sample_crawl.keyed_random import KeyedRandom, Permutation, hash_key
from pipeline.sample_crawl.kinds import (
    EXPECTED_DECISIONS,
    SOURCE_KINDS,
    TAIL_KINDS,
    ExpectedDecision,
    count_kinds,
)
from pipeline.sample_crawl.languages import ISO_639_3
from pipeline.sample_crawl.sites import Site, get_phrases, make_site
from pipeline.sample_crawl.texts import (
    Library,
    Texts,
    load_sentence_texts,
    load_summary_texts,
)

MAX_PARAGRAPHS = 12


@dataclass(frozen=True)
class PageSpec:
    """The properties of a page that need no text."""

    role: int
    kind: str
    offset: int  # among the pages of this kind
    language: str
    site: Site
    url: str


@dataclass(frozen=True)
class Page:
    """A page with its lines."""

    spec: PageSpec
    source_url: str | None
    title: str
    nav: Sequence[str]
    paragraphs: Sequence[str]
    footer: Sequence[str]
    num_shared_paragraphs: int  # that another page has too

    @property
    def expected(self) -> ExpectedDecision:
        """The decision that a run must make."""
        return EXPECTED_DECISIONS[self.spec.kind]

    @property
    def lines(self) -> list[str]:
        """All lines except the title."""
        return [*self.nav, *self.paragraphs, *self.footer]


class Pages:
    """All pages of a crawl."""

    def __init__(
        self,
        num_documents: int,
        documents_per_file: int,
        seed: int,
        languages: tuple[str, ...],
        library: Library,
    ) -> None:
        self.num_documents = num_documents
        self.documents_per_file = documents_per_file
        self.seed = seed
        self.num_files = -(-num_documents // documents_per_file)
        counts = count_kinds(num_documents, self.num_files)
        self._kinds = tuple(counts)
        self._stops = list(itertools.accumulate(counts.values()))
        self.roles: dict[str, range] = {}
        for kind, stop in zip(self._kinds, self._stops, strict=True):
            self.roles[kind] = range(stop - counts[kind], stop)
        self.num_tails = sum(counts[kind] for kind in TAIL_KINDS)
        self._permute_roles = Permutation(num_documents - self.num_tails, seed, "order")

        self.languages = languages
        others = _exclude(ISO_639_3, languages)
        # Each foreign language needs four pages: two for each of its two sites.
        self.foreign = others[: max(1, counts["foreign"] // 4)]
        every_language = (*languages, *self.foreign)
        # English text is mostly ASCII, which survives a wrong decoding.
        self._mojibake_languages = _exclude(every_language, ("en",))
        self.texts = self._load_texts(library)
        self.sites: dict[str, list[Site]] = {}
        for language in self.texts:
            self.sites[language] = self._make_sites(language, counts)

    def _load_texts(self, library: Library) -> dict[str, Texts]:
        max_paragraphs = self.num_documents * MAX_PARAGRAPHS
        texts: dict[str, Texts] = {}
        for language in self.languages:
            texts[language] = load_summary_texts(
                library, language, max_paragraphs, self.seed
            )
        for language in self.foreign:
            texts[language] = load_sentence_texts(
                library, language, max_paragraphs, self.seed
            )
        return texts

    def _make_sites(self, language: str, counts: dict[str, int]) -> list[Site]:
        """Make the sites of a language, as many as the square root of its good pages.

        Each site then has at least two pages, so all its lines are repeated.
        """
        if language in self.languages:
            kind, group = "good", self.languages
        else:
            kind, group = "foreign", self.foreign
        num_sites = math.isqrt(counts[kind] // len(group))
        assert num_sites >= 2, (
            f"{counts[kind]} {kind} pages are too few for {len(group)} languages"
        )
        return [make_site(language, index, self.seed) for index in range(num_sites)]

    def get_page(self, position: int) -> Page:
        """Return the page at a position of the crawl.

        The roles of TAIL_KINDS are the highest ones. They end the first files, one each, and the
        crawl. A permutation spreads all other roles over the remaining positions.
        """
        file, record = divmod(position, self.documents_per_file)
        num_tailed_files = self.num_tails - 1  # without the truncated page
        if position == self.num_documents - 1:
            return self.make_page(position)
        if record == self.documents_per_file - 1 and file < num_tailed_files:
            return self.make_page(self.num_documents - self.num_tails + file)
        return self.make_page(self._permute_roles(position - min(file, num_tailed_files)))

    def make_page(self, role: int) -> Page:
        """Return the page of a role."""
        spec = self.get_spec(role)
        source = self._find_source(spec.kind, spec.offset)
        nav, footer = spec.site.nav, spec.site.footer
        # Half of the mirrors copy the source's whole page, the others put its text into their site.
        if spec.kind == "mirror_copy" and source is not None and spec.offset % 2 == 0:
            nav, footer = source.site.nav, source.site.footer
        if spec.kind == "short":
            nav, footer = nav[:3], ()
        title_role = role if source is None else source.role
        titles = self.texts[spec.language].titles
        title = KeyedRandom(self.seed, "title", title_role).pick(titles)
        if source is None:
            paragraphs, num_shared = self._write_paragraphs(spec)
        else:
            paragraphs, num_shared = self._copy_paragraphs(spec, source)
        source_url = None if source is None else source.url
        return Page(spec, source_url, title, nav, paragraphs, footer, num_shared)

    def get_spec(self, role: int) -> PageSpec:
        """Return kind, language, site and URL of a role."""
        kind = self._kinds[bisect_right(self._stops, role)]
        offset = role - self.roles[kind].start
        source = self._find_source(kind, offset)
        groups = {"foreign": self.foreign, "mojibake": self._mojibake_languages}
        group = groups.get(kind, self.languages)
        language = group[offset % len(group)] if source is None else source.language
        sites = self.sites[language]
        if kind in {"good", "foreign"}:
            site = sites[offset // len(group) % len(sites)]
        else:
            site = sites[hash_key(self.seed, "site of", role) % len(sites)]
        url = f"https://{site.host}/articles/{role}.html"
        return PageSpec(role, kind, offset, language, site, url)

    def _find_source(self, kind: str, offset: int) -> PageSpec | None:
        """Return the source page of a copy; None for other kinds."""
        if kind not in SOURCE_KINDS:
            return None
        sources = self.roles[SOURCE_KINDS[kind]]
        return self.get_spec(sources[offset % len(sources)])

    def _copy_paragraphs(self, spec: PageSpec, source: PageSpec) -> tuple[list[str], int]:
        """Return the paragraphs of a copy, and how many of them its source has too."""
        source_paragraphs = self._write_own_paragraphs(source)
        if spec.kind == "mirror_copy":
            return source_paragraphs, len(source_paragraphs)
        if spec.kind == "near_copy":
            rng = KeyedRandom(self.seed, "edits", spec.role)
            texts = self.texts[spec.language]
            return [texts.edit(paragraph, rng) for paragraph in source_paragraphs], 0
        shared = source_paragraphs[: len(source_paragraphs) // 2]
        return self._write_own_paragraphs(spec) + shared, len(shared)

    def _write_paragraphs(self, spec: PageSpec) -> tuple[list[str], int]:
        """Return the paragraphs of a page that is no copy, and how many of them a copy has."""
        if spec.kind == "boilerplate":
            return [], 0
        if spec.kind == "keyword_spam":
            return _write_spam(spec, KeyedRandom(self.seed, "spam", spec.role)), 0
        own = self._write_own_paragraphs(spec)
        match spec.kind:
            case "mirror_source":
                return own, len(own)
            case "partial_source":
                # one copy each, since both kinds have the same share
                return own, len(own) // 2
            case "word_salad":
                return _shuffle_words(own, KeyedRandom(self.seed, "salad", spec.role)), 0
            case _:
                return _damage_paragraphs(spec, own), 0

    def _write_own_paragraphs(self, spec: PageSpec) -> list[str]:
        """Return paragraphs that no other role has, because their numbers belong to this role."""
        rng = KeyedRandom(self.seed, "paragraphs", spec.role)
        least = 4 if spec.kind == "partial_source" else 2
        # Squared, so that there are more short pages than long ones.
        num_paragraphs = max(least, 2 + int((MAX_PARAGRAPHS - 1) * rng.random() ** 2))
        first = spec.role * MAX_PARAGRAPHS
        texts = self.texts[spec.language]
        return [texts.make_paragraph(n, rng) for n in range(first, first + num_paragraphs)]


def _exclude(languages: Iterable[str], excluded: Sequence[str]) -> tuple[str, ...]:
    return tuple(language for language in languages if language not in excluded)


def _write_spam(spec: PageSpec, rng: KeyedRandom) -> list[str]:
    """Return 6 to 12 lines of 14 to 24 commercial words.

    There are over 16 ** 14 such lines, so no two are the same.
    """
    words = get_phrases(spec.language).commercial_words
    lines: list[str] = []
    for _ in range(6 + rng.below(7)):
        num_words = 14 + rng.below(11)
        lines.append(" ".join(rng.pick(words) for _ in range(num_words)))
    return lines


def _shuffle_words(paragraphs: Sequence[str], rng: KeyedRandom) -> list[str]:
    """Return each paragraph with its words in random order."""
    shuffled: list[str] = []
    for paragraph in paragraphs:
        words = rng.shuffled(paragraph.split())
        shuffled.append(" ".join(words))
    return shuffled


def _damage_paragraphs(spec: PageSpec, own: list[str]) -> list[str]:
    """Return the paragraphs with the fault of the page's kind."""
    match spec.kind:
        case "short":
            # A host (40 characters), two words (36), three newlines and this make under 300.
            return [own[0][:200].rstrip()]
        case "mojibake":
            return _misread(spec, own)
        case "damaged_utf8":
            # `surrogateescape` writes this lone surrogate as the byte 0xA0, Windows-1252's no-break
            # space.
            return _replace_blanks(own, "\udca0")
        case "damaged_nul":
            return _replace_blanks(own, "\0 ")
        case _:
            return own


def _replace_blanks(paragraphs: Sequence[str], replacement: str) -> list[str]:
    """Replace the first three blanks of each paragraph."""
    return [paragraph.replace(" ", replacement, 3) for paragraph in paragraphs]


def _misread(spec: PageSpec, paragraphs: list[str]) -> list[str]:
    """Decode UTF-8 as Windows-1252: all paragraphs, or every second one on every second page."""
    misread: list[str] = []
    for i, paragraph in enumerate(paragraphs):
        if i % 2 and spec.offset % 2:
            misread.append(paragraph)
        else:
            misread.append(paragraph.encode().decode("windows-1252", errors="replace"))
    return misread
