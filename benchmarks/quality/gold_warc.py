r"""Write the labelled pages of the gold sets into a WARC file, as input of a run.

    python -m benchmarks.quality.gold_warc --gold FOLDER --output pages.warc.gz
    python -m pipeline run fineweb.yaml --set 'input={files: [pages.warc.gz]}'

FOLDER holds clones of the gold sets (`gold_pages.py`). Sets that are absent are left out. Only the
pages that may be read are written, unless `--all` is given: half of each set is held out.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

from benchmarks.frame import make_parser
from benchmarks.quality.gold_pages import SETS, GoldPage

# The sets were saved as UTF-8, also pages of servers that sent another charset.
_HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"


def write_warc(pages: Iterable[GoldPage], path: Path) -> int:
    """Write one response record per page, each a gzip member, and return the number of pages."""
    num_pages = 0
    with path.open("wb") as file:
        for page in pages:
            block = _HTTP + page.html
            # The sets have no dates. A fixed one gives equal bytes.
            head = (
                f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {page.url}\r\n"
                f"WARC-Date: 2026-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:gold:{num_pages}>\r\n"
                f"Content-Type: application/http; msgtype=response\r\n"
                f"Content-Length: {len(block)}\r\n\r\n"
            )
            file.write(gzip.compress(head.encode() + block + b"\r\n\r\n", mtime=0))
            num_pages += 1
    return num_pages


def main() -> None:
    """Write the pages of all sets that are there."""
    parser = make_parser(__doc__, saves=False)
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
