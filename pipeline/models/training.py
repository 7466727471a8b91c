"""Train CCNet's language models and LLaMA's is-reference classifier.

Promises: the same texts, settings and versions give the same bytes, `record.json` included; training and scoring read
text in the same form, because both use the functions of stages/; figures are measured on held-out documents, which are
chosen by a hash of their text.
Leaves to others: which texts (demo_texts.py, or the user's files), and where models are kept (asset_cache.py).

    record = train_lm(read_texts([Path("wikipedia-de.txt.gz")]), "de", Path("models/de"))
    record["cutoffs"]["30"]                 # 351.2: three in ten held-out documents have a lower perplexity
    train_reference(cited_pages, crawl_pages, Path("models/reference-de"))["roc_auc"]

A language model's folder holds `<language>.sp.model`, `<language>.arpa.bin` and `record.json`, a classifier's
`model.bin` and `record.json`.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.metadata
import io
import json
import logging
import lzma
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal, cast

import numpy as np

from pipeline.models import demo_texts
from pipeline.models.cache import Asset, Trained, find_known_digest, obtain
from pipeline.models.kenlm_build import (
    KENLM_TOOLS,
    TrainingFailed,
    estimate_lm,
    kenlm_tools,
    lmplz_version,
)
from pipeline.models.published import CC_BY_SA_4, PUBLISHED
from pipeline.runs.phase_folder import to_json
from stages.filters import classifiers, language_model, perplexity
from storage.local import put_file

log = logging.getLogger(__name__)

RECORD_FILE = "record.json"
VERSION = 1
"""Rises whenever equal texts and settings would give other models."""


# ---- texts ----


def read_texts(files: Iterable[Path]) -> Iterator[str]:
    """Documents of the user's files, one per line, in order; blank lines are passed over.

    Args:
        files: `.jsonl`: objects whose key `text` (or `raw_content`, as CCNet has it) is the document; any other name:
            the line is the document. Plain, `.gz` or `.xz`. UTF-8.

    Raises:
        ValueError: a line that is not UTF-8 or not such an object.
    """
    for path in files:
        is_json = path.name.removesuffix(".gz").removesuffix(".xz").endswith(".jsonl")
        with _open_binary(path) as lines:
            for number, line in enumerate(lines, 1):
                if not line.isspace():
                    yield _text_of(line, is_json, f"{path}:{number}")


def _open_binary(path: Path) -> IO[bytes]:
    openers = {".gz": gzip.open, ".xz": lzma.open}
    return cast("IO[bytes]", openers.get(path.suffix, open)(path, "rb"))


def _text_of(line: bytes, is_json: bool, place: str) -> str:
    try:
        if not is_json:
            return line.decode().rstrip("\r\n")
        document = json.loads(line)
        text = document["text"] if "text" in document else document["raw_content"]
        return str.__str__(
            text
        )  # a TypeError for what is no string, where str() would make one of it
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        wanted = "an object with a string text or raw_content" if is_json else "UTF-8"
        raise ValueError(f"{place}: wanted {wanted}, found {line[:60]!r} ({error})") from error


def is_held_out(text: str, share: float) -> bool:
    """Whether a text is for measuring, not for training: by a hash of it, so that repeated texts are on one side."""
    position = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return position < share * 2**64


class _TextDigest:
    """Passes texts through and sums up what went by. Lone surrogates become question marks: UTF-8 has none."""

    def __init__(self) -> None:
        self.num_docs, self.num_chars = 0, 0
        self._sha256 = hashlib.sha256()

    def through(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            encoded = text.encode("utf-8", "replace")
            self.num_docs += 1
            self.num_chars += len(text)
            self._sha256.update(hashlib.sha256(encoded).digest())
            yield encoded.decode()

    def summary(self) -> dict[str, Any]:
        return {
            "num_docs": self.num_docs,
            "num_chars": self.num_chars,
            "sha256": self._sha256.hexdigest(),
        }


# ---- language models ----


CHARS_PER_PIECE = 400
"""Smaller corpora take fewer pieces than CCNet's: one per so many characters, so that each is seen often enough.
CCNet's 65,536 are reached at 26 M characters; its Makefile has 40,000 for corpora that are too small for them."""
MAX_PIECES = 65_536
NUM_THREADS = 16
"""SentencePiece's default. Its sums are made per thread, so that the pieces depend on it: fixed, whatever the cores."""
MIN_HELD_OUT_DOCS = 10
"""Fewer say nothing about percentiles."""


