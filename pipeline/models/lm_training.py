"""Train CCNet's language models: SentencePiece and KenLM.

    record = train_lm(read_texts([Path("wikipedia-de.txt.gz")]), "de", Path("models/de"))
    record["cutoffs"]["30"]     # 351.2: 30 % of the held-out documents have a lower perplexity

The folder then has `<language>.sp.model`, `<language>.arpa.bin` and `record.json`. Equal texts,
settings and versions give equal bytes, including `record.json`. Training and scoring normalize text
with the same function, `stages.filters.language_model.normalize_for_lm`.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.models.corpus import (
    MIN_HELD_OUT_DOCS,
    TextDigest,
    TrainingFailed,
    is_held_out,
    list_versions,
    write_model,
)
from pipeline.models.kenlm_build import (
    ORDER,
    STRUCTURE,
    estimate_lm,
    kenlm_tools,
    lmplz_version,
)
from stages.filters import language_model
from terminal_output import format_count

log = logging.getLogger(__name__)

# Small corpora get one piece per this many characters, so that each piece is seen often enough.
#
# CCNet's 65,536 pieces are reached at 26 M characters. Its Makefile uses 40,000 for corpora that are
# too small for them.
CHARS_PER_PIECE = 400
MAX_PIECES = 65_536
_MORE_PIECES_THAN_CHARS = 256

# SentencePiece's default. Its sums are made per thread, so the pieces depend on this number.
#
# It is therefore fixed, regardless of the number of cores.
NUM_THREADS = 16

# Of the documents, for the cutoffs. CCNet used documents of the crawl.
HELD_OUT_SHARE = 0.1

_PERCENTILES = range(1, 100)


def train_lm(
    texts: Iterable[str],
    language: str,
    out: Path,
    vocab_size: int | None = None,
    *,
    kenlm: tuple[Path, Path] | None = None,
) -> dict[str, Any]:
    """Train SentencePiece (unigram) and KenLM. Each normalized document is one sentence.

    Source: cc_net's Makefile (`spm_train`, `lmplz -o 5 --discount_fallback`, `build_binary`) and
    arXiv:1911.00359, section 3.3. Texts are read once and kept on disk, not in memory.

    Args:
        texts: documents: the openings of Wikipedia articles, as in CCNet, or other reference text.
        language: the code in the names of the files.
        out: folder to write; created if needed. It is complete when it has `record.json`.
        vocab_size: largest number of pieces; None: by the size of the texts, MAX_PIECES at most.
        kenlm: paths of lmplz and build_binary; default: `kenlm_tools()`.

    Returns:
        The content of `record.json`, see `_train_into`.

    Raises:
        TrainingFailed: too few texts, or a tool failed.
        AssetError: the tools cannot be fetched or built.
    """
    tools = kenlm or kenlm_tools()
    return write_model(
        out,
        _name_files(language),
        lambda scratch: _train_into(scratch, texts, language, vocab_size, tools),
    )


def _train_into(
    scratch: Path,
    texts: Iterable[str],
    language: str,
    vocab_size: int | None,
    tools: tuple[Path, Path],
) -> dict[str, Any]:
    """Write the files of the model into `scratch`.

    Returns:
        The record. `texts` has num_docs, num_chars and sha256 of the texts in the given order.
        `cutoffs` has the percentiles "1" to "99" of the held-out documents' perplexity.
    """
    pieces_file, lm_file = map(scratch.joinpath, _name_files(language))
    corpus = _split_corpus(texts, scratch)
    corpus.require_enough(language)

    log.info("%s: learning pieces from %.1f M characters", language, corpus.num_chars / 1e6)
    num_pieces = _train_pieces(
        corpus, pieces_file, vocab_size or corpus.choose_vocab_size()
    )

    log.info("%s: training an n-gram model over %s pieces", language, f"{num_pieces:,}")
    encoded_file = scratch / "pieces"
    _encode_pieces(corpus.train_file, pieces_file, encoded_file)
    estimate_lm(tools, encoded_file, lm_file)

    return {
        "kind": "lm",
        "language": language,
        "settings": describe_settings(vocab_size),
        "texts": corpus.texts,
        "num_pieces": num_pieces,
        "num_train_docs": corpus.num_train_docs,
        "num_held_out_docs": corpus.num_held_out_docs,
        "cutoffs": _measure_cutoffs(corpus, scratch, language),
        "versions": list_lm_versions(),
    }


def _name_files(language: str) -> tuple[str, str]:
    """Return the names of the SentencePiece and of the KenLM model, as in CCNet."""
    return f"{language}.sp.model", f"{language}.arpa.bin"


def describe_settings(vocab_size: int | None = None) -> dict[str, Any]:
    """Return the settings that decide the bytes of a language model."""
    return {
        "vocab_size": vocab_size,
        "order": ORDER,
        "structure": STRUCTURE,
        "held_out_share": HELD_OUT_SHARE,
    }


def list_lm_versions() -> dict[str, str]:
    """Return the versions of everything that decides the bytes of a language model."""
    return list_versions("sentencepiece", "kenlm") | {"lmplz": lmplz_version()}


@dataclass(frozen=True)
class _Corpus:
    train_file: Path  # one normalized document per line
    held_out_file: Path  # one JSON string per line, not normalized: scoring normalizes it
    texts: Mapping[str, Any]
    num_train_docs: int
    num_held_out_docs: int
    num_chars: int  # of the training documents, normalized
    num_distinct_chars: int

    def choose_vocab_size(self) -> int:
        """Return one piece per CHARS_PER_PIECE characters, within limits.

        Each character is a piece, so there must be more pieces than characters.
        """
        by_size = self.num_chars // CHARS_PER_PIECE
        least = self.num_distinct_chars + _MORE_PIECES_THAN_CHARS
        return min(max(by_size, least), MAX_PIECES)

    def require_enough(self, language: str) -> None:
        if self.num_held_out_docs < MIN_HELD_OUT_DOCS or not self.num_train_docs:
            raise TrainingFailed(
                f"train lm {language}: {format_count(self.num_train_docs, 'document')} to train on, "
                f"{self.num_held_out_docs} held out; wanted {MIN_HELD_OUT_DOCS} and more held "
                "out: give more text"
            )


def _split_corpus(texts: Iterable[str], scratch: Path) -> _Corpus:
    train_file, held_out_file = scratch / "train.txt", scratch / "held-out.jsonl"
    digest, distinct_chars = TextDigest(), set[str]()
    num_train_docs = num_held_out_docs = num_chars = 0
    with (
        train_file.open("w", encoding="utf-8", newline="\n") as train,
        held_out_file.open("w", encoding="utf-8") as held_out,
    ):
        for text in digest.read(texts):
            line = language_model.normalize_for_lm(text)
            if not line:
                continue
            if is_held_out(text, HELD_OUT_SHARE):
                num_held_out_docs += 1
                held_out.write(json.dumps(text) + "\n")
            else:
                num_train_docs += 1
                num_chars += len(line)
                distinct_chars.update(line)
                train.write(line + "\n")
    return _Corpus(
        train_file,
        held_out_file,
        digest.summarize(),
        num_train_docs,
        num_held_out_docs,
        num_chars,
        len(distinct_chars),
    )


def _train_pieces(corpus: _Corpus, model_file: Path, vocab_size: int) -> int:
    """Write the SentencePiece model. Return its number of pieces."""
    import sentencepiece

    sentencepiece.set_min_log_level(2)  # errors are raised as exceptions
    # Through an iterator and a buffer: otherwise the model would contain the paths of its files.
    model = io.BytesIO()
    with corpus.train_file.open(encoding="utf-8", newline="\n") as lines:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_strip_line_feeds(lines),
                model_writer=model,
                model_type="unigram",
                vocab_size=vocab_size,
                hard_vocab_limit=False,
                character_coverage=0.9995,
                num_threads=NUM_THREADS,
                # The default, 4,192, silently leaves out longer documents.
                max_sentence_length=1 << 24,
                input_sentence_size=0,  # all sentences: no sampling
            )
        except (RuntimeError, OSError) as error:
            raise TrainingFailed(f"SentencePiece: {error}") from error
    model_file.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).vocab_size()


def _strip_line_feeds(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line.rstrip("\n")


def _encode_pieces(train_file: Path, model_file: Path, pieces_file: Path) -> None:
    """Write each training document as its pieces with blanks between them."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    with train_file.open("rb") as lines, pieces_file.open("wb") as out:
        for line in lines:
            pieces = processor.encode(line.rstrip(b"\n"), out_type=bytes)
            out.write(b" ".join(pieces) + b"\n")


def _measure_cutoffs(
    corpus: _Corpus, model_folder: Path, language: str
) -> dict[str, float]:
    """Return the percentiles "1" to "99" of the perplexity of the held-out documents."""
    num_docs = f"{corpus.num_held_out_docs:,}"
    log.info("%s: measuring perplexity on %s held-out documents", language, num_docs)
    model = language_model.LanguageModel(model_folder, language)
    scores: list[float] = []
    with corpus.held_out_file.open(encoding="utf-8") as lines:
        for line in lines:
            score = model.perplexity(json.loads(line))
            if score is not None:
                scores.append(score)
    values = np.percentile(scores, _PERCENTILES)  # (99,) float64
    cutoffs: dict[str, float] = {}
    for percentile, value in zip(_PERCENTILES, values, strict=True):
        cutoffs[str(percentile)] = round(float(value), 1)
    return cutoffs
