"""A folder into which other programs put one event a file, as a source."""
