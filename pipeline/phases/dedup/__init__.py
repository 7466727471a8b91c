"""The global phases of deduplication: exact copies, paragraphs and near-duplicates."""
