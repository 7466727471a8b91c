"""Verification of a dataset: read every byte of it and report everything that is wrong."""
