"""Every cause of a quarantined record and every reason of a skipped one, of all kinds of input."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeline.inputs import fetch_pages
from stages.text_records import causes as text_causes
from stages.warc import causes as warc_causes

# Cause of a quarantine entry -> description.
CAUSES: Mapping[str, str] = MappingProxyType(
    {**warc_causes.CAUSES, **text_causes.CAUSES, **fetch_pages.CAUSES}
)

# Reason -> description, for intact records that do not become documents.
SKIPPED: Mapping[str, str] = MappingProxyType(
    {**warc_causes.SKIPPED, **text_causes.SKIPPED}
)
