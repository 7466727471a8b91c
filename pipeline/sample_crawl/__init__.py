"""A crawl made from real texts, with a truth table."""
