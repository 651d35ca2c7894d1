"""The read tables of a store, which people look at: a function of the entries alone."""
