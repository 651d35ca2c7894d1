"""What people order (each leaves an entry) and what they try (it leaves none)."""
