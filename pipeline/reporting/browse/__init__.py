"""A local web page that shows the documents, scores and limits of a run, read-only.

index.py collects the columns by which documents are found. search.py, texts.py, documents.py,
differences.py, domains.py, effects.py and histograms.py answer questions from them. server.py
serves the answers to the page in assets/.

    with build_index(RunFolder.open("runs/ccnet")) as index:
        server.serve(index, port=8000, announce=print)
"""

from pipeline.reporting.browse.index import Index, build_index

__all__ = ["Index", "build_index"]
