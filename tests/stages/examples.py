"""One example per stage: settings, and rows that reach each of its reasons.

A new stage needs an entry in EXAMPLES.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fasttext
import pyarrow as pa
import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers

from stages.contract import DOC_ID, Settings, Stage
from stages.counters import Counters
from stages.dedup.exact_dedup import ExactDedupFilter
from stages.dedup.minhash import (
    MinHash,
    MinHashFilter,
    MinHashSettings,
)
from stages.dedup.paragraphs import (
    ParagraphHashes,
    ParagraphRemoval,
)
from stages.dedup.substring_dedup import RepeatedSpans
from stages.filters.classifiers import (
    MODEL_FILE,
    Classifiers,
    ClassifiersFilter,
    ClassifiersFilterSettings,
    ClassifiersSettings,
)
from stages.filters.decontamination import (
    Decontamination,
    DecontaminationFilter,
    DecontaminationFilterSettings,
    DecontaminationSettings,
)
from stages.filters.language import (
    Language,
    LanguageFilter,
    LanguageFilterSettings,
    LanguageSettings,
)
from stages.filters.length import Length, LengthSettings
from stages.filters.lines import Lines, LinesSettings
from stages.filters.perplexity import (
    Perplexity,
    PerplexityFilter,
    PerplexityFilterSettings,
    PerplexitySettings,
)
from stages.filters.quality import (
    Quality,
    QualityFilter,
    QualityFilterSettings,
    QualitySettings,
)
from stages.filters.score import Score
from stages.filters.url import Url, UrlSettings
from stages.histograms import SCORE_BINS, SIGNAL_BINS
from stages.mixing.mix import Mix
from stages.settings.quality import MixSettings, ScoreSettings
from stages.transform.pii import Pii, PiiSettings
from stages.transform.tokenize import Tokenize, TokenizeSettings
from stages.transform.unicode import Unicode, UnicodeSettings

Row = Mapping[str, Any]

REFERENCE_LABEL = "__label__reference"
CRAWL_LABEL = "__label__crawl"


# Bin of `SIGNAL_BINS` -> documents: texts of 10, 100 and 1,000 characters.
LENGTHS = Counter(SIGNAL_BINS.find([10, 100, 1000]).tolist())


def count_scores(*scores: float) -> Counter[int]:
    """Return the histogram of scores of a classifier."""
    return Counter(SCORE_BINS.find(scores).tolist())


@dataclass(frozen=True)
class Example:
    """Settings and rows of a stage.

    `ordinary` is kept; `dropped` has a row for every reason.
    """

    stage: type[Stage[Any]]
    settings: Settings
    ordinary: Row
    # reason without its prefix -> what differs from the ordinary row
    dropped: Mapping[str, Row]
    run_counters: Counters | None = None

    @property
    def label(self) -> str:
        """The name of the example in test ids."""
        return self.stage.__name__

    def rows(self) -> list[Row]:
        """Return the ordinary row, before and after each of the others."""
        rows = [self.ordinary]
        for difference in self.dropped.values():
            rows += [{**self.ordinary, **difference}, self.ordinary]
        return rows

    def batch(self, rows: Sequence[Row] | None = None) -> pa.Table:
        """Return rows as a batch of the columns that the stage needs.

        Missing values are null.
        """
        rows = self.rows() if rows is None else rows
        fields = [
            DOC_ID,
            *(
                field
                for field in self.stage.required_columns(self.settings)
                if field.name != "doc_id"
            ),
        ]
        columns = [pa.array([row.get(f.name) for row in rows], f.type) for f in fields[1:]]
        ids = pa.array(range(5 << 32, (5 << 32) + len(rows)), pa.uint64())
        return pa.table([ids, *columns], schema=pa.schema(fields))

    def made(self, files: Mapping[str, Path]) -> Stage[Any]:
        """Return the stage before it is opened."""
        wanted = self.stage.required_files(self.settings)
        chosen = {reference: files[reference] for reference in wanted}
        return self.stage(self.settings, chosen, self.run_counters)


_TEXT = (
    "The treaty was signed in the museum of history.\nA second line of the page, of 1984."
)

_ORDINARY_SIGNALS = {
    **{field.name: 0 for field in Quality.adds},
    "language": "en",
    "rps_doc_word_count": 200,
    "rps_doc_mean_word_length": 5.0,
    "num_sentences": 10,
    "num_stop_words": 5,
    "frac_lines_end_with_terminal_punctuation": 1.0,
}

_BROKEN_SIGNALS: Mapping[str, Row] = {
    "words_too_few": {"rps_doc_word_count": 10},
    "words_too_many": {"rps_doc_word_count": 200_000},
    "words_too_short": {"rps_doc_mean_word_length": 1.0},
    "words_too_long": {"rps_doc_mean_word_length": 50.0},
    "hashes_too_many": {"hash_to_word_ratio": 0.5},
    "ellipses_too_many": {"ellipsis_to_word_ratio": 0.5},
    "bullet_lines_too_many": {"frac_lines_start_with_bulletpoint": 1.0},
    "ellipsis_lines_too_many": {"rps_doc_frac_lines_end_with_ellipsis": 1.0},
    "alpha_words_too_few": {"frac_words_without_letter": 1.0},
    "stop_words_too_few": {"num_stop_words": 0},
    "duplicate_lines_too_many": {"frac_dupe_lines": 1.0},
    "duplicate_paragraphs_too_many": {"frac_dupe_paragraphs": 1.0},
    "duplicate_lines_too_long": {"frac_chars_dupe_lines": 1.0},
    "duplicate_paragraphs_too_long": {"frac_chars_dupe_paragraphs": 1.0},
    "terminal_lines_too_few": {"frac_lines_end_with_terminal_punctuation": 0.0},
    "short_lines_too_many": {"frac_short_lines": 1.0},
    "newlines_too_many": {"newline_to_word_ratio": 1.0},
    "sentences_too_few": {"num_sentences": 1},
    "lorem_ipsum_too_frequent": {"rps_doc_lorem_ipsum": 0.01},
    "curly_brackets_too_many": {"rps_doc_curly_bracket": 0.01},
    "bad_words_too_many": {"rps_doc_ldnoobw_words": 1},
    **{f"top_{n}gram_too_frequent": {f"frac_chars_top_{n}gram": 1.0} for n in (2, 3, 4)},
    **{
        f"duplicate_{n}grams_too_many": {f"frac_chars_dupe_{n}grams": 1.0}
        for n in (5, 6, 7, 8, 9, 10)
    },
}

# In the order of the chain.
EXAMPLES = (
    Example(
        Url,
        UrlSettings(
            domains=("tiny-domains",),
            subwords=("subword",),
            hard_words=("hard",),
            soft_words=("soft", "mild"),
            patterns=(r"\.php\?",),
            curated=("wikipedia.org",),
        ),
        {"url": "https://www.example.org/soft/page"},
        {
            "domain_blocked": {"url": "http://a.blocked.example:80/"},
            "subword": {"url": "http://example.org/a-sub-word"},
            "hard_word": {"url": "http://example.org/HARD/"},
            "soft_words": {"url": "http://soft.example.org/?q=mild"},
            "pattern": {"url": "http://example.org/x.php?y"},
            "curated": {"url": "https://en.wikipedia.org/wiki/X"},
        },
    ),
    Example(Unicode, UnicodeSettings(), {"text": f"{_TEXT} schÃ¶n &lt;3"}, {}),
    Example(
        Length,
        LengthSettings(min_chars=20, max_chars=200),
        {"text": _TEXT},
        {"too_few_chars": {"text": "short"}, "too_many_chars": {"text": "long " * 100}},
    ),
    Example(ParagraphHashes, Settings(), {"text": _TEXT}, {}),
    Example(
        ParagraphRemoval,
        Settings(),
        {"text": _TEXT, "duplicate_lines": [1]},
        {"none_left": {"duplicate_lines": [0, 1]}},
    ),
    Example(
        Lines,
        LinesSettings(min_sentences=2),
        {"text": _TEXT, "kept_lines": [0, 4]},
        {
            "lorem_ipsum": {
                "text": f"{_TEXT}\nLorem ipsum dolor sit amet.",
                "kept_lines": [0, 1, 2],
            },
            "curly_bracket": {
                "text": f"{_TEXT}\nif (this) {{ then do that. }}.",
                "kept_lines": [0, 1, 2],
            },
            "sentences_too_few": {
                "text": "The treaty was signed in the museum.\nHome",
                "kept_lines": [0, 1],
            },
            "none_left": {"text": "Home\nContact", "kept_lines": [0, 1]},
        },
    ),
    Example(Language, LanguageSettings(model="tiny-lid"), {"text": _TEXT}, {}),
    Example(
        LanguageFilter,
        LanguageFilterSettings(min_score=0.5, keep=("en",)),
        {"language": "en", "language_score": 0.9},
        {"score_too_low": {"language_score": 0.49}, "not_wanted": {"language": "fr"}},
    ),
    Example(
        Perplexity,
        PerplexitySettings(models={"en": "tiny-lm"}),
        {"text": _TEXT, "language": "en"},
        {},
    ),
    Example(
        PerplexityFilter,
        PerplexityFilterSettings(cutoffs={"en": (340, 520)}, keep=("head", "all")),
        {"language": "en", "perplexity": 100.0},
        {"bucket_not_wanted": {"perplexity": 900.0}},
    ),
    Example(
        Classifiers,
        ClassifiersSettings.model_validate(
            {
                "hq": {"model": "tiny-reference", "label": REFERENCE_LABEL},
                "wikipedia_reference": {
                    "models": {"en": "tiny-reference"},
                    "label": REFERENCE_LABEL,
                    "decimals": 4,
                },
            }
        ),
        {"text": _TEXT, "language": "en"},
        {},
    ),
    Example(
        ClassifiersFilter,
        ClassifiersFilterSettings.model_validate(
            {"hq": {"min": 0.2, "keep_top": 1}, "toxic": {"max": 0.5}}
        ),
        {"classifier_hq": 0.3, "classifier_toxic": None, "language": "en"},
        {
            "score_too_low": {"classifier_hq": 0.1},
            "score_too_high": {"classifier_toxic": 0.6},
            "not_in_top": {"classifier_hq": 0.25},
        },
        Counters(histograms={"classifier.hq.en": count_scores(0.3)}),
    ),
    Example(
        Score,
        ScoreSettings.model_validate(
            {
                "signals": {"num_chars": 1, "perplexity": -2},
                "min": 0.2,
                "keep_top": 1,
            }
        ),
        {"num_chars": 1000, "perplexity": None, "language": "en"},
        {"too_low": {"num_chars": 1}, "not_in_top": {"num_chars": 100}},
        Counters(
            histograms={
                "signal.num_chars.en": LENGTHS,
                "signal.perplexity.en": Counter({0: 1}),
                "score.en": count_scores(0.6),
            }
        ),
    ),
    Example(
        Mix,
        MixSettings.model_validate(
            {
                "by": "num_chars",
                "bins": [
                    {"from_percentile": 0, "num_copies": 0},
                    {"from_percentile": 40, "num_copies": 1},
                    {"from_percentile": 70, "num_copies": 2.5},
                ],
                "budget": {"num_tokens": 2500},
            }
        ),
        {"num_chars": 1000, "language": "en"},
        {"no_copy": {"num_chars": 10}, "over_budget": {"num_chars": 100}},
        Counters(
            counts=Counter({"sampled_chars.en": 1, "sampled_tokens.en": 1}),
            histograms={
                "mix_documents.en": LENGTHS,
                "mix_chars.en": Counter(dict(zip(LENGTHS, (10, 100, 1000), strict=True))),
            },
        ),
    ),
    Example(
        Quality,
        QualitySettings(bad_words={"en": "tiny-domains"}),
        {"text": _TEXT, "language": "en"},
        {},
    ),
    Example(
        QualityFilter,
        QualityFilterSettings(
            min_terminal_line_share=0.1,
            max_short_line_share=0.5,
            max_newlines_per_word=0.3,
            min_sentences=3,
            max_lorem_ipsum_share=0,
            max_curly_bracket_share=0,
            max_bad_words=0,
        ),
        _ORDINARY_SIGNALS,
        _BROKEN_SIGNALS,
    ),
    Example(
        Decontamination,
        DecontaminationSettings(sets={"test": "tiny-set"}),
        {"text": _TEXT},
        {},
    ),
    Example(
        DecontaminationFilter,
        DecontaminationFilterSettings(max_share=0.1),
        {"contamination": [{"set": "test", "words": 13, "share": 0.1}]},
        {"share_too_high": {"contamination": [{"set": "test", "words": 13, "share": 0.2}]}},
    ),
    Example(
        ExactDedupFilter,
        Settings(),
        {"copy_by": None},
        {"same_digest": {"copy_by": "digest"}, "same_text": {"copy_by": "text"}},
    ),
    Example(
        RepeatedSpans,
        Settings(),
        {
            "text": _TEXT,
            "repeated_spans": [0, 2],
            "drop_repeated": False,
            "duplicate_lines": [],
        },
        {"repeated_span": {"drop_repeated": True}},
    ),
    Example(MinHash, MinHashSettings(), {"text": _TEXT}, {}),
    Example(
        MinHashFilter,
        Settings(),
        {"representative": None},
        {"near_duplicate": {"representative": 3}},
    ),
    Example(Pii, PiiSettings(), {"text": f"{_TEXT} ann@example.org, 8.8.8.8"}, {}),
    Example(
        Tokenize,
        TokenizeSettings(tokenizer="tiny-unigram", end_of_document="</s>"),
        {"text": _TEXT},
        # Inside the encoder a special token is spelled U+FFFF and its number, which no honest page contains.
        {"error_reserved_id": {"text": "fine \uffff1"}},
    ),
)

# Texts that a crawl holds and a stage must survive.
HOSTILE: Mapping[str, str | None] = {
    "no text": None,
    "empty": "",
    "blanks": " \n\t \u3000\n ",
    "NULs": "\0\0a\0\n\0",
    "lone combining marks": "\u0301\u0327\n\u0301",
    "right to left": "مرحبا بالعالم\nשלום \u202eabc\u202c עולם",
    "byte order mark and joiners": "\ufeff👩‍👩‍👧‍👦 \u200b\u200d🏳️‍🌈",
    "carriage returns": "a\rb\r\nc\x85d\u2028e\x0bf",
    "beyond the basic plane": "𝔘𝔫𝔦 𐍈 \U0010ffff \uffff \ue000 \ufffd",
    "spelled special tokens": "</s><unk> <|endoftext|> __label__en",
    "one line of 1 MB": "word " * 200_000,
    "one word of 1 MB": "a" * 1_000_000,
    "50,000 lines": "x\n" * 50_000,
}


def tiny_lid(path: Path) -> Path:
    """Train a fastText model that separates English from French."""
    return _trained(
        path,
        {
            "__label__en": "the treaty was signed in the museum",
            "__label__fr": "le chat et la souris",
        },
    )


def tiny_reference(folder: Path) -> Path:
    """Return `folder` with a classifier of references in English."""
    lines = {
        REFERENCE_LABEL: "the treaty was signed",
        CRAWL_LABEL: "buy cheap shoes online",
    }
    return tiny_classifier(folder, lines)


def tiny_classifier(folder: Path, lines: Mapping[str, str]) -> Path:
    """Return `folder` with a fastText model of one line per label."""
    _trained(folder / MODEL_FILE, lines)
    return folder


def _trained(path: Path, lines: Mapping[str, str]) -> Path:
    corpus = path.with_suffix(".txt")
    corpus.write_text(
        "\n".join([f"{label} {text}" for label, text in lines.items()] * 50) + "\n",
        encoding="utf-8",
    )
    # fastText 0.9.3 draws a tenth of the weights per thread and leaves the rest as malloc gave them: NaN, now and then.
    model = fasttext.train_supervised(
        str(corpus), dim=10, epoch=20, lr=0.5, thread=11, verbose=0
    )
    model.save_model(str(path))
    return path


_ARPA = """\\data\\
ngram 1=6
ngram 2=2

