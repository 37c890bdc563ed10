"""What `jupyter_kernel_client` does with tokens and kernels that it may not use. Prints JSON.

Usage: kernel_client_errors.py CASES, where CASES is JSON: for each name a token and the id of a kernel. The
outcome of each case is the id of the kernel that has run a cell, or an error.
"""

import json
import os
import sys

from jupyter_kernel_client import JupyterKernelClient


def outcome(token, kernel_id):
    try:
        with JupyterKernelClient(
            server_url=f"{os.environ['URL']}/jupyter", token=token, kernel_id=kernel_id
        ) as kernel:
            assert kernel.execute("1")["status"] == "ok"
            return kernel.id
    except Exception as error:
        return f"{type(error).__name__}: {error}"


cases = json.loads(sys.argv[1])
sys.stdout.write(json.dumps({name: outcome(*case) for name, case in cases.items()}))
