"""Lines of a log file as events of vedette, and notifications as lines of one."""
