"""Adapters inside other people's engines. Each is imported with its library, and only then."""
