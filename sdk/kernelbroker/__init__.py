"""The kernelbroker SDK."""
