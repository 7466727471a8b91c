"""Code, comments, docs and configs do not use the retired words.

The glossary in docs/glossary.md has the words to use. To list the findings of a
folder, or of all files:

    python -m tests.test_words stages/filters
    python -m tests.test_words
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.conftest import REPOSITORY


@dataclass(frozen=True)
class RetiredWord:
    """A pattern that must not appear.

    Attributes:
        pattern: matched without regard to case, after identifiers are split into words.
        instead: what to write.
        exceptions: path prefix -> reason for which the word is correct there.
    """

    pattern: str
    instead: str
    exceptions: Mapping[str, str] = field(default_factory=dict[str, str])


RETIRED = (
    RetiredWord(
        r"\bunits?\b(?! tests?\b)(?! of (length|measure|time)\b)",
        "input split, task, or the unit's name (bytes, characters)",
        {
            "configs/grafana": "Grafana's key for the unit of a value",
            "configs/systemd": "systemd calls its files units",
            "loader/metrics.py": "units of values",
        },
    ),
    RetiredWord(r"\bpieces? of work\b|\b(all|the|of|many|\d+) works\b", "task"),
    RetiredWord(r"\bfates?\b", "decision", {"CHANGELOG.md": "names the old column"}),
    RetiredWord(r"\bledgers?\b", "decisions, event log"),
    RetiredWord(r"\b(tally|tallies)\b", "counters"),
    RetiredWord(r"\b(story|stories|chapters?)\b", "DocumentTrace, steps"),
    RetiredWord(
        r"\bflow tables?\b|\bhand(ed|ing|s)? ?overs?\b", "TaskResult, returned rows"
    ),
    RetiredWord(r"\bmeter(s|ed)?\b", "task statistics"),
    RetiredWord(r"\bleases?\b", "run lock"),
    RetiredWord(r"\bjournals?\b", "event log"),
    RetiredWord(r"\brecuts?\b", "preview"),
    RetiredWord(r"[`\"']copies[`\"']", "exact_dedup"),
    RetiredWord(
        r"[`\"']deduplicate[`\"']|\bnear[- ]deduplicat\w*", "paragraph_dedup, fuzzy_dedup"
    ),
    RetiredWord(r"[`\"']repeats[`\"']", "duplicate lines"),
    RetiredWord(r"\bwho (stays|goes)\b", "representative, dropped documents"),
    RetiredWord(r"\bearlier runs?\b", "previous runs"),
    RetiredWord(
        r"\bspool(s|ed|ing)?\b", "scratch directory", {"CHANGELOG.md": "names the old key"}
    ),
    RetiredWord(r"\bcatalogues?\b", "manifest columns, list"),
    RetiredWord(r"\bbefell\b|\bwhoever\b|\bwhatever\b|\bwhoso\b", "a plain subject"),
    RetiredWord(
        r"\btold\b|\bhas to say\b|\bspeaks of\b|\bis told\b", "reported, printed, passed"
    ),
    RetiredWord(
        r"\bat hand\b|\bof its own\b|\bas it lies\b|\bbe had\b|\bfor ever\b", "plain words"
    ),
    RetiredWord(
        r"\b(it|file|folder|that|which|there|row|text|page|run) lies\b", "is stored, is in"
    ),
    RetiredWord(r"\bdef \w+ of\(", "a verb, or a property"),
)

SUFFIXES = (
    ".py",
    ".md",
    ".yaml",
    ".yml",
    ".json",
    ".toml",
    ".service",
    "Makefile",
    "Dockerfile",
)
SKIPPED = {
    "tests/test_words.py": "names the words",
    "tests/golden/": "digests",
    "benchmarks/results/": "records of measurements, not edited afterwards",
    "constraints.txt": "names of packages",
    "docs/training-config.md": "generated",
}


def list_files() -> list[str]:
    """Return the tracked text files that are checked, as paths relative to the repository."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    names = [name for name in listed.stdout.splitlines() if name.endswith(SUFFIXES)]
    names = [name for name in names if (REPOSITORY / name).is_file()]
    return [name for name in names if not name.startswith(tuple(SKIPPED))]


def split_identifiers(text: str) -> str:
    """Return the text with `snake_case` and `CamelCase` identifiers split into words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace("_", " "))


# Whether a text may have a retired word. All patterns begin at a word or a quote: where the text has
# neither, no pattern is tried, which takes an eighth of the time.
ANY_RETIRED = re.compile(
    rf"(?:\b(?=[a-z])|(?=[`\"']))(?:{'|'.join(word.pattern for word in RETIRED)})"
)


def may_have_retired_words(text: str) -> bool:
    """Return whether a pattern matches somewhere in a file, or across its lines."""
    joined = re.sub(r"\s*\n[ #*>-]*", " ", text)
    return ANY_RETIRED.search(split_identifiers(joined).lower()) is not None


def read_fragments(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of everything that is checked in a file.

    Of Python files these are names, comments and strings. In tests, only docstrings are
    checked among the strings, because the others are texts for the stages.
    """
    if path.suffix != ".py":
        for number, line in enumerate(text.splitlines(), 1):
            yield number, line
        return
    is_test = path.relative_to(REPOSITORY).parts[0] == "tests"
    starts_line = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and starts_line
        if token.type == tokenize.NAME and token.string not in ("def", "of"):
            yield token.start[0], token.string
            if token.line.lstrip().startswith(("def ", "async def ")):
                yield token.start[0], f"def {token.string}("
        is_message = token.type == tokenize.STRING and not is_test
        if token.type == tokenize.COMMENT or is_docstring or is_message:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            starts_line = True
        elif token.type not in (tokenize.NL, tokenize.COMMENT):
            starts_line = False


def join_across_lines(fragments: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the last words of each line with the first words of the next line."""
    for (number, fragment), (next_number, following) in pairwise(fragments):
        if next_number == number + 1:
            start = following.lstrip(" #*>-").split()[:2]
            yield number, " ".join([*fragment.split()[-2:], *start])


def find_retired_words(name: str) -> Iterator[str]:
    """Yield one message per finding in a file."""
    path = REPOSITORY / name
    text = path.read_text(encoding="utf-8")
    if not may_have_retired_words(
        text
    ):  # most files: splitting them into tokens takes seconds
        return
    patterns = [
        (re.compile(word.pattern, re.IGNORECASE), word.instead)
        for word in RETIRED
        if not name.startswith(tuple(word.exceptions))
    ]
    seen: set[tuple[int, str]] = set()
    fragments = list(read_fragments(path, text))
    for number, fragment in [*fragments, *join_across_lines(fragments)]:
        words = split_identifiers(fragment)
        for pattern, instead in patterns:
            found = pattern.search(words)
            if found is None or (number, found[0]) in seen:
                continue
            seen.add((number, found[0]))
            yield f"{name}:{number}: {found[0]!r} is retired; write: {instead}"


def test_no_file_uses_a_retired_word() -> None:
    """Names, comments, docstrings, docs and configs are checked."""
    assert [finding for name in list_files() for finding in find_retired_words(name)] == []


def main(prefixes: list[str]) -> None:
    """Print all findings below the prefixes, or the number of findings per folder."""
    names = [name for name in list_files() if name.startswith(tuple(prefixes or [""]))]
    findings = [finding for name in names for finding in find_retired_words(name)]
    if prefixes:
        print("\n".join(findings))
    counts = Counter("/".join(finding.split(":")[0].split("/")[:2]) for finding in findings)
    for folder, count in counts.most_common():
        print(f"{count:6} {folder}")
    print(f"{len(findings):6} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
