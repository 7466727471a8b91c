"""Stages that score documents, and filters on the scores."""
