"""The percentiles and the token budget of `select.mix`."""
