"""Work on batches of documents: one file per kind of work, each to the contract of `stages.contract`."""
