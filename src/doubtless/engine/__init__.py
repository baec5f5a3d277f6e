"""The imperative shell: load, decide, act, record."""
