r"""Write the labelled pages of the gold sets into a WARC file, as input of a run.

    python -m benchmarks.quality.gold_warc --gold FOLDER --output pages.warc.gz
    python -m pipeline run fineweb.yaml --set 'input={files: [pages.warc.gz]}'

FOLDER holds clones of the gold sets (`gold_pages.py`). Sets that are absent are left out. Only the
pages that may be read are written, unless `--all` is given: half of each set is held out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from benchmarks.quality.gold_pages import SETS, GoldPage

# The sets were saved as UTF-8, whatever the server sent.
_CONTENT_TYPE = "text/html; charset=utf-8"
_DATE = "2026-01-01T00:00:00Z"  # the sets have none; a fixed one gives equal bytes


def write_warc(pages: Iterable[GoldPage], path: Path) -> int:
    """Write one response record per page, and return the number of pages."""
    num_pages = 0
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for page in pages:
            http = StatusAndHeaders(
                "200 OK", [("Content-Type", _CONTENT_TYPE)], protocol="HTTP/1.1"
            )
            record = writer.create_warc_record(
                page.url,
                "response",
                payload=BytesIO(page.html),
                http_headers=http,
                warc_headers_dict={
                    "WARC-Date": _DATE,
                    "WARC-Record-ID": f"<urn:gold:{num_pages}>",
                },
            )
            writer.write_record(record)
            num_pages += 1
    return num_pages


def main() -> None:
    """Write the pages of all sets that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gold", type=Path, required=True, help="folder with the clones")
    parser.add_argument("--output", type=Path, required=True, help="the WARC file")
    parser.add_argument("--all", action="store_true", help="held-out pages, too")
    args = parser.parse_args()
    folders = {name: args.gold / name for name in SETS if (args.gold / name).is_dir()}
    if not folders:
        parser.error(f"{args.gold} has none of the folders {', '.join(SETS)}; see --help")
    pages: list[GoldPage] = []
    for name, folder in folders.items():
        found = SETS[name](folder)
        pages += (page for page in found if args.all or not page.is_held_out)
    print(f"{write_warc(pages, args.output)} pages in {args.output}")


if __name__ == "__main__":
    main()
