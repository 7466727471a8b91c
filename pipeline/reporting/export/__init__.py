"""Export the kept documents of a run as text, with their metadata and scores.

Formats: `parquet` and `jsonl` in the layout of Hugging Face, with a dataset card and Croissant
metadata, and `ccnet`. The same run gives the same bytes. `python -m loader export` writes tokens.

    export_run(RunFolder.open("runs/ccnet"), "s3://bucket/ccnet-text", "parquet")
"""

from pipeline.reporting.export.destination import OutputExists
from pipeline.reporting.export.export_run import FORMATS, Exported, export_run

__all__ = ["FORMATS", "Exported", "OutputExists", "export_run"]
