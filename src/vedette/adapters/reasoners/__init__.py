"""What answers the port Reasoner: a judge in this process, in a worker, a model by ADK."""
