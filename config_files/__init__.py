"""Reads YAML files into checked settings, and documents their keys."""
