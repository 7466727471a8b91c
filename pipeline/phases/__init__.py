"""The phases of the pipeline: one class in one file each. Only `registry.py` lists them.

Files that each phase writes, per input split or partition (read back by range, never sent between machines):

    extract          SPLIT.documents.parquet  SPLIT.decisions.parquet  SPLIT.quarantine.jsonl
                     SPLIT.hashes.arrow: hashes of paragraphs  SPLIT.distinct_hashes.arrow: each hash once
    exact_hashes     SPLIT.contents.arrow
    exact_dedup      p000of001.found.arrow  exact_dedup.arrow: per split, the documents to drop and the ones kept
    paragraph_dedup  g000-p000of001.repeated.arrow: per split of the group, whether other splits have its hashes
    substring_hashes SPLIT.windows.arrow: hashes of all windows of words
    substring_dedup  p000of001.repeated.arrow: per split, the windows that an earlier document has
    annotate         SPLIT.documents.parquet  SPLIT.decisions.parquet  SPLIT.bands.arrow
                     SPLIT.ngrams.bin, to compare candidates for near-duplicates
    fuzzy_candidates p000of001.candidates.arrow  p000of001.wanted.arrow: per split, the n-grams to compare
    fuzzy_ngrams     s000000.sets.arrow: per partition, the n-grams that it wants of a split
    fuzzy_clusters   p000of001.forest.arrow: similar pairs
    fuzzy_ranges     p000of002.forest.arrow: those of a range of documents, where there are many
    fuzzy_merge      p000of001.clusters.arrow: documents that pairs connect
    fuzzy_members    p000of001.wanted.arrow: per split, the n-grams that fuzzy_dedup compares
    fuzzy_member_ngrams  s000000.sets.arrow: per task of fuzzy_dedup, the n-grams that it compares of a split
    fuzzy_dedup      p000of001.dropped.arrow  near_duplicates.arrow: per split, the documents to drop and the ones kept
    signal_percentiles  nothing but counters: the signals of the quality score, by language
    percentiles      nothing but counters: scores by language
    mix_percentiles  nothing but counters: scores and characters by language, and the tokens of a sample
    select           SPLIT.decisions.parquet: every document that reached this phase, kept or dropped  cuts.json
                     SPLIT.scores.parquet: quality scores, percentiles and copies of kept documents
    tokenize         SPLIT.tokens.bin  SPLIT.documents.arrow: both in the order of the global shuffle
    write_shards     shard-000000.tar  shard-000000.idx  ...  manifest.json
"""
