"""The promises, tried on the shipped program: real processes, sockets, servers and signals."""