def train_lm(
    texts: Iterable[str],
    language: str,
    out: Path,
    *,
    vocab_size: int | None = None,
    order: int = 5,
    structure: Literal["probing", "trie"] = "probing",
    held_out_share: float = 0.1,
    kenlm: tuple[Path, Path] | None = None,
    sort_memory: str = "1G",
) -> dict[str, Any]:
    """Train SentencePiece (unigram) and KenLM as CCNet does: every document, normalised for the LM, is one sentence.

    Source: cc_net's Makefile (`spm_train`, `lmplz -o 5 --discount_fallback`, `build_binary`) and arXiv:1911.00359,
    section 3.3. Texts are read once, and kept on disk, not in memory.

    Args:
        texts: documents; the openings of Wikipedia articles, as CCNet has it, or other text to be measured against.
        language: the code that names the files.
        out: folder to write; made if it does not exist. It is whole when `record.json` stands in it.
        vocab_size: number of pieces, less if the texts do not hold so many; None: by their size, MAX_PIECES at most.
        order: words per n-gram.
        structure: of the binary file; trie is half the size at 45 % of the speed.
        held_out_share: 0..1, of the documents, on which the cutoffs are measured (CCNet measured its own on the crawl).
        kenlm: lmplz and build_binary; default: `kenlm_tools()`.
        sort_memory: of lmplz, in its notation; changes the speed, not the result.

    Returns:
        The content of `record.json`: kind, language, settings, texts (num_docs, num_chars and sha256, in the order
        given), num_pieces, num_train_docs, num_held_out_docs, versions, and cutoffs, where "1" to "99" is that
        percentile of the held-out documents' perplexity, one decimal.

    Raises:
        TrainingFailed: too few texts, or a tool failed.
        AssetError: the tools cannot be had.
    """
    tools = kenlm or kenlm_tools()
    files = (f"{language}.sp.model", f"{language}.arpa.bin")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".work-") as folder:
        work = Path(folder)
        pieces_file, lm_file = (work / name for name in files)
        corpus = _split_corpus(texts, work, held_out_share)
        corpus.require_enough(language)
        num_chars = f"{corpus.num_chars / 1e6:.1f} M"
        log.info("%s: learning pieces from %s characters", language, num_chars)
        num_pieces = _train_pieces(corpus, pieces_file, vocab_size or corpus.vocab_size())
        log.info("%s: training a %d-gram model over %s pieces", language, order, f"{num_pieces:,}")
        _cut_into_pieces(corpus.train_file, pieces_file, work / "pieces")
        estimate_lm(tools, work / "pieces", lm_file, order, structure, sort_memory)
        num_docs = f"{corpus.num_held_out_docs:,}"
        log.info("%s: measuring perplexity on %s held-out documents", language, num_docs)
        cutoffs = _percentiles(language_model.LanguageModel(work, language), corpus.held_out_file)
        (out / RECORD_FILE).unlink(missing_ok=True)  # of an earlier model in the same folder
        for name in files:
            (work / name).replace(out / name)
    record: dict[str, Any] = {
        "kind": "lm",
        "language": language,
        "settings": {
            "vocab_size": vocab_size,
            "order": order,
            "structure": structure,
            "held_out_share": held_out_share,
        },
        "texts": corpus.texts,
        "num_pieces": num_pieces,
        "num_train_docs": corpus.num_train_docs,
        "num_held_out_docs": corpus.num_held_out_docs,
        "cutoffs": cutoffs,
        "versions": _versions("sentencepiece", "kenlm") | {"lmplz": lmplz_version()},
    }
    put_file(out / RECORD_FILE, to_json(record))
    return record


