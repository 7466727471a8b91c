"""Complete, commented configs; `python -m pipeline run NAME` finds them here."""
