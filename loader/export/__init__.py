"""Export a dataset into the formats of Megatron, MosaicML Streaming and Hugging Face.

Each document is written once, in the dataset's order, with its end-of-document token. Every sample
is checked against its checksum on the way. The libraries of the formats are not needed for writing.
Equal datasets give equal files.
"""

from loader.export.documents import Document, read_documents
from loader.export.mds import export_mds
from loader.export.megatron import export_megatron
from loader.export.parquet import export_parquet

__all__ = ["Document", "export_mds", "export_megatron", "export_parquet", "read_documents"]