@dataclass(frozen=True)
class _Corpus:
    train_file: Path  # one normalised document per line
    held_out_file: (
        Path  # one JSON string per line: as it came, for it is normalised when it is scored
    )
    texts: Mapping[str, Any]
    num_train_docs: int
    num_held_out_docs: int
    num_chars: int  # of the training documents, normalised
    num_distinct_chars: int

    def vocab_size(self) -> int:
        """One piece per CHARS_PER_PIECE characters, all characters and 256 more at least, MAX_PIECES at most."""
        return min(
            max(self.num_chars // CHARS_PER_PIECE, self.num_distinct_chars + 256), MAX_PIECES
        )

    def require_enough(self, language: str) -> None:
        if self.num_held_out_docs < MIN_HELD_OUT_DOCS or not self.num_train_docs:
            raise TrainingFailed(
                f"train lm {language}: {self.num_train_docs} documents to train on, {self.num_held_out_docs} held out; "
                f"wanted {MIN_HELD_OUT_DOCS} and more held out: give more text"
            )


def _split_corpus(texts: Iterable[str], work: Path, held_out_share: float) -> _Corpus:
    train_file, held_out_file = work / "train.txt", work / "held-out.jsonl"
    digest, chars = _TextDigest(), set[str]()
    num_train_docs = num_held_out_docs = num_chars = 0
    with (
        train_file.open("w", encoding="utf-8", newline="\n") as train,
        held_out_file.open("w", encoding="utf-8") as held,
    ):
        for text in digest.through(texts):
            line = language_model.normalize_for_lm(text)
            if not line:
                continue
            if is_held_out(text, held_out_share):
                num_held_out_docs += 1
                held.write(json.dumps(text) + "\n")
            else:
                num_train_docs += 1
                num_chars += len(line)
                chars.update(line)
                train.write(line + "\n")
    return _Corpus(
        train_file,
        held_out_file,
        digest.summary(),
        num_train_docs,
        num_held_out_docs,
        num_chars,
        len(chars),
    )


def _train_pieces(corpus: _Corpus, model_file: Path, vocab_size: int) -> int:
    """Write the SentencePiece model; returns its number of pieces."""
    import sentencepiece

    sentencepiece.set_min_log_level(2)  # what goes wrong comes back as an exception
    # Through an iterator and a buffer, because the model would otherwise hold the paths of its files.
    model = io.BytesIO()
    with corpus.train_file.open(encoding="utf-8", newline="\n") as lines:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(line.rstrip("\n") for line in lines),
                model_writer=model,
                model_type="unigram",
                vocab_size=vocab_size,
                hard_vocab_limit=False,
                character_coverage=0.9995,
                num_threads=NUM_THREADS,
                max_sentence_length=1
                << 24,  # default 4,192: longer documents would be left out in silence
                input_sentence_size=0,  # all of them: no sampling
            )
        except (RuntimeError, OSError) as error:
            raise TrainingFailed(f"SentencePiece: {error}") from error
    model_file.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).vocab_size()


def _cut_into_pieces(train_file: Path, model_file: Path, pieces_file: Path) -> None:
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    with train_file.open("rb") as lines, pieces_file.open("wb") as out:
        for line in lines:
            out.write(b" ".join(pieces.encode(line.rstrip(b"\n"), out_type=bytes)) + b"\n")


def _percentiles(lm: language_model.LanguageModel, held_out_file: Path) -> dict[str, float]:
    with held_out_file.open(encoding="utf-8") as lines:
        scores = [score for line in lines if (score := lm.perplexity(json.loads(line))) is not None]
    values = np.percentile(scores, range(1, 100))  # (99,) float64
    return {str(p): round(float(value), 1) for p, value in zip(range(1, 100), values, strict=True)}


