"""Extracts text from HTML pages."""
