"""The commands of `python -m pipeline`, one module each. `pipeline/cli.py` joins them."""
