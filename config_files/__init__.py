"""Read YAML files into checked settings, and document their keys."""
