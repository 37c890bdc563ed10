"""The use cases of clients, independent of the protocol."""
