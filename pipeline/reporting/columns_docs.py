"""Generate docs/columns.md: the columns of every Parquet and Arrow file of a run.

python -m pipeline.reporting.columns_docs > docs/columns.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from pipeline.phases import registry
from pipeline.phases.annotate import NOT_WITH_DOCUMENTS, Annotate
from pipeline.phases.artifact import MergedArtifact
from pipeline.phases.extract import EXTRACTED
from pipeline.phases.phase import Phase
from pipeline.phases.tokenize import DOCUMENT_INDEX, PII, TokenizeDocuments
from stages.filters.quality import Quality
from stages.filters.score import QUALITY_SCORE
from stages.mixing.mix import NUM_COPIES

# Stage -> prefix of its columns, where their names come from the config.
_FAMILIES = {"classifiers": "classifier_"}

_PREFERENCE = "a higher one is preferred when one of two near-duplicates is kept"
_PLACE = "Place in `ngrams.bin` of the n-grams (`pipeline/runs/ngram_sets.py`)"

# Column -> its meaning.
MEANINGS: Mapping[str, str] = {
    "bucket": "Perplexity bucket: `head`, `middle`, `tail`, or `all` without a language model.",
    "chars_removed": "Characters removed with lines, line feeds included.",
    "check": "Second hash of the window, which tells apart windows of equal `hash`.",
    "contamination": "Evaluation sets with common word n-grams: words and share of the text.",
    "date": "When the page was crawled: WARC-Date, unchanged.",
    "decision": "`kept`, or the drop reason ([config.md](config.md)).",
    "detail": "What the rule found, if a value does not say it.",
    "digest": "Digest of the record's content from the crawl file, `sha1:...`.",
    "doc_id": "Id of the document: index of the input split << 32 \\| record number.",
    "document": "Document that is compared, or dropped.",
    "documents": "Documents of the cluster, the preferred one first.",
    "hash": "Hash of the content; files are cut and read by its ranges.",
    "kept_lines": "Numbers of the lines of the extracted text that are left.",
    "language": "Code of the most likely language.",
    "language_score": "Probability of this language, 0..1.",
    "limit": "Limit of the rule that dropped the document.",
    "is_first_of_group": "Whether a group of documents with an equal band hash begins.",
    "is_repeated": "Whether a hash of the split, in the order of `distinct_hashes.arrow`, is removed because of other splits.",
    "line": "Number of the line in the document, from 0.",
    "lines_removed": "Numbers of the lines that `annotate.lines` removed.",
    "main_content_chars": "Characters of the main content, if it was too short to be used.",
    "mix_percentile": "Share of worse documents in its language, in percent (`select.mix`).",
    "ngrams": f"{_PLACE} of the document; of a cluster, of each document.",
    "ngrams_of_one": f"{_PLACE} of `one`; 0 without a rule.",
    "ngrams_of_other": f"{_PLACE} of `other`; 0 without a rule.",
    "ngram_set": "Hashes of the n-grams, sorted.",
    "num_chars": "Characters (code points) of the text at this point.",
    "num_copies": "How often the dataset has the document (`select.mix`).",
    "num_lines": "Lines of the text at this point.",
    "num_previous": "How many documents of the cluster previous runs have kept.",
    "num_tokens": "Tokens, the end of the document included.",
    "one": "First document of the pair.",
    "order_key": "Place in the global shuffle; the file is sorted by it.",
    "original_num_chars": "Characters of the extracted text.",
    "original_num_lines": "Lines of the extracted text.",
    "other": "Second document of the pair.",
    "page_sample": "Beginning of all text of the page, to identify its language.",
    "perplexity": "Perplexity under the language model; null without a model for the language.",
    "pii_card": "Card numbers replaced by a placeholder.",
    "pii_email": "E-mail addresses replaced by a placeholder.",
    "pii_iban": "IBANs replaced by a placeholder.",
    "pii_ip": "IP addresses replaced by a placeholder.",
    "pii_phone": "Phone numbers replaced by a placeholder.",
    "place": f"{_PLACE}; 0 without a rule.",
    "quality_bin": "Percentiles where its bin begins and ends, such as `90-100` (`select.mix`).",
    "quality_score": "Weighted mean of percentile ranks of signals, or a probability.",
    "record": "Record number: the lower half of `doc_id`.",
    "repeated_words": "Words cut because an earlier document has them.",
    "representative": "`doc_id` of the document that is kept in its place.",
    "score": f"Ranking value: {_PREFERENCE}.",
    "score_of_one": f"Ranking value of `one`: {_PREFERENCE}.",
    "score_of_other": f"Ranking value of `other`: {_PREFERENCE}.",
    "source_domain": "Host of the URL, in lower case.",
    "text": "The text: paragraphs, with a line feed between two.",
    "title": "Title of the page.",
    "token_start": "Position in the split's tokens file, in tokens.",
    "url": "Address of the page.",
    "value": "Value that broke the rule.",
    "warc_file": "Crawl file of the record.",
    "warc_offset": "Offset of the record in the compressed file, in bytes.",
    "was_compared": "Whether the first two documents were compared exactly.",
    "word": "Number of the word in the document, from 0.",
}

_INTRODUCTION = """\
# Columns of the outputs