def _versions(*distributions: str) -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in distributions}
    return {"corpusmill.model_training": str(VERSION), **versions}


# ---- the is-reference classifier ----

REFERENCE_LABEL = "__label__reference"
"""Label of training lines made from pages that Wikipedia cites as references."""
CRAWL_LABEL = "__label__crawl"
"""Label of training lines made from random pages of a crawl."""


def train_reference(
    positive: Iterable[str],
    negative: Iterable[str],
    out: Path,
    *,
    num_epochs: int = 5,
    learning_rate: float = 0.1,
    dimension: int = 100,
    seed: int = 0,
    held_out_share: float = 0.1,
    min_score: float = 0.25,
) -> dict[str, Any]:
    """Train the linear classifier that tells pages which Wikipedia cites from pages of a crawl.

    Source: LLaMA (arXiv:2302.13971, section 2.1); RedPajama-Data 1, `data_prep/cc/classifier`, which takes fastText's
    defaults (as here, but in one thread), as many crawl pages as references, and references of 1,000 characters and
    more.

    Args:
        positive: references.
        negative: pages of a crawl, about as many.
        out: folder to write; made if it does not exist. It is whole when `record.json` stands in it.
        num_epochs: passes over the texts.
        learning_rate: at the start; it falls to 0.
        dimension: of the word vectors.
        seed: of the first weights.
        held_out_share: 0..1, of the texts, on which the figures are measured.
        min_score: 0..1, at which precision and recall are measured: what RedPajama 1 keeps.

    Returns:
        The content of `record.json`: kind, settings, positive and negative (num_docs, num_chars and sha256 of each),
        num_held_out_docs, versions, and on held-out texts precision, recall and roc_auc.

    Raises:
        TrainingFailed: too few texts on one of the sides.
    """
    cited, crawled = _TextDigest(), _TextDigest()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".work-") as folder:
        train_file, model_file = Path(folder) / "train.txt", Path(folder) / classifiers.MODEL_FILE
        held_out = _write_labelled(
            train_file, (cited.through(positive), crawled.through(negative)), held_out_share
        )
        counts = f"{cited.num_docs:,} references and {crawled.num_docs:,} crawl pages"
        log.info("training on %s", counts)
        settings = {
            "epoch": num_epochs,
            "lr": learning_rate,
            "dim": dimension,
            "seed": seed,
        }
        _train_fasttext(train_file, model_file, settings)
        (out / RECORD_FILE).unlink(missing_ok=True)  # of an earlier model in the same folder
        model_file.replace(out / classifiers.MODEL_FILE)
    record: dict[str, Any] = {
        "kind": "reference-classifier",
        "settings": {**settings, "held_out_share": held_out_share, "min_score": min_score},
        "positive": cited.summary(),
        "negative": crawled.summary(),
        "num_held_out_docs": sum(map(len, held_out)),
        **_measure(out / classifiers.MODEL_FILE, held_out, min_score),
        "versions": _versions("fasttext"),
    }
    put_file(out / RECORD_FILE, to_json(record))
    return record


def _measure(
    model_file: Path, held_out: tuple[list[str], list[str]], min_score: float
) -> dict[str, float]:
    model = classifiers.load_model(model_file)
    positive, negative = (
        np.round(classifiers.score_lines(model, REFERENCE_LABEL, lines), 4) for lines in held_out
    )
    precision, recall = precision_and_recall(positive, negative, min_score)
    auc = roc_auc(positive, negative)
    return {"precision": round(precision, 4), "recall": round(recall, 4), "roc_auc": round(auc, 4)}


