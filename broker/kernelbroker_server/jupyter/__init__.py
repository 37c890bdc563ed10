"""The broker as a Jupyter kernel server: every session is a kernel. Rules are the service's."""
