"""The ways to tell people that are shipped: a webhook, and mail."""