def _write_labelled(
    train_file: Path, sides: tuple[Iterable[str], Iterable[str]], held_out_share: float
) -> tuple[list[str], list[str]]:
    """Write the training lines, in an order by hash (fastText learns from them in order); returns the held-out ones."""
    labelled: list[tuple[bytes, str]] = []
    held_out: tuple[list[str], list[str]] = ([], [])
    for label, texts, held in zip((REFERENCE_LABEL, CRAWL_LABEL), sides, held_out, strict=True):
        for text in texts:
            # A word that begins like a label would be taken for one.
            line = classifiers.to_line(text).replace("__label__", "label")
            if line and is_held_out(line, held_out_share):
                held.append(line)
            elif line:
                labelled.append(
                    (hashlib.blake2b(line.encode(), digest_size=16).digest(), f"{label} {line}\n")
                )
    labelled.sort()
    if min(map(len, held_out)) < MIN_HELD_OUT_DOCS:
        raise TrainingFailed(
            f"train reference: {len(held_out[0])} references and {len(held_out[1])} crawl pages held out; "
            f"wanted {MIN_HELD_OUT_DOCS} and more of each: give more text"
        )
    train_file.write_text("".join(line for _, line in labelled), encoding="utf-8", newline="\n")
    return held_out


def _train_fasttext(train_file: Path, model_file: Path, settings: Mapping[str, Any]) -> None:
    """Train in one thread (more would write to the same weights without locks: another model each time).

    fastText 0.9.3 in one thread sets only a tenth of the first weights (`DenseMatrix::uniform`), the rest is whatever
    the memory held: other models each time, or NaN. So all of them are handed over as pretrained vectors, drawn as
    fastText would draw them. That covers words, not the hash buckets of n-grams, so there are none of these.
    """
    import fasttext

    vectors_file = train_file.with_name("first-weights.vec")
    _write_first_weights(train_file, vectors_file, settings["dim"], settings["seed"])
    try:
        model = fasttext.train_supervised(
            input=str(train_file),
            pretrainedVectors=str(vectors_file),
            thread=1,
            verbose=0,
            **settings,
        )
    except RuntimeError as error:
        raise TrainingFailed(f"fastText: {error}") from error
    model.save_model(str(model_file))


def _write_first_weights(train_file: Path, vectors_file: Path, dimension: int, seed: int) -> None:
    words = {"</s>": None}  # what fastText takes the end of a line for; a dict, for its order
    with train_file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            words.update(dict.fromkeys(_FASTTEXT_SPACE.split(line)[1:]))
    words.pop("", None)
    rng = np.random.default_rng(seed)
    with vectors_file.open("w", encoding="utf-8", newline="\n") as out:
        out.write(f"{len(words)} {dimension}\n")
        for word in words:
            weights = rng.uniform(-1 / dimension, 1 / dimension, dimension)  # (dimension,) float64
            out.write(f"{word} {' '.join(f'{weight:.4g}' for weight in weights.tolist())}\n")


_FASTTEXT_SPACE = re.compile("[ \n\r\t\v\f\0]")
"""What separates words: `Dictionary::readWord` of fastText's dictionary.cc."""


def precision_and_recall(
    positive: np.ndarray, negative: np.ndarray, min_score: float
) -> tuple[float, float]:
    """Share of what is kept that is positive, and share of what is positive that is kept, at `min_score` and more.

    Args:
        positive: (n,) float64 scores of positives.
        negative: (m,) float64 scores of negatives.
        min_score: lowest score kept.
    """
    kept, wrongly_kept = int((positive >= min_score).sum()), int((negative >= min_score).sum())
    return kept / max(1, kept + wrongly_kept), kept / len(positive)


def roc_auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """Probability that a positive scores above a negative, ties counted half: the area under the ROC curve.

    Source: the Mann-Whitney U statistic from rank sums; J. A. Hanley and B. J. McNeil, Radiology 143 (1982).

    Args:
        positive: (n,) float64 scores of positives.
        negative: (m,) float64 scores of negatives.
    """
    ordered = np.sort(np.concatenate([positive, negative]))
    # Mean rank, from 1, of equal scores. (n,)
    ranks = (
        np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right") + 1
    ) / 2
    u = ranks.sum() - len(positive) * (len(positive) + 1) / 2
    return float(u / (len(positive) * len(negative)))