Generated by `python -m pipeline.reporting.columns_docs > docs/columns.md`. [outputs.md](outputs.md) has examples.

A file of a phase is `RUN/PHASE-FINGERPRINT/SPLIT.NAME`, for example `runs/ccnet/annotate-45216f9476065091/000000-9db8feff.documents.parquet`.
`run.json` lists the folders of the phases (`folders`) and the splits (`splits`). A phase that is off has no files. Arrow files are in
the IPC file format. Ids of documents in `forest.arrow`, `clusters.arrow` and `dropped.arrow` count the splits of previous runs first.
"""

# Columns of an export, in the words of the page.
_EXPORT = """\
## Export

`python -m pipeline export` writes the columns of `annotate: documents.parquet` with `text` first, then `bucket`, then `quality_score` with
`select.score`, `mix_percentile`, `quality_bin` and `num_copies` with `select.mix`, and `pii_email`, `pii_iban`, `pii_ip`, `pii_card` and `pii_phone` with `tokenize.pii`.
"""


def make_page() -> str:
    """Return the text of docs/columns.md."""
    # Title and table -> phases: several phases write decisions.
    phases: dict[tuple[str, str], list[str]] = {}
    for phase in registry.PHASES:
        for title, table in _describe_files(phase):
            phases.setdefault((title, "\n".join(table)), []).append(phase.name)
    lines = [_INTRODUCTION, _EXPORT]
    for (title, table), names in phases.items():
        lines += [f"## {', '.join(names)}: {title}", "", table, ""]
    return "\n".join(lines)


def _describe_files(phase: type[Phase]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each Parquet and Arrow file of a phase, and its table."""
    for artifact in phase.artifacts():
        if artifact is Annotate.documents:
            yield artifact.suffix, list(_describe_annotated())
        elif artifact is TokenizeDocuments.documents:
            yield artifact.suffix, list(_describe_index())
        elif artifact.schema is not None:
            yield artifact.suffix, _make_table(_make_rows(artifact.schema))
    for merged in _list_merged(phase):
        if merged.schema is not None:
            table = _make_table(_make_rows(merged.schema))
            yield f"{merged.file_name}, one for all splits", table


def _list_merged(phase: type[Phase]) -> list[MergedArtifact]:
    found = (getattr(phase, name) for name in dir(phase))
    return [value for value in found if isinstance(value, MergedArtifact)]


def _describe_annotated() -> Iterator[str]:
    """Yield the table of the documents of annotate, with the stage that adds each column."""
    rows = dict.fromkeys(_make_rows(EXTRACTED), "")
    names = set(EXTRACTED.names)
    for stage in Annotate.stages:
        for row, column in zip(_make_rows(stage.adds), stage.adds, strict=True):
            if stage is not Quality and column.name not in names:
                rows[row] = f"`{stage.name}`"
                names.add(column.name)
        if stage is Quality:
            signals = ("quality signals", "numbers", "See [signals.md](signals.md).")
            rows[signals] = f"`{stage.name}`"
        if prefix := _FAMILIES.get(stage.name):
            family = (f"`{prefix}<name>`", "`double`", "Probability of the label, 0..1.")
            rows[family] = f"`{stage.name}`"
    shown: list[tuple[str, ...]] = []
    for row, stage_name in rows.items():
        if row[0].strip("`") not in NOT_WITH_DOCUMENTS:
            shown.append((*row, stage_name))
    yield from _make_table(shown, ("column", "type", "meaning", "with the stage"))


def _describe_index() -> Iterator[str]:
    """Yield the table of the index of tokens."""
    family = [("`classifier_<name>`", "`double`", "As in annotate.")]
    optional = pa.schema([QUALITY_SCORE, NUM_COPIES, *PII])
    yield from _make_table([*_make_rows(DOCUMENT_INDEX), *family, *_make_rows(optional)])


def _make_rows(schema: pa.Schema) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for column in schema:
        meaning = MEANINGS.get(column.name, "")
        rows.append((f"`{column.name}`", f"`{column.type}`", meaning))
    return rows


def _make_table(
    rows: Iterable[tuple[str, ...]], header: tuple[str, ...] = ("column", "type", "meaning")
) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|-" * len(header) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


if __name__ == "__main__":
    print(make_page(), end="")
