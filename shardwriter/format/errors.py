"""Errors about data that does not match the format.

FormatError (ValueError)        the data has another format, version or layout
    ShardCorrupt                bytes are damaged or cut off: copying the file again may help
"""

from __future__ import annotations

# The remedy for a damaged file.
REFETCH = "copy the file again from where it was written, or delete the shard and run the pipeline again"

# The remedy for a file with correct checksums and wrong content.
REWRITE = (
    "delete the shard and run the pipeline again; the file is complete, "
    "but it does not follow the format"
)

# The remedy for a changed manifest.
EDITED = "restore manifest.json as the pipeline wrote it; counts and names must not be edited by hand"


class FormatError(ValueError):
    """The data does not match this version of the format.

    Attributes:
        where: file, and place in the file.
        found: what is there.
        wanted: what should be there.
        remedy: how to repair it.
    """

    def __init__(self, where: str, found: str, wanted: str, remedy: str) -> None:
        # All four arguments go to the base class, because pickle passes them to the constructor.
        super().__init__(where, found, wanted, remedy)
        self.where, self.found, self.wanted, self.remedy = where, found, wanted, remedy

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}, wanted {self.wanted}; {self.remedy}"


class ShardCorrupt(FormatError):
    """The bytes of a shard or an index are damaged or cut off. Copying the file again may help."""
