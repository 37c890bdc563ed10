"""Pools of warm sandboxes. `state` decides without I/O, `runner` carries the decisions out."""
