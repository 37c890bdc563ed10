"""The care of a broker in production: backups, their restoration, and archives for support."""
