"""The composition root, what follows the ledger, and what works on a fleet from outside."""
