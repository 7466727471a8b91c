"""Extract title and text from HTML pages: `charset` decodes the bytes, `extraction` parses them."""
