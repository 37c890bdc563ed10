"""`jupyter_kernel_client` with a kernel of its own, or with that of a session. Prints JSON."""

import json
import os
import sys

from jupyter_kernel_client import JupyterKernelClient

found = {}
options = {"server_url": f"{os.environ['URL']}/jupyter", "token": os.environ["TOKEN"]}
kernel = JupyterKernelClient(kernel_id=next(iter(sys.argv[1:]), None), **options)
kernel.start()
found["printed"] = kernel.execute("print('hello'); amount = 7")["outputs"][0]["text"]
found["error"] = kernel.execute("1/0")["status"]
found["variables"] = [each["name"] for each in kernel.list_variables()]
found["listed"] = kernel.id in [each["id"] for each in kernel.list_kernels()]
kernel.restart()
found["alive"] = kernel.is_alive()
kernel.stop(shutdown_kernel=not sys.argv[1:])
sys.stdout.write(json.dumps(found))
