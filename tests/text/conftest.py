"""Settings and helper paths of the text tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# importlib import mode puts no test folder on the path; the helpers beside the tests need it.
sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
