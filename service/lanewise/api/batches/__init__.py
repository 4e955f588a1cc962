"""Batches over HTTP: what asks in this process, what runs them, and their endpoints."""