# ---- recipes of the demo's models ----


def _fingerprint(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json(value)).hexdigest()


@dataclass(frozen=True)
class DemoLm:
    """Recipe: a language model of the Wikipedia summaries that no page of the sample crawl is made of."""

    language: str
    vocab_size: int | None = None
    order: int = 5
    structure: Literal["probing", "trie"] = "probing"

    def fingerprint(self) -> str:
        """Of texts, settings, normalisation and versions."""
        return _fingerprint(
            {
                "recipe": ["demo-lm", dataclasses.asdict(self), demo_texts.VERSION],
                "texts": find_known_digest(PUBLISHED[f"wiki-summaries-{self.language}"]),
                "normalisation": perplexity.Perplexity.version,
                "versions": _versions("sentencepiece", "kenlm") | {"lmplz": lmplz_version()},
            }
        )

    def make(self, folder: Path, *, offline: bool) -> None:
        """Train. Some ten seconds."""
        obtain(PUBLISHED[f"wiki-summaries-{self.language}"], offline=offline)
        train_lm(
            (text for _, text in demo_texts.summaries(self.language, "lm")),
            self.language,
            folder,
            vocab_size=self.vocab_size,
            order=self.order,
            structure=self.structure,
            kenlm=kenlm_tools(offline=offline),
        )


@dataclass(frozen=True)
class DemoReference:
    """Recipe: a classifier of Wikipedia summaries against crawl-like text."""

    language: str
    num_epochs: int = 20  # of so few texts; 5 gave Spanish a precision of 0.53, these 0.79
    dimension: int = 16  # enough for two classes, and a model of 2 MB instead of 10
    seed: int = 0  # of the crawl-like texts

    def fingerprint(self) -> str:
        """Of texts, settings, the form of the lines, and versions."""
        return _fingerprint(
            {
                "recipe": ["demo-reference", dataclasses.asdict(self), demo_texts.VERSION],
                "texts": [find_known_digest(PUBLISHED[name]) for name in self._texts()],
                "lines": classifiers.Classifiers.version,
                "versions": _versions("fasttext"),
            }
        )

    def make(self, folder: Path, *, offline: bool) -> None:
        """Train. A few seconds."""
        for name in self._texts():
            obtain(PUBLISHED[name], offline=offline)
        positive = [text for _, text in demo_texts.summaries(self.language, "reference")]
        negative = demo_texts.crawl_like(self.language, len(positive), self.seed)
        log.info("%s: training a classifier", self.language)
        train_reference(
            positive,
            negative,
            folder,
            num_epochs=self.num_epochs,
            dimension=self.dimension,
        )

    def _texts(self) -> tuple[str, str]:
        return f"wiki-summaries-{self.language}", "eld-sentences"


def _demo_lm(language: str) -> Asset:
    description = (
        f"Small language model for {language}, trained here on Wikipedia summaries in seconds"
    )
    return Asset(
        f"demo-lm-{language}",
        "lm",
        "1",
        Trained(DemoLm(language)),
        f"{CC_BY_SA_4} (its texts)",
        None,
        description,
    )


def _demo_reference(language: str) -> Asset:
    description = f"Small is-reference classifier for {language}, trained here on summaries against crawl-like text"
    origin, licence = Trained(DemoReference(language)), f"{CC_BY_SA_4} (its texts)"
    return Asset(
        f"demo-reference-{language}",
        "reference-classifier",
        "1",
        origin,
        licence,
        None,
        description,
    )


TRAINED: Mapping[str, Asset] = MappingProxyType(
    {
        asset.name: asset
        for asset in (
            *(_demo_lm(language) for language in demo_texts.LANGUAGES),
            *(_demo_reference(language) for language in demo_texts.LANGUAGES),
            KENLM_TOOLS,
        )
    }
)
"""What is made on this machine, by name."""
