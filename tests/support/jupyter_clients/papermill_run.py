"""papermill through Jupyter's gateway client: papermill_run.py NOTEBOOK OUTPUT."""

import sys

import papermill

papermill.execute_notebook(
    *sys.argv[1:],
    parameters={"factor": 3},
    kernel_manager_class="jupyter_server.gateway.managers.GatewayKernelManager",
    progress_bar=False,
)
