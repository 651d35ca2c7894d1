"""The store in SQL, whatever database holds it: steps, reads, ledger and the one writer."""
