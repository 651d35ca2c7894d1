"""One folder for each outside thing; vendors are imported when they are first needed."""
