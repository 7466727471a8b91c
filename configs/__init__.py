"""Complete, commented configs, found here by name, and how a config file is read (reading.py)."""
