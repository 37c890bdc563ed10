"""What launches and removes sandboxes: the contract in `base`, and one module for each kind."""
