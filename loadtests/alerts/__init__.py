"""Every alert, fired by the fault that it is for: ``python -m loadtests.alerts``."""
