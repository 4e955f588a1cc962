"""What Grafana's dashboards show."""
