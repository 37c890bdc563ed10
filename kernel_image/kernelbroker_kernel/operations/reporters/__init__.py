"""What test frameworks load to report each test: programs of their own, which import nothing of this
package.

Each writes lines of JSON to the descriptor in KERNELBROKER_REPORT: ``{"test", "outcome": "passed" |
"failed" | "error" | "skipped", "seconds", "file"?, "line"?, "message"?, "output"?}``.
"""
