"""Several brokers on one store: who owns what, and how requests come to the owner."""
