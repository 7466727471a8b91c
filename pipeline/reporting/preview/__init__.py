"""Preview other thresholds of `select` on a finished run, from its stored scores.

The decisions are those that a run with these settings would write, because the same stages judge
the same stored scores. Nothing is written to the run.

    found = preview(RunFolder.open("runs/ccnet"), ["select.language.min_score=0.65"])
    found.before.num_docs, found.after.num_docs     # 10252, 9871
    print_preview(found, SafeConsole())
"""

from pipeline.reporting.preview.effects import Preview
from pipeline.reporting.preview.preview_run import preview
from pipeline.reporting.preview.terminal import print_preview

__all__ = ["Preview", "preview", "print_preview"]
