"""Deliberate violations of the promises, and what shows that each promise's own test sees them."""
