"""Exact, paragraph and fuzzy deduplication."""
