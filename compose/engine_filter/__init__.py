"""What lets the broker use a container engine, and no more of it than it needs.

Whoever may speak to an engine's socket is root on its machine. So the broker's container gets this
filter's socket instead: the calls that a broker makes pass, for containers like its sandboxes; all
else is refused. What is defended against is a broker that somebody else has taken over.
"""
