"""The order of rows as arithmetic on positions: no files are read here."""
