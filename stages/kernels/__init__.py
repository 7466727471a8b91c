"""Compiled inner loops (numba)."""
