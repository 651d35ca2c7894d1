"""Asks, publishes, signs, distributes and replays policy."""
