"""A crawl of any size, made on this machine from real sentences, with a truth table beside it.

Promises: the same arguments give the same bytes (under one build of zlib and pyarrow); memory does not grow with the
number of pages; every page has a row in `truth.parquet` (`TRUTH`) that says what it is, what it copies and what CCNet's
chain must do with it. That holds by construction: a page is a pure function of the seed and of its *role*, a number
that says its kind; each good paragraph opens with a triple of sentences that no other has; and what breaks the framing
of a file stands at the end of that file, so that a reader that cannot find its way back loses nothing else.
Leaves to others: the texts (demo_texts.py), reading the crawl, judging a run by the truth.

    position --keyed permutation--> role --ranges of roles--> kind and offset --> language, site, url, lines
    a copy finds its source by offset: page k of `mirror_copy` copies page k (modulo their number) of `mirror_source`

    crawl = generate(Path("crawl"), num_documents=20_000, seed=1, format="wet")
    crawl.files[0].name     # CC-MAIN-20261101000000-20261101010000-00000.warc.wet.gz
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import html
import itertools
import math
import random
import re
import shutil
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.models.download import Say, silent

VERSION = 1
"""Rises whenever equal arguments would give another crawl."""

Format = Literal["wet", "warc"]
Layout = Literal["flat", "common-crawl"]
Fate = Literal["kept", "emptied", "too_short", "low_quality", "quarantined", "any"]
"""`kept`: is good text in its language; `emptied`: loses every line to deduplication (`keep: none`); `too_short`: has
under 300 characters; `low_quality`: must not reach the head bucket, or be dropped for its score; `quarantined`: is no
readable document; `any`: no claim."""

TRUTH = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),  # unique in the crawl
        pa.field("file", pa.string(), nullable=False),  # relative to the crawl's folder, with "/"
        pa.field(
            "record", pa.int32(), nullable=False
        ),  # which page of its file, from 0, damaged ones counted
        pa.field(
            "record_id", pa.string(), nullable=False
        ),  # WARC-Record-ID of the conversion or response record
        pa.field("kind", pa.string(), nullable=False),  # a name out of KINDS
        pa.field("language", pa.string(), nullable=False),  # ISO 639-1, of the text
        pa.field("site", pa.string(), nullable=False),  # host of the url
        pa.field("source_url", pa.string()),  # the page whose paragraphs it copies; null: none
        pa.field("expected_fate", pa.string(), nullable=False),  # a Fate
        pa.field("num_unique_lines", pa.int32()),  # lines that no other page has
        pa.field(
            "num_repeated_lines", pa.int32()
        ),  # lines that another page of 300 characters or more has
    ]
)
"""One row per page, in the order of the files. The two counts are of the WET's lines in CCNet's normal form, the first
line (its title) left out; they are null for pages that are too short or damaged, none of whose paragraphs another page
has. With `format="warc"` they count the lines put into the HTML: an extractor may join or cut some."""


@dataclass(frozen=True)
class Kind:
    """One kind of page: how many of 1,000 pages are of it (rounded up), and what CCNet's chain must do with them."""

    name: str
    per_mille: int
    fate: Fate


KINDS = (
    # The shares are chosen, not measured: each rule of the chain gets some tens of cases in a crawl of 1,000 pages.
    # What the others leave, half of the crawl: a site's boilerplate around 2-12 paragraphs that no other page has.
    Kind("good", 0, "kept"),
    # The same in further languages.
    Kind("foreign", 80, "kept"),
    # Exact copies under another URL. A paragraph that two pages share loses every copy, so the sources are emptied too.
    # CCNet's paper finds 70 % of a dump's characters repeated; here it is less, so that small runs keep something.
    Kind("mirror_source", 50, "emptied"),
    Kind("mirror_copy", 70, "emptied"),
    # One word in twenty replaced, one at least per paragraph: exact deduplication must not see it. A chain that looks
    # for near-duplicates would drop the copies, hence no claim.
    Kind("near_source", 30, "kept"),
    Kind("near_copy", 30, "any"),
    # Half of the source's paragraphs stand in the copy as well; both have at least two more of their own.
    Kind("partial_source", 30, "kept"),
    Kind("partial_copy", 30, "kept"),
    # What perplexity or the reference classifier is there for.
    Kind("word_salad", 40, "low_quality"),
    Kind("keyword_spam", 40, "low_quality"),
    # Under CCNet's 300 characters, title left out.
    Kind("short", 50, "too_short"),
    # UTF-8 read as Windows-1252, in all paragraphs or in every second one. Its language may still be found: no claim.
    Kind("mojibake", 20, "any"),
    # The site's own lines and nothing else: over 300 characters, every line repeated.
    Kind("boilerplate", 20, "emptied"),
    # Faults of one record: with the two below, under 1 % of a crawl of 2,000 pages or more.
    Kind("damaged_type", 1, "quarantined"),  # no WARC-Type
    Kind("damaged_uri", 1, "quarantined"),  # no WARC-Target-URI
    Kind("damaged_utf8", 1, "any"),  # bytes that are not UTF-8; a reader may mend them
    Kind("damaged_nul", 1, "any"),  # NUL characters; the same
    # Faults of the framing, each at the end of a file, so never more of them than files.
    Kind("damaged_length", 1, "quarantined"),  # Content-Length beyond the end of the record
    Kind("damaged_header", 1, "quarantined"),  # noise where WARC/1.0 should stand
    Kind(
        "truncated", 0, "quarantined"
    ),  # the last page of the crawl, always: its gzip member is cut
)
TAIL_KINDS = ("damaged_length", "damaged_header", "truncated")
SOURCE_OF = {
    "mirror_copy": "mirror_source",
    "near_copy": "near_source",
    "partial_copy": "partial_source",
}

