"""Façades for agents."""
