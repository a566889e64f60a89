"""Reads metrics: the named queries and the Grafana dashboards built from them."""
