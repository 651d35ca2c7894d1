"""What stands below the nouns: errors, clock, canonical bytes; it alone touches clock and disk."""
