"""Files of CSV series and of JSON lines as sources."""
