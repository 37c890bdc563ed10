"""`kernelbroker doctor`: looks for what keeps a broker from working here, and says what to do."""
