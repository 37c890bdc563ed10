"""What differs in a Pod of the tests' cluster: its node decides it, and no NetworkPolicy is enforced there."""

ALSO_RIGHT: dict[str, tuple[str, str]] = {}
"""Further expected verdicts by the attempt's name, and the reason."""
