"""The pure part of perdure: state and command in, events out. No clock, no I/O, no threads, no randomness."""
