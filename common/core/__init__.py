"""Pure policy: events in, effects out. No clocks, threads, sockets, tensors or random numbers of its own."""
