"""Read documents from JSONL and Parquet files with a column of texts.

jsonl     lines of a file or a part of it -> rows and faults
parquet   row groups of a file -> rows and faults
fields    values of a row -> a document
reader    rows -> Arrow tables and a report
"""
