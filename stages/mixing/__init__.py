"""How often each document is stored: copies by quality bin, and a budget of tokens."""
