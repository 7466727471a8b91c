"""Run the command line: `python -m loader`."""

import sys

try:
    from loader.cli import app, main
except ModuleNotFoundError as missing:
    if missing.name != "typer":
        raise
    sys.exit("python -m loader needs Typer, which is not installed; run pip install typer")

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
