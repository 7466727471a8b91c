"""Stages that change the text of documents or turn it into tokens."""
