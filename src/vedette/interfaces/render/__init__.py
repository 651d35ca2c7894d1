"""How answers look: text, HTML and SVG of what the ledger's history says."""
