"""A module that can't be imported, as a look-up names it."""

raise RuntimeError("there is no configuration")
