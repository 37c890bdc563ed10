"""Marks fields of `SandboxSpec` that releases after 0.1.0 have added.

While such a field has its default, brokers adopt the sandboxes of earlier releases.
"""

from __future__ import annotations

ADDED = {"added": True}
"""The metadata of the field."""
