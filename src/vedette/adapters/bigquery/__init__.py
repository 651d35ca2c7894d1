"""BigQuery: new rows of a table as events, and the ledger shipped into tables beside the store."""
