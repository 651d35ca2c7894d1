output "queries" {
  description = "Every query of alarms and dashboard: a test compares their metrics with docs/telemetry.md."
  value = concat(
    [for alarm in local.alarms : alarm.query],
    [for tile in local.tiles : tile.query],
  )
}

output "slo" {
  description = "The service level objective; null without one."
  value       = one(google_monitoring_slo.runs[*].name)
}
