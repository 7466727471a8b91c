r"""Count personal data that is found and that is missed in labelled texts, beside datatrove.

    python -m benchmarks.quality.pii --texts texts.jsonl --labels labels.jsonl [--candidates]

A line of texts.jsonl has `text`. A line of labels.jsonl has `row` (from 0), `kind`, `start` and `end`:
personal data that somebody has read. A match is right if it overlaps a label of its kind, and a
label is found if a match of its kind overlaps it. `--candidates` prints what to read: all matches,
and everything that looks similar. Texts and labels are third-party content; this repository has none.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.frame import make_parser
from benchmarks.quality.peer_environment import run_with_peers
from stages.transform.pii import KINDS, Found, find

PEERS = Path(__file__).with_name("pii-peers.txt")

# Wider than any rule, so that a reader sees what the rules miss.
SIMILAR: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "email": re.compile(
            r"\S{1,64}(?: ?[\[({<*]? ?(?:@|at|AT|ad|a) ?[\])}>*]? ?)\S+\.\S+"
        ),
        "iban": re.compile(r"\b[A-Z]{2} ?\d{2}(?: ?[A-Z0-9]){11,30}\b"),
        "ip": re.compile(r"(?<!\d)\d{1,3}(?:\.\d{1,3}){3}(?!\d)"),
        "card": re.compile(r"(?<!\d)(?:\d[ -]?){13,19}(?!\d)"),
        "phone": re.compile(
            r"(?<![\d.,/])[+(]{0,2}\d(?:[ \xa0]{0,2}[-./()–]{0,2}[ \xa0]{0,2}\d){8,14}(?!\d)"
        ),
    }
)


def find_with_datatrove(text: str) -> Iterator[Found]:
    """Yield what datatrove's PIIFormatter would replace."""
    from datatrove.pipeline.formatters.pii import (  # pyright: ignore[reportMissingImports]
        PIIFormatter,
    )

    formatter = PIIFormatter()
    replacers = {"email": formatter.emails_replacer, "ip": formatter.ip_replacer}
    for kind, replacer in replacers.items():
        for match in replacer.regex.finditer(text):
            if replacer.validator is None or replacer.validator(match[0]):
                yield Found(kind, match.start(), match.end())


def count(
    texts: Sequence[str],
    labels: Mapping[int, Sequence[Found]],
    finder: Callable[[str], Iterable[Found]],
) -> Counter[tuple[str, str]]:
    """Return the numbers of (kind, "right" | "wrong" | "found" | "missed")."""
    counts: Counter[tuple[str, str]] = Counter()
    for row, text in enumerate(texts):
        matches, wanted = list(finder(text)), labels.get(row, [])
        for match in matches:
            counts[match.kind, "right" if overlaps(match, wanted) else "wrong"] += 1
        for label in wanted:
            counts[label.kind, "found" if overlaps(label, matches) else "missed"] += 1
    return counts


def overlaps(span: Found, others: Iterable[Found]) -> bool:
    """Return whether one of the others has the same kind and a character in common."""
    return any(
        span.kind == other.kind and span.start < other.end and other.start < span.end
        for other in others
    )


def print_table(counts: Mapping[str, Counter[tuple[str, str]]]) -> None:
    """Print precision and recall by kind."""
    for kind in KINDS:
        for name, found in counts.items():
            right, wrong = found[kind, "right"], found[kind, "wrong"]
            seen, missed = found[kind, "found"], found[kind, "missed"]
            print(
                f"{kind:<6} {name:<10} precision {right:>4} of {right + wrong:<4} "
                f"recall {seen:>4} of {seen + missed}"
            )


def list_candidates(text: str) -> Iterator[Found]:
    """Yield matches of the rules, and similar text that is in none of them."""
    matches = list(find(text))
    yield from matches
    for kind, pattern in SIMILAR.items():
        for match in pattern.finditer(text):
            span = Found(kind, match.start(), match.end())
            if not any(span.start < each.end and each.start < span.end for each in matches):
                yield span


def main() -> None:
    """Print the table, or the candidates for labels as lines of labels.jsonl with their text."""
    parser = make_parser(__doc__, saves=False)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--candidates", action="store_true")
    args = parser.parse_args()
    texts: list[str] = [json.loads(line)["text"] for line in args.texts.open()]
    if args.candidates:
        for row, text in enumerate(texts):
            for found in list_candidates(text):
                its_text = text[found.start : found.end]
                line = {"row": row, **found._asdict(), "text": its_text}
                print(json.dumps(line, ensure_ascii=False))
        return
    if args.labels is None:
        parser.error("give --labels, or --candidates to see what to label")
    if run_with_peers("benchmarks.quality.pii", PEERS):
        return
    labels: defaultdict[int, list[Found]] = defaultdict(list)
    for line in args.labels.open():
        label = json.loads(line)
        labels[label["row"]].append(Found(label["kind"], label["start"], label["end"]))
    finders = {"corpusmill": find, "datatrove": find_with_datatrove}
    print_table({name: count(texts, labels, finder) for name, finder in finders.items()})


if __name__ == "__main__":
    main()
