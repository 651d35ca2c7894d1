"""What answers the port Performer."""