MIN_DOCUMENTS = 100
"""Below this there is no room for a page of each kind and two good pages of each site."""

_LANGUAGE_CODES = (
    "en=eng fr=fra es=spa de=deu it=ita pt=por nl=nld pl=pol ru=rus ja=jpn ar=ara sv=swe "
    "tr=tur cs=ces el=ell hu=hun uk=ukr zh=zho ko=kor ro=ron he=heb fi=fin vi=vie"
)
_ISO_639_3 = {code[:2]: code[3:] for code in _LANGUAGE_CODES.split()}
"""For WARC-Identified-Content-Language. Foreign pages are in these, in this order, less those of the good pages."""

_LANGUAGES_OF_CHARSET = {
    "windows-1252": "en es de nl sv fi",
    "iso-8859-1": "fr pt it",
    "iso-8859-2": "pl cs hu ro",
    "windows-1251": "ru uk",
    "windows-1255": "he",
    "iso-8859-7": "el",
    "iso-8859-9": "tr",
    "shift_jis": "ja",
    "gb18030": "zh",
    "euc-kr": "ko",
}
_LEGACY_CHARSETS = {
    language: charset
    for charset, languages in _LANGUAGES_OF_CHARSET.items()
    for language in languages.split()
}
LEGACY_SHARE = 0.2
"""HTML pages in their language's old charset: half of them say so in the HTTP header, half in a meta element only."""

MAX_PARAGRAPHS = 12
MIN_SENTENCE_LETTERS, MAX_SENTENCE_CHARS = 25, 400
"""Shorter ones are mostly what a full stop after an abbreviation left; longer ones are lists."""

TRUTH_ROWS_PER_GROUP = 2_000
GZIP_LEVEL = 1
"""62 us a page of 3 KB where level 6 takes 136, for files 4 % larger (2 shared cores, zlib 1.2.13)."""


class Library(Protocol):
    """Where the texts come from: the module `pipeline.demo_texts`, or anything of its shape."""

    def summaries(self, language: str, part: Literal["pages"], /) -> Iterable[tuple[str, str]]:
        """Title and text of encyclopedia summaries."""
        ...

    def sentences(self, language: str, /) -> Sequence[str]:
        """Single sentences."""
        ...


@dataclass(frozen=True)
class SampleCrawl:
    """What `generate` wrote."""

    folder: Path
    files: tuple[Path, ...]
    truth: Path
    paths_list: Path | None  # wet.paths.gz or warc.paths.gz; None in the flat layout
    num_documents: int
    num_documents_by_kind: dict[str, int]
    num_bytes: int  # of all WARC files


def generate(
    out: Path,
    *,
    num_documents: int,
    seed: int,
    format: Format,
    documents_per_file: int = 2_500,
    languages: Sequence[str] = ("en", "fr", "es"),
    layout: Layout = "flat",
    library: Library | None = None,
    say: Say = silent,
) -> SampleCrawl:
    """Write a crawl and its truth table into the folder `out`, which appears only when it is whole.

    Args:
        out: the folder; it may exist if it is empty.
        num_documents: pages, damaged ones included.
        seed: another seed, another crawl.
        format: `wet`: text (conversion records); `warc`: HTML (request, response and metadata records).
        documents_per_file: pages per WARC file.
        languages: of the good pages, in equal shares; the library must have summaries in them.
        layout: `flat`: files in `out`; `common-crawl`: under `crawl-data/CC-MAIN-SAMPLE/`, with their wet.paths.gz.
        library: where texts come from; default: `pipeline.demo_texts`.
        say: takes one line per file written.

    Raises:
        ValueError: an argument is out of its range, or the library has too few texts for so many pages.
        FileExistsError: `out` holds something already.
        AssetError: the texts cannot be had.
    """
    _check_arguments(out, num_documents, documents_per_file, languages)
    if library is None:
        from pipeline.models import demo_texts

        library = demo_texts
    pages = _Pages(num_documents, documents_per_file, seed, tuple(languages), library)
    names = _file_names(pages.num_files, format, layout)
    with _made_whole(out) as folder:
        num_bytes = _write_files(folder, names, pages, format, say)
        paths_list = _write_paths_list(folder, names, format) if layout == "common-crawl" else None
    return SampleCrawl(
        folder=out,
        files=tuple(out / name for name in names),
        truth=out / "truth.parquet",
        paths_list=None if paths_list is None else out / paths_list,
        num_documents=num_documents,
        num_documents_by_kind={kind: len(roles) for kind, roles in pages.roles.items()},
        num_bytes=num_bytes,
    )


