"""What people and machines are told of requests: logs, traces, metrics, notices."""
