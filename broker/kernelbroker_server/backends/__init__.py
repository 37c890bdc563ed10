"""Launches and removes sandboxes: the contract in `base`, and a module for each kind of sandbox."""
