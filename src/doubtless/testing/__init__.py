"""Tools for proving that an action happened once: the hostile provider and its kin."""
