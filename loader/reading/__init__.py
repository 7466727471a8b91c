"""Reading manifests, indexes and tokens of a dataset."""
