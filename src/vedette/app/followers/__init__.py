"""What follows the ledger beside the line, and may fall behind it."""
