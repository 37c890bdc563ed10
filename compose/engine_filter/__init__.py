"""A filter between the broker and a container engine, which passes only the calls that the broker needs.

A process that can use the engine's socket is root on the machine. The broker's container therefore
gets the socket of this filter. The filter passes the broker's calls for containers like its
sandboxes and refuses all others. It protects the host from an attacker who controls the broker.
"""