def _check_arguments(
    out: Path, num_documents: int, documents_per_file: int, languages: Sequence[str]
) -> None:
    if num_documents < MIN_DOCUMENTS:
        raise ValueError(
            f"sample crawl: num_documents is {num_documents}, must be at least {MIN_DOCUMENTS}: a smaller crawl has no "
            f"room for every kind of page"
        )
    if documents_per_file < 1:
        raise ValueError(
            f"sample crawl: documents_per_file is {documents_per_file}, must be at least 1"
        )
    unknown = [language for language in languages if language not in _ISO_639_3]
    if unknown or not 1 <= len(set(languages)) == len(languages) <= 5:
        raise ValueError(
            f"sample crawl: languages are {list(languages)!r}, must be one to five different ones of "
            f"{', '.join(_ISO_639_3)}"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f"sample crawl: {str(out)!r} is not an empty folder; remove it or name another one"
        )


# ---- Keyed draws: every choice is a hash of the seed and of what is chosen, never of what was chosen before it.


def _keyed_hash(*key: object) -> int:
    """64 bits that depend on the key alone."""
    return int.from_bytes(
        hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest(), "little"
    )


class _Draws(random.Random):
    """The choices for one thing. Built on `random()` alone: Python promises the sequence of no other method."""

    def __init__(self, *key: object) -> None:
        super().__init__(_keyed_hash(*key))

    def below(self, limit: int) -> int:
        return int(self.random() * limit)

    def pick(self, items: Sequence[str]) -> str:
        return items[int(self.random() * len(items))]

    def shuffled(self, items: Iterable[str]) -> list[str]:
        return [item for _, item in sorted((self.random(), item) for item in items)]


class _Permutation:
    """A keyed bijection of range(n), evaluated one element at a time.

    `x * odd + c` and `x ^ (x >> half)` permute the next power of two; walking the cycle until the value falls below n
    restricts them to range(n) (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section 3).
    """

    def __init__(self, n: int, *key: object) -> None:
        bits = max(2, (n - 1).bit_length())
        self.n, self.mask, self.half = n, (1 << bits) - 1, bits // 2
        self.rounds = [
            (_keyed_hash(*key, r, "factor") | 1, _keyed_hash(*key, r, "term")) for r in range(3)
        ]

    def __call__(self, x: int) -> int:
        while True:
            for factor, term in self.rounds:
                x = (x * factor + term) & self.mask
                x ^= x >> self.half
            if x < self.n:
                return x


# ---- Texts: sentences, and paragraphs of them that all differ.

_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b\w\.)\s+(?=[^\W\d_])")
"""A full stop after a single letter ends none ("J. K. Rowling")."""


def _letters(text: str) -> str:
    """Coarser than CCNet's normal form (no digits, punctuation, spaces, case): texts that differ here differ there."""
    return "".join(filter(str.isalpha, text.casefold()))


def _prefix_free(sentences: Iterable[str]) -> list[str]:
    """Sentences none of which begins another, by their letters: rows of them can be told apart whatever follows.

    In sorted order everything that begins with one of them follows it at once, so one comparison each is enough.
    """
    folded = sorted({_letters(s): s for s in sentences}.items())
    kept: list[str] = []
    last = "\0"
    for letters, sentence in folded:
        if len(letters) >= MIN_SENTENCE_LETTERS and not letters.startswith(last):
            kept.append(sentence)
            last = letters
    return kept


