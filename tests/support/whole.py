"""Whether the whole of the tests is wanted: each story on each kind of sandbox, more generated requests.

KERNELBROKER_TEST_WHOLE=1 make test

Otherwise tests and cases with the mark `long` are left out.
"""

from __future__ import annotations

import os

WHOLE = bool(os.environ.get("KERNELBROKER_TEST_WHOLE"))
