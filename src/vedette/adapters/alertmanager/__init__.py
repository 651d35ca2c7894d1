"""Alerts that an Alertmanager posts; `vedette.serve.alertmanager` takes them."""
