"""The inner loops of deduplication: MinHash, exact similarities, spans of words."""
