"""Reads documents from WET, WARC and ARC files."""
