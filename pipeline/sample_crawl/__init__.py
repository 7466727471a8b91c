"""A crawl made on this machine from real sentences, with a table of expected decisions.

From an argument to a file, one module per step:

    keyed_random   every random choice is a hash of the seed and of the thing chosen
    kinds          kinds of pages, their shares, and what a run must do with them
    texts, sites   sentences and paragraphs; hosts, navigation lines and footers
    pages          position in the crawl -> role -> kind, language, site, lines
    records        page -> WARC records
    truth_table    page -> row of truth.parquet
    generator      writes the files
"""
