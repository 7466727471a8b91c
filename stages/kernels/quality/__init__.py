"""The quality signals of RedPajama-V2, Gopher, C4 and FineWeb, computed for a batch of texts."""
