"""Tenants: who may use the broker, with which limits, and the tokens that authenticate them."""
