"""Durable operations for the external actions of AI agents."""

__version__ = "0.1.0"
