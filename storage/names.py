"""File names that are made of data, such as the labels of a model or the end of a URL.

names = FileNames(".json.gz")
names.make("en_head")           # "en_head.json.gz"
names.make("../../etc/cron")    # "%2E.%2F..%2Fetc%2Fcron.json.gz"
"""

from __future__ import annotations

import hashlib
import unicodedata
from urllib.parse import quote

# The longest name on ext4, XFS, APFS and NTFS.
MAX_NAME_BYTES = 255

# `quote` writes hexadecimal digits after "%", so no other name has this mark.
_DIGEST_MARK = "%~"
_DIGEST_CHARS = 16


def is_file_name(name: str) -> bool:
    """Return whether a name is that of a visible file in a folder, and no path out of it."""
    # Halves of surrogate pairs and control characters are not printable.
    if not name.isprintable() or name.startswith(".") or "/" in name or "\\" in name:
        return False
    return 0 < len(name.encode()) <= MAX_NAME_BYTES


class FileNames:
    """Gives each text a different file name.

    A text that is a file name stays as it is. Other texts are written as in URLs, with %2F for
    a slash. Texts that are too long, or have the name of another text on file systems that
    ignore case or normalize Unicode, end in a digest.
    """

    def __init__(self, suffix: str = "") -> None:
        """Create an empty set of names.

        Args:
            suffix: the end of every name.
        """
        self._suffix = suffix
        # Normalized name -> the first text that got it.
        self._owners: dict[str, str] = {}

    def make(self, text: str) -> str:
        """Return the name for a text; the same text always gets the same name."""
        is_plain = bool(text) and _DIGEST_MARK not in text
        name = text if is_plain and is_file_name(text + self._suffix) else _quote(text)
        key = unicodedata.normalize("NFC", name).casefold()
        is_long = len(name.encode()) + len(self._suffix) > MAX_NAME_BYTES
        if is_long or self._owners.setdefault(key, text) != text:
            name = self._add_digest(_quote(text), text)
        return name + self._suffix

    def _add_digest(self, name: str, text: str) -> str:
        content = text.encode("utf-8", "surrogatepass")
        end = f"{_DIGEST_MARK}{hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]}"
        return name[: MAX_NAME_BYTES - len(self._suffix) - len(end)] + end


def _quote(text: str) -> str:
    name = quote(text, safe="", errors="surrogatepass")
    if not name:
        return "%empty"
    return f"%2E{name[1:]}" if name.startswith(".") else name
