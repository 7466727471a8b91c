"""Text for terminals and logs: control characters of crawled data are shown, not sent.

A page of the crawl can have an escape sequence in its URL or title. A terminal that receives it
clears the screen or changes the clipboard. The commands therefore escape all of their output in
one place, at the streams of the process.
"""

from terminal_output.counts import format_count, format_short
from terminal_output.escape import escape
from terminal_output.program import format_command
from terminal_output.streams import escape_output

__all__ = ["escape", "escape_output", "format_command", "format_count", "format_short"]
