"""Extract title and text from HTML pages: `charset` decodes, `markup` mends, `extraction` parses."""
