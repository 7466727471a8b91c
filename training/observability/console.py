"""Log messages on the terminal."""

from __future__ import annotations

import logging
import sys

from terminal_output import escape_output

LOGGERS = ("training", "loader", "storage")


class _ConsoleHandler(logging.Handler):
    """Prints messages to the current sys.stderr, which tests and notebooks replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def configure_logging(*, is_first_rank: bool) -> None:
    """Print log messages of this project to stderr, with control characters escaped.

    Rank 0 prints INFO and above, other ranks WARNING and above, so that the lines of a run do not
    appear once per rank. Calling it again replaces the handler.
    """
    escape_output()
    handler = _ConsoleHandler()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            if isinstance(old, _ConsoleHandler):
                logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if is_first_rank else logging.WARNING)
