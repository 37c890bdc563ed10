"""The warm sandboxes: the rules in `state`, and the runner that carries them out in `runner`."""