class _Texts:
    """Titles, sentences and paragraphs of one language."""

    def __init__(
        self,
        language: str,
        titles: Iterable[str],
        sentences: Iterable[str],
        num_paragraphs: int,
        seed: int,
    ) -> None:
        one_line = (" ".join(s.split()) for s in sentences)
        self.sentences = _prefix_free(s for s in one_line if len(s) <= MAX_SENTENCE_CHARS)
        self.titles = [" ".join(t.split()) for t in titles]
        self.joiner = "" if language in {"ja", "zh"} else " "
        num_triples = len(self.sentences) ** 3
        if num_triples < num_paragraphs:
            raise ValueError(
                f"sample crawl: {len(self.sentences)} usable sentences in {language!r} make {num_triples} different "
                f"paragraphs, {num_paragraphs} are wanted; ask for fewer documents or bring more text"
            )
        self._triple = _Permutation(num_triples, seed, language, "triples")

    def paragraph(self, number: int, draws: _Draws) -> str:
        """Three sentences that no other number has in this order, and up to two more."""
        rest, first = divmod(self._triple(number), len(self.sentences))
        second, third = divmod(rest, len(self.sentences))
        chosen = [self.sentences[i] for i in (first, second, third)]
        chosen += [draws.pick(self.sentences) for _ in range(draws.below(3))]
        return self.joiner.join(chosen)

    def edited(self, paragraph: str, draws: _Draws) -> str:
        """The paragraph with one word in twenty, one at least, replaced by another word of the language."""
        words = paragraph.split()
        for i in sorted({draws.below(len(words)) for _ in range(max(1, len(words) // 20))}):
            old = _letters(words[i])
            while _letters(words[i]) == old:
                words[i] = draws.pick(draws.pick(self.sentences).split())
        return " ".join(words)


def _summary_texts(library: Library, language: str, num_paragraphs: int, seed: int) -> _Texts:
    summaries = list(library.summaries(language, "pages"))
    sentences = (s for _, text in summaries for s in _SENTENCE_END.split(text))
    return _Texts(language, (title for title, _ in summaries), sentences, num_paragraphs, seed)


def _sentence_texts(library: Library, language: str, num_paragraphs: int, seed: int) -> _Texts:
    sentences = library.sentences(language)
    return _Texts(language, (s[:40] for s in sentences), sentences, num_paragraphs, seed)


# ---- Sites: the lines that all pages of a site have.


@dataclass(frozen=True)
class _Phrases:
    """What the sites of a language are made of: links of 18 characters at most, lines of 300 characters together."""

    nav: tuple[str, ...]
    footer: tuple[str, ...]
    commercial_words: tuple[str, ...]


def _phrases(text: str) -> _Phrases:
    nav, *footer, commercial = text.strip().splitlines()
    return _Phrases(tuple(nav.split(", ")), tuple(footer), tuple(commercial.split()))


_PHRASES = {
    "en": _phrases("""
Home, About us, Contact, Log in, Register, Search, News, Archive, Shop, Help, Sitemap, Read more
{host} uses cookies to offer you a better service. By browsing on you agree to our use of cookies. Settings | Accept
We and our partners store information on your device to measure our audience and to show you content that suits you.
© 2026 {host}. All rights reserved. No part may be reproduced without permission. Terms of use | Privacy | Imprint
cheap buy online best price discount sale free shipping order now deal coupon watches shoes casino bonus loans outlet
"""),
    "fr": _phrases("""
Accueil, À propos, Contact, Connexion, Inscription, Recherche, Actualités, Archives, Boutique, Aide, Plan du site
{host} utilise des cookies pour améliorer ses services. En poursuivant votre visite, vous en acceptez l'utilisation.
Nos partenaires et nous-mêmes stockons des informations sur votre appareil afin de mesurer l'audience de ce site.
© 2026 {host}. Tous droits réservés. Reproduction interdite sans accord écrit. Mentions légales | Confidentialité
pas cher acheter en ligne meilleur prix promotion soldes livraison gratuite commander montres chaussures casino crédit
"""),
    "es": _phrases("""
Inicio, Quiénes somos, Contacto, Entrar, Registrarse, Buscar, Noticias, Archivo, Tienda, Ayuda, Mapa del sitio
{host} utiliza cookies para mejorar sus servicios. Si continúa navegando, acepta su uso. Aceptar todo | Configuración
Nosotros y nuestros socios almacenamos información en su dispositivo para medir la audiencia de este sitio web.
© 2026 {host}. Todos los derechos reservados. Prohibida su reproducción sin permiso escrito. Aviso legal | Privacidad
barato comprar en línea mejor precio descuento rebajas envío gratis oferta relojes zapatos casino préstamos cupón ahora
"""),
}
"""Sites in other languages speak English around their text, as many do."""

_HOST_NOUNS = (
    "harbour",
    "lantern",
    "orchard",
    "meadow",
    "quarry",
    "beacon",
    "atlas",
    "ferry",
    "loom",
    "pioneer",
    "summit",
)


@dataclass(frozen=True)
class _Site:
    host: str  # under .example, which is nobody's (RFC 2606)
    nav: tuple[str, ...]
    footer: tuple[str, ...]


def _make_site(language: str, index: int, seed: int) -> _Site:
    draws = _Draws(seed, "site", language, index)
    host = f"www.{draws.pick(_HOST_NOUNS)}-{index}.{language}.example"
    phrases = _PHRASES.get(language, _PHRASES["en"])
    nav = (host, *draws.shuffled(phrases.nav)[:6])
    return _Site(host, nav, tuple(line.format(host=host) for line in phrases.footer))


# ---- Pages: role -> what stands on it.


@dataclass(frozen=True)
class _Place:
    """What a role says before any text is made."""

    role: int
    kind: str
    offset: int  # among the pages of this kind
    language: str
    site: _Site
    url: str


@dataclass(frozen=True)
class _Page:
    place: _Place
    source_url: str | None
    title: str
    nav: Sequence[str]
    paragraphs: Sequence[str]
    footer: Sequence[str]
    num_shared_paragraphs: int  # that another page has too

    @property
    def fate(self) -> Fate:
        return _FATES[self.place.kind]

    @property
    def lines(self) -> list[str]:
        return [*self.nav, *self.paragraphs, *self.footer]


_FATES: dict[str, Fate] = {kind.name: kind.fate for kind in KINDS}


def _count_kinds(num_documents: int, num_files: int) -> dict[str, int]:
    """Pages of each kind, in the order of KINDS; framing faults only where there is a file to end with one."""
    counts = {kind.name: -(-kind.per_mille * num_documents // 1000) for kind in KINDS}
    counts["damaged_length"] = min(counts["damaged_length"], num_files // 2)
    counts["damaged_header"] = min(counts["damaged_header"], (num_files - 1) // 2)
    counts["truncated"] = 1
    counts["good"] = num_documents - sum(counts.values())
    return counts


class _Pages:
    """All pages of a crawl, each made when it is asked for."""

    def __init__(
        self,
        num_documents: int,
        documents_per_file: int,
        seed: int,
        languages: tuple[str, ...],
        library: Library,
    ) -> None:
        self.num_documents, self.documents_per_file, self.seed = (
            num_documents,
            documents_per_file,
            seed,
        )
        self.num_files = -(-num_documents // documents_per_file)
        counts = _count_kinds(num_documents, self.num_files)
        stops = list(itertools.accumulate(counts.values()))
        self.roles = {
            kind: range(stop - counts[kind], stop) for kind, stop in zip(counts, stops, strict=True)
        }
        self._kinds, self._stops = tuple(counts), stops
        self.num_tails = sum(counts[kind] for kind in TAIL_KINDS)
        self._role_of = _Permutation(num_documents - self.num_tails, seed, "order")

        others = tuple(language for language in _ISO_639_3 if language not in languages)
        self.languages = languages
        self.foreign = others[
            : max(1, counts["foreign"] // 4)
        ]  # at least four pages, so two per site, in each
        self._mojibake_languages = tuple(
            language for language in (*languages, *self.foreign) if language != "en"
        )
        max_paragraphs = num_documents * MAX_PARAGRAPHS
        self.texts = {
            language: _summary_texts(library, language, max_paragraphs, seed)
            for language in languages
        }
        self.texts |= {
            language: _sentence_texts(library, language, max_paragraphs, seed)
            for language in self.foreign
        }
        self.sites = {language: self._make_sites(language, counts) for language in self.texts}

    def _make_sites(self, language: str, counts: dict[str, int]) -> list[_Site]:
        """As many as the root of the number of good pages: each has at least two, so all its lines are repeated."""
        kind, group = (
            ("good", self.languages) if language in self.languages else ("foreign", self.foreign)
        )
        num_sites = math.isqrt(counts[kind] // len(group))
        assert num_sites >= 2, f"{counts[kind]} {kind} pages are too few for {len(group)} languages"
        return [_make_site(language, index, self.seed) for index in range(num_sites)]

    def at(self, position: int) -> _Page:
        """The page at a position of the crawl.

        The roles of TAIL_KINDS, which are the highest, end the first files, one each, and the crawl; a permutation
        spreads all others over what is left.
        """
        file, record = divmod(position, self.documents_per_file)
        num_tailed_files = self.num_tails - 1  # the truncated page left out
        if position == self.num_documents - 1:
            return self.page(position)
        if record == self.documents_per_file - 1 and file < num_tailed_files:
            return self.page(self.num_documents - self.num_tails + file)
        return self.page(self._role_of(position - min(file, num_tailed_files)))

    def place(self, role: int) -> _Place:
        """Kind, language and site of a role."""
        kind = self._kinds[bisect_right(self._stops, role)]
        offset = role - self.roles[kind].start
        source = self.source(kind, offset)
        group = {"foreign": self.foreign, "mojibake": self._mojibake_languages}.get(
            kind, self.languages
        )
        language = group[offset % len(group)] if source is None else source.language
        sites = self.sites[language]
        if kind in {"good", "foreign"}:
            site = sites[offset // len(group) % len(sites)]
        else:
            site = sites[_keyed_hash(self.seed, "site of", role) % len(sites)]
        return _Place(
            role, kind, offset, language, site, f"https://{site.host}/articles/{role}.html"
        )

    def source(self, kind: str, offset: int) -> _Place | None:
        """Where the page that a copy copies stands."""
        if kind not in SOURCE_OF:
            return None
        sources = self.roles[SOURCE_OF[kind]]
        return self.place(sources[offset % len(sources)])

    def page(self, role: int) -> _Page:
        """The page of a role, which its copies know as well as its own position does."""
        place = self.place(role)
        source = self.source(place.kind, place.offset)
        nav, footer = place.site.nav, place.site.footer
        if place.kind == "mirror_copy" and source is not None and place.offset % 2 == 0:
            nav, footer = (
                source.site.nav,
                source.site.footer,
            )  # the other half put their own site's lines around it
        if place.kind == "short":
            nav, footer = nav[:3], ()
        titled = role if source is None else source.role
        title = _Draws(self.seed, "title", titled).pick(self.texts[place.language].titles)
        paragraphs, num_shared = (
            self._written(place) if source is None else self._copied(place, source)
        )
        return _Page(
            place,
            None if source is None else source.url,
            title,
            nav,
            paragraphs,
            footer,
            num_shared,
        )

    def _own(self, place: _Place) -> list[str]:
        """Paragraphs that no other role has: their numbers are its own."""
        draws = _Draws(self.seed, "paragraphs", place.role)
        least = 4 if place.kind == "partial_source" else 2
        num_paragraphs = max(
            least, 2 + int((MAX_PARAGRAPHS - 1) * draws.random() ** 2)
        )  # squared: more short pages
        first = place.role * MAX_PARAGRAPHS
        return [
            self.texts[place.language].paragraph(n, draws)
            for n in range(first, first + num_paragraphs)
        ]

    def _copied(self, place: _Place, source: _Place) -> tuple[list[str], int]:
        """Paragraphs of a copy, and how many of them its source has too."""
        theirs = self._own(source)
        if place.kind == "mirror_copy":
            return theirs, len(theirs)
        if place.kind == "near_copy":
            draws = _Draws(self.seed, "edits", place.role)
            return [self.texts[place.language].edited(p, draws) for p in theirs], 0
        shared = theirs[: len(theirs) // 2]
        return self._own(place) + shared, len(shared)

    def _written(self, place: _Place) -> tuple[list[str], int]:
        """Paragraphs of a page that copies none, and how many of them a copy of it has."""
        if place.kind == "boilerplate":
            return [], 0
        if place.kind == "keyword_spam":
            return _spam(place, _Draws(self.seed, "spam", place.role)), 0
        own = self._own(place)
        if place.kind == "mirror_source":
            return own, len(own)
        if place.kind == "partial_source":
            return own, len(own) // 2  # one copy each, since both kinds have the same share
        if place.kind == "word_salad":
            draws = _Draws(self.seed, "salad", place.role)
            return [" ".join(draws.shuffled(p.split())) for p in own], 0
        spoil = _SPOILED.get(place.kind)
        return (own if spoil is None else spoil(place, own)), 0


def _spam(place: _Place, draws: _Draws) -> list[str]:
    """Lines of 14 to 24 commercial words: over 16 ** 14 of them, so that no two are the same."""
    words = _PHRASES.get(place.language, _PHRASES["en"]).commercial_words
    return [
        " ".join(draws.pick(words) for _ in range(14 + draws.below(11)))
        for _ in range(6 + draws.below(7))
    ]


def _misread(place: _Place, paragraphs: list[str]) -> list[str]:
    """Mojibake in all paragraphs, or in every second one."""
    return [
        p if i % 2 and place.offset % 2 else p.encode().decode("windows-1252", errors="replace")
        for i, p in enumerate(paragraphs)
    ]


_SPOILED: dict[str, Callable[[_Place, list[str]], list[str]]] = {
    # A host (40 characters), two words (36), three newlines and this make under 300.
    "short": lambda _, own: [own[0][:200].rstrip()],
    "mojibake": _misread,
    # A lone surrogate becomes the byte 0xA0 when it is written with surrogateescape: Windows-1252's no-break space.
    "damaged_utf8": lambda _, own: [p.replace(" ", "\udca0", 3) for p in own],
    "damaged_nul": lambda _, own: [p.replace(" ", "\0 ", 3) for p in own],
}


# ---- Records: page -> bytes.


def _record(
    record_type: str, fields: Iterable[tuple[str, str]], content_type: str, block: bytes
) -> bytes:
    """One WARC 1.0 record (ISO 28500:2009), its fields in Common Crawl's order."""
    digest = base64.b32encode(hashlib.sha1(block, usedforsecurity=False).digest()).decode()
    named = "".join(f"{name}: {value}\r\n" for name, value in fields)
    head = (
        f"WARC/1.0\r\nWARC-Type: {record_type}\r\n{named}WARC-Block-Digest: sha1:{digest}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def _member(record: bytes) -> bytes:
    """A gzip member (RFC 1952) without a time in it."""
    return zlib.compress(record, GZIP_LEVEL, wbits=31)


def _record_id(seed: int, key: object, record_type: str) -> str:
    return (
        f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'sample-crawl/{seed}/{key}/{record_type}')}>"
    )


def _date(position: int) -> str:
    minute, second = divmod(position % 3600, 60)
    return f"2026-11-01T00:{minute:02}:{second:02}Z"


def _warcinfo(name: str, seed: int) -> bytes:
    block = (
        f"isPartOf: CC-MAIN-SAMPLE\r\npublisher: corpusmill\r\n"
        f"description: synthetic crawl made of real sentences, version {VERSION}, seed {seed}\r\n"
        f"format: WARC File Format 1.0\r\n\r\n"
    )
    fields = [
        ("WARC-Date", "2026-11-01T01:00:00Z"),
        ("WARC-Filename", name),
        ("WARC-Record-ID", _record_id(seed, name, "warcinfo")),
    ]
    return _member(_record("warcinfo", fields, "application/warc-fields", block.encode()))


def _damaged(kind: str, record: bytes) -> bytes:
    """The gzip member of a page's record, with the fault of its kind."""
    match kind:
        case "damaged_type":
            record = re.sub(rb"WARC-Type: .*\r\n", b"", record, count=1)
        case "damaged_uri":
            record = re.sub(rb"WARC-Target-URI: .*\r\n", b"", record, count=1)
        case "damaged_length":
            record = re.sub(rb"Content-Length: ", b"Content-Length: 9", record, count=1)
        case "damaged_header":
            record = b"\x00\xfe\xc3(\x89PNG\r\n" + record[10:]
        case _:
            pass
    member = _member(record)
    return member[: len(member) // 2] if kind == "truncated" else member


@dataclass(frozen=True)
class _Envelope:
    """What the records of one page have in common."""

    place: _Place
    position: int
    seed: int

    def id_of(self, record_type: str) -> str:
        return _record_id(self.seed, self.place.role, record_type)

    def record(
        self, record_type: str, fields: Sequence[tuple[str, str]], content_type: str, block: bytes
    ) -> bytes:
        common = (
            ("WARC-Target-URI", self.place.url),
            ("WARC-Date", _date(self.position)),
            ("WARC-Record-ID", self.id_of(record_type)),
        )
        return _record(record_type, (*common, *fields), content_type, block)


def _wet_members(page: _Page, envelope: _Envelope) -> list[bytes]:
    """The conversion record of a page."""
    text = "\n".join((page.title, *page.lines, ""))
    fields = [
        ("WARC-Refers-To", envelope.id_of("response")),
        ("WARC-Identified-Content-Language", _ISO_639_3[page.place.language]),
    ]
    record = envelope.record(
        "conversion", fields, "text/plain", text.encode(errors="surrogateescape")
    )
    return [_damaged(page.place.kind, record)]


def _warc_members(page: _Page, envelope: _Envelope) -> list[bytes]:
    """Request, response and metadata records of a page; nothing stands behind a response that breaks the framing."""
    place = page.place
    to_request = [("WARC-Concurrent-To", envelope.id_of("request"))]
    request = envelope.record(
        "request", (), "application/http; msgtype=request", _http_request(place)
    )
    response = envelope.record(
        "response",
        to_request,
        "application/http; msgtype=response",
        _http_response(page, envelope.seed),
    )
    members = [_member(request), _damaged(place.kind, response)]
    if place.kind not in TAIL_KINDS:
        to_response = [("WARC-Refers-To", envelope.id_of("response"))]
        block = f"fetchTimeMs: {50 + place.role % 500}\r\nlanguages-identified: {_ISO_639_3[place.language]}\r\n"
        members.append(
            _member(
                envelope.record("metadata", to_response, "application/warc-fields", block.encode())
            )
        )
    return members


def _http_request(place: _Place) -> bytes:
    return (
        f"GET /articles/{place.role}.html HTTP/1.1\r\nUser-Agent: CCBot/2.0 (https://commoncrawl.org/faq/)\r\n"
        f"Accept: text/html\r\nHost: {place.site.host}\r\n\r\n"
    ).encode()


def _http_response(page: _Page, seed: int) -> bytes:
    """Headers and HTML, some in an old charset that the header or else a meta element names."""
    draws = _Draws(seed, "charset", page.place.role)
    charset = _LEGACY_CHARSETS.get(page.place.language, "utf-8")
    is_legacy = (
        draws.random() < LEGACY_SHARE
        and charset != "utf-8"
        and not page.place.kind.startswith("damaged")
    )
    if is_legacy:
        is_in_header = draws.random() < 0.5
        meta = "" if is_in_header else f'<meta charset="{charset}">\n'
        # A character reference stands for what the charset lacks, as authors write it.
        payload = _html(page, meta).encode(charset, errors="xmlcharrefreplace")
    else:
        charset, is_in_header = "utf-8", True
        payload = _html(page, '<meta charset="utf-8">\n').encode(errors="surrogateescape")
    content_type = f"text/html; charset={charset}" if is_in_header else "text/html"
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def _html(page: _Page, meta: str) -> str:
    nav, paragraphs, footer = (
        [html.escape(s, quote=False) for s in part]
        for part in (page.nav, page.paragraphs, page.footer)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="{page.place.language}">\n<head>\n{meta}'
        f"<title>{html.escape(page.title, quote=False)}</title>\n"
        "<style>nav a { color: #036 }</style>\n<script>var page = { ads: true };</script>\n</head>\n<body>\n<nav>\n"
        + "".join(f'<div><a href="/{i}">{s}</a></div>\n' for i, s in enumerate(nav))
        + "</nav>\n<main>\n"
        + "".join(f"<p>{s}</p>\n" for s in paragraphs)
        + "</main>\n<footer>\n"
        + "".join(f"<p>{s}</p>\n" for s in footer)
        + "</footer>\n</body>\n</html>\n"
    )


# ---- Files.


def _file_names(num_files: int, format: Format, layout: Layout) -> list[str]:
    folder = (
        f"crawl-data/CC-MAIN-SAMPLE/segments/1793491200000.00/{format}/"
        if layout == "common-crawl"
        else ""
    )
    end = "warc.wet.gz" if format == "wet" else "warc.gz"
    return [f"{folder}CC-MAIN-20261101000000-20261101010000-{i:05}.{end}" for i in range(num_files)]


@contextlib.contextmanager
def _made_whole(out: Path) -> Generator[Path]:
    """A folder beside `out` that takes its place when the block ends well, and is removed when it does not."""
    aside = out.with_name(f".{out.name}.{uuid.uuid4().hex[:12]}")
    aside.mkdir(parents=True)
    try:
        yield aside
        aside.replace(out)
    except BaseException:
        shutil.rmtree(aside)
        raise


def _write_files(
    folder: Path, names: Sequence[str], pages: _Pages, format: Format, say: Say
) -> int:
    """Write the WARC files and the truth beside them; returns the bytes of the former."""
    render, page_record = (
        (_wet_members, "conversion") if format == "wet" else (_warc_members, "response")
    )
    positions = iter(range(pages.num_documents))
    num_bytes = 0
    with _truth_writer(folder / "truth.parquet") as tell:
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(_warcinfo(path.name, pages.seed))
                for record, position in enumerate(
                    itertools.islice(positions, pages.documents_per_file)
                ):
                    page = pages.at(position)
                    envelope = _Envelope(page.place, position, pages.seed)
                    file.writelines(render(page, envelope))
                    tell(_truth_row(page, name, record, envelope.id_of(page_record)))
                num_bytes += file.tell()
            say(f"wrote {name}")
    return num_bytes


def _truth_row(page: _Page, file: str, record: int, record_id: str) -> tuple[object, ...]:
    """A row of TRUTH."""
    place = page.place
    has_counts = page.fate not in {"too_short", "quarantined"} and not place.kind.startswith(
        "damaged"
    )
    num_repeated = len(page.nav) + len(page.footer) + page.num_shared_paragraphs
    counts = (len(page.lines) - num_repeated, num_repeated) if has_counts else (None, None)
    who = (place.kind, place.language, place.site.host, page.source_url, page.fate)
    return (place.url, file, record, record_id, *who, *counts)


@contextlib.contextmanager
def _truth_writer(path: Path) -> Generator[Callable[[tuple[object, ...]], None]]:
    """A function that takes the rows of TRUTH one by one and holds one row group of them at most."""
    rows: list[tuple[object, ...]] = []

    def flush() -> None:
        columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), TRUTH, strict=True)]
        writer.write_table(pa.table(columns, schema=TRUTH))
        rows.clear()

    def tell(row: tuple[object, ...]) -> None:
        rows.append(row)
        if len(rows) == TRUTH_ROWS_PER_GROUP:
            flush()

    with pq.ParquetWriter(path, TRUTH, compression="zstd") as writer:
        yield tell
        if rows:
            flush()


def _write_paths_list(folder: Path, names: Sequence[str], format: Format) -> Path:
    """The list of files that lies beside each crawl of Common Crawl; returns its path under `folder`."""
    path = Path(f"crawl-data/CC-MAIN-SAMPLE/{format}.paths.gz")
    (folder / path).write_bytes(
        gzip.compress("".join(f"{name}\n" for name in names).encode(), mtime=0)
    )
    return path
