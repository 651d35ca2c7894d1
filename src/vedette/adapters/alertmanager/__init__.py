"""Alerts that an Alertmanager posts; `vedette.interfaces.http.alertmanager_receiver` takes them."""
