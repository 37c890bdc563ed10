"""Runs `jupyter_kernel_test` against a kernel of ipykernel's own, or against one behind URL with TOKEN."""

import os
import sys
import unittest

import jupyter_kernel_test
from jupyter_kernel_client import KernelHttpManager

URL, TOKEN = os.environ.get("URL"), os.environ.get("TOKEN")


class PythonTests(jupyter_kernel_test.KernelTests):
    kernel_name = "python3"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('oops', file=sys.stderr)"
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result = [{"code": "1+2+3", "result": "6"}, {"code": "[n*n for n in range(3)]"}]
    code_display_data = [
        {"code": f"from IPython.display import *; display({made})", "mime": mime}
        for made, mime in (("HTML('<b>1</b>')", "text/html"), ("Math('x^2')", "text/latex"))
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples = ["1", "print('hello')", "def f(x):\n  return x*2\n\n"]
    incomplete_code_samples = ["print('hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]

    if URL:

        @classmethod
        def setUpClass(cls):
            cls.km = KernelHttpManager(f"{URL}/jupyter", TOKEN)
            cls.km.start_kernel("python3")
            cls.kc = cls.km.client
            cls.kc.start_channels()
            cls.kc.wait_for_ready(timeout=30)

        @classmethod
        def tearDownClass(cls):
            cls.kc.stop_channels()
            cls.km.shutdown_kernel(now=True)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
