"""Checkpoints: a session's variables and files, saved as one stream, and loaded in another sandbox.

`values.py` decides how each variable is saved, `pickling.py` pickles what has no simpler form, and
`archive.py` is the format. `saving.py` and `loading.py` are the two operations. All of it runs inside a
sandbox: the broker stores the stream and never looks into it.
"""
