"""The law, as pure functions over plain values: no clock, no randomness, no I/O."""
