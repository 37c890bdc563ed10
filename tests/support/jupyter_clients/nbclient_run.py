"""nbclient through Jupyter's gateway client: nbclient_run.py NOTEBOOK."""

import sys

import nbformat
from jupyter_server.gateway.managers import GatewayKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

notebook = nbformat.read(sys.argv[1], 4)
client = NotebookClient(notebook, kernel_manager_class=GatewayKernelManager)
try:
    client.execute()
except CellExecutionError as error:
    notebook.metadata["failed"] = error.ename
nbformat.write(notebook, sys.argv[1])
