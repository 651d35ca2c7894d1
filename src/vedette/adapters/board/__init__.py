"""A board of comments: the target of the shipped agent content_moderation."""
