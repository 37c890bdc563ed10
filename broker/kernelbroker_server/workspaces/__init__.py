"""Workspaces: the files of sessions, by tenant and name, and the quota that they are held to."""
