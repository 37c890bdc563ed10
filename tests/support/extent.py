"""How much is tested.

make test                                each feature in jails; the main stories of Docker and Kubernetes
make test-all                            as CI: also what stands in `THOROUGH` and `ENGINES`
KERNELBROKER_TEST_WHOLE=1 make test-all  also what has the mark `long`; more generated requests
"""

from __future__ import annotations

import os
import re

WHOLE = bool(os.environ.get("KERNELBROKER_TEST_WHOLE"))

THOROUGH = (
    # Crashes, faults and load.
    "api/test_loop_time.py",
    "chaos",
    "cluster",
    "e2e/test_adoption.py",
    "e2e/test_burst.py",
    "e2e/test_damaged_state.py",
    "e2e/test_deaths.py",
    "e2e/test_load.py",
    "e2e/test_process_checkpoints.py",
    "upgrade",
    # Attacks.
    "e2e/test_hostile_agents.py",
    "e2e/test_hostile_packages.py",
    "security",
    # Programs of others: browsers, Jupyter's and E2B's clients, coding agents, forges, servers of S3.
    "console",
    "e2b/test_containers.py",
    "e2b/test_frameworks.py",
    "e2e/test_browser.py",
    "e2e/test_browser_network.py",
    "e2e/test_browser_tools.py",
    "e2e/test_coding_agents.py",
    "e2e/test_forges.py",
    "e2e/test_index.py",
    "e2e/test_notebooks.py",
    "jupyter/test_clients.py",
    "jupyter/test_errors.py",
    "jupyter/test_many.py",
    "workspaces/test_s3_store.py",
    # Installations.
    "compose",
    # One property in many ways.
    "backends/test_checkpoint_parity.py",
    "backends/test_fork_user_code.py",
    "e2e/test_host_projects.py",
)
"""Directories and files of tests that only `make test-all` has."""

ENGINES = re.compile("docker|podman|gvisor|kubernetes|engine")
"""The ids of tests of other kinds of sandboxes, of which `make test` has those of `MAIN`."""
MAIN = ("backends/test_docker.py", "e2e/test_docker.py", "e2e/test_kubernetes.py")


def is_thorough(path: str, nodeid: str) -> bool:
    """Whether only `make test-all` has a test.

    Args:
        path: of its file, below `tests`.
    """
    if any(path == each or path.startswith(f"{each}/") for each in THOROUGH):
        return True
    return path not in MAIN and ENGINES.search(nodeid) is not None
