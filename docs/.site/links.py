"""Let links to files outside of docs/ lead to the repository."""

from __future__ import annotations

import re
from typing import Any

# A link of a page in docs/ or docs/decisions/ that leaves docs/.
_OUTSIDE = re.compile(r"\]\((?:\.\./)+([^)]*)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the text of a page, before it becomes HTML."""
    depth = page.file.src_uri.count("/") + 1

    def replace(match: re.Match[str]) -> str:
        if match[0].count("../") < depth:
            return match[0]
        return f"]({config.repo_url}/blob/main/{match[1]})"

    return _OUTSIDE.sub(replace, markdown)
