"""Packed rows: documents that fit into a row are not cut. The rows are laid out once, in an index."""
