"""Who may use the broker: tenants, their limits, and the tokens that show who they are."""
