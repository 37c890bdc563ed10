"""The protocol between a client and the broker: messages, their JSON, and errors. No I/O.

Broker and SDK share it, so that what one writes the other can read.
"""
