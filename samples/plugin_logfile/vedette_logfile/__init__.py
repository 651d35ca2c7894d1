"""Lines of a log file as events of vedette."""
