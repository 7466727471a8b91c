"""Read documents from WET, WARC and ARC files.

From the file to documents, one module per step:

    decompress      bytes on disk -> a window over the decompressed bytes, and faults
    record_framing  decompressed bytes -> records, and broken stretches (`arc`: the ARC format)
    http            content of a response record -> status, content type, body
    documents       record -> row, skip reason or quarantine cause
    tables          rows -> Arrow tables
    reader          a file -> tables and a report
"""
