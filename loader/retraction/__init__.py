"""Retracted documents: which tokens of a dataset must not be given."""
