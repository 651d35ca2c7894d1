"""What people look at, as tables: a function of the entries alone."""
