"""Time, memory and files of whole runs."""
