"""One run from event to effect: ingest, schedule, decide, perform, recover."""
