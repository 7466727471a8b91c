"""Texts with indentation survive a run: they are read, tokenized, written, and decoded again."""

from __future__ import annotations

import bisect
import heapq
import json
import queue
import re
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from loader.export import read_documents
from loader.reading.dataset import Dataset as OpenDataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadSettings
from pipeline.runs.run_folder import RunFolder
from tests.pipeline.conftest import Small
from tests.stages.warc.files import page, response

MODULES = (bisect, heapq, queue, shlex, textwrap)

PAGE = """<!doctype html><html><head><title>How to sum</title></head><body><main><article>
<h1>How to sum</h1><p>The museum explains the function that it uses to count its paintings.</p>
<pre>def total(rows):
    for row in rows:
\tyield row.price
        # done
</pre>
<ul><li>The first item<ul><li>an item below it<ul><li>the deepest item</li></ul></li></ul></li>
<li>The second item</li></ul>
<table><tr><th>Painting</th><th>Year</th></tr><tr><td>The milkmaid</td><td>1658</td></tr></table>
</article></main></body></html>"""


def decode_documents(run: RunFolder, tokenizer: Path) -> list[str]:
    """Return the texts of the dataset, decoded from its tokens."""
    decoder = Tokenizer.from_file(str(tokenizer))
    columns = read_manifest_columns(str(run.dataset), ReadSettings())
    reader = OpenDataset(columns, settings=ReadSettings())
    documents = (read_documents(reader, shard) for shard in range(columns.num_shards))
    return [decoder.decode(each.tokens.tolist()) for shard in documents for each in shard]


def test_source_files_compile_after_their_tokens_are_decoded(
    small: Small, tiny_tokenizer: Path
) -> None:
    """Five modules of the standard library, with their blank lines and indentation."""
    sources = [Path(str(module.__file__)).read_text() for module in MODULES]
    path = small.folder / "sources.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in sources))
    tree = {**small.tree, "input": {"text": {"files": [str(path)]}}}
    run, _ = Small(small.folder, tree).run(paragraph_dedup={"keep": "keep_all"})
    decoded = decode_documents(run, tiny_tokenizer)
    for text in decoded:
        compile(text, "source", "exec")
    assert sorted(decoded) == sorted(sources)


LISTS = "  • The first item\n    • an item below it\n      • the deepest item\n  • The second item\n"


@pytest.mark.parametrize(
    ("html", "lists"),
    [
        ({"main_content": False, "list_bullets": True}, LISTS),
        (
            {"main_content": True, "engine": "blocks"},
            re.sub("^ *• ", "", LISTS, flags=re.MULTILINE),
        ),
    ],
)
def test_code_lists_and_tables_of_a_page_are_in_its_tokens(
    small: Small, tiny_tokenizer: Path, html: Mapping[str, Any], lists: str
) -> None:
    """Each line of code keeps its indentation, and each item and row has a line."""
    path = small.folder / "page.warc"
    path.write_bytes(response(page(PAGE.encode(), content_type="text/html; charset=utf-8")))
    tree = {**small.tree, "input": {"files": [str(path)]}}
    run, _ = Small(small.folder, tree).run(extract={"warc": {"html": html}})
    (text,) = decode_documents(run, tiny_tokenizer)
    assert (
        "\ndef total(rows):\n    for row in rows:\n\tyield row.price\n        # done\n"
        in text
    )
    assert lists in text
    assert "\nPainting\t\tYear\nThe milkmaid\t\t1658" in text
