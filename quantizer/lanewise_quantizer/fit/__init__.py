"""Codes, scales and tables that lose least: calibration, tables, error feedback."""