\\1-grams:
-2.0\t<unk>\t0
-99\t<s>\t-0.4
-1.1\t</s>
-0.7\t▁the\t-0.3
-1.2\t▁treaty\t-0.2
-0.9\t▁signed\t-0.1

\\2-grams:
-0.3\t<s> ▁the
-0.6\t▁the ▁treaty

\\end\\
"""


def tiny_lm(folder: Path) -> Path:
    """Return a folder with a SentencePiece model and a KenLM model of a few words."""
    pieces = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            [
                "the treaty was signed",
                "the museum of history",
                "a second line of the page 0",
            ]
            * 40
        ),
        model_writer=pieces,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    (folder / "en.sp.model").write_bytes(pieces.getvalue())
    (folder / "en.arpa.bin").write_text(_ARPA, encoding="utf-8")
    return folder


def tiny_lines(path: Path, *lines: str) -> Path:
    """Write a text file and return its path."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def tiny_unigram(path: Path) -> Path:
    """Write a Unigram tokenizer.json of single letters, with </s> as token 1."""
    letters = [(letter, -3.0) for letter in "▁abcdefghijklmnopqrstuvwxyzTA.,1984"]
    tokenizer = tokenizers.Tokenizer(
        models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *letters], unk_id=0)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.save(str(path))
    return path
