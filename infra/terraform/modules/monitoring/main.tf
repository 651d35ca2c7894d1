# Alarms, a dashboard and one service level objective, on the metrics of docs/telemetry.md as
# Managed Service for Prometheus keeps them.

locals {
  labels   = { fleet = var.fleet, managed-by = "terraform" }
  channels = [for channel in google_monitoring_notification_channel.email : channel.name]

  # What docs/telemetry.md says is worth an alarm. `for`: how long it must hold.
  alarms = {
    store_failures = {
      title    = "commits do not stand"
      query    = "sum(increase(vedette_store_failures_total[5m])) > 0"
      for      = "0s"
      severity = "CRITICAL"
      mend     = "Look at the database: disk, connections, locks. Nothing is lost: sources are not answered, and deliver again."
    }
    dead_runs = {
      title    = "runs were given up"
      query    = "sum by (agent) (increase(vedette_runs_total{state=\"dead\"}[10m])) > 0 or sum by (agent) (vedette_runs_total{state=\"dead\"} unless vedette_runs_total{state=\"dead\"} offset 10m) > 0"
      for      = "0s"
      severity = "ERROR"
      mend     = "`vedette dead` says why; mend it, then `vedette dead --redrive`."
    }
    policy_refused = {
      title    = "a policy was refused"
      query    = "sum(increase(vedette_policy_refused_total[10m])) > 0"
      for      = "0s"
      severity = "ERROR"
      mend     = "The policy of before stays in force. The ledger's policy.refused has the findings."
    }
    parked = {
      title    = "an agent was parked"
      query    = "sum by (agent) (increase(vedette_parked_total[10m])) > 0 or sum by (agent) (vedette_parked_total unless vedette_parked_total offset 10m) > 0"
      for      = "0s"
      severity = "ERROR"
      mend     = "It went over a ceiling. Look at what it did, then `vedette resume`."
    }
    budget = {
      title    = "a budget is nearly spent"
      query    = "sum by (agent, unit, window) (increase(vedette_budget_alerts_total[10m])) > 0 or sum by (agent, unit, window) (vedette_budget_alerts_total unless vedette_budget_alerts_total offset 10m) > 0"
      for      = "0s"
      severity = "WARNING"
      mend     = "80 % of a limit are taken: `vedette budget`."
    }
    backlog = {
      title    = "work piles up"
      query    = "sum(vedette_pending_runs) > 0 and min_over_time(sum(vedette_pending_runs)[30m:1m]) > 1000"
      for      = "300s"
      severity = "WARNING"
      mend     = "More comes in than is done. Is a worker connected for each agent? Is a target slow?"
    }
    breakers = {
      title    = "a target is left alone"
      query    = "max(vedette_breakers_open) > 0"
      for      = "600s"
      severity = "WARNING"
      mend     = "Calls of it fail; effects wait, and go on by themselves when it answers."
    }
    stopped = {
      title    = "a stop is in force"
      query    = "max(vedette_stops) > 0"
      for      = "3600s"
      severity = "WARNING"
      mend     = "Somebody, or a ceiling, stopped something an hour ago: `vedette status`."
    }
    silent = {
      title    = "the gateway says nothing"
      query    = "absent(vedette_ledger_head)"
      for      = "300s"
      severity = "CRITICAL"
      mend     = "Nothing is served: look at the Cloud Run service and its log."
    }
  }
}

resource "google_monitoring_notification_channel" "email" {
  for_each = toset(var.emails)

  project      = var.project
  display_name = "vedette ${var.fleet}: ${each.key}"
  type         = "email"
  labels       = { email_address = each.key }
}

resource "google_monitoring_alert_policy" "metric" {
  for_each = local.alarms

  project               = var.project
  display_name          = "vedette ${var.fleet}: ${each.value.title}"
  combiner              = "OR"
  severity              = each.value.severity
  notification_channels = local.channels
  user_labels           = local.labels

  conditions {
    display_name = each.value.title

    condition_prometheus_query_language {
      query               = each.value.query
      duration            = each.value.for
      evaluation_interval = "60s"
      # The metric may come later than its alarm.
      disable_metric_validation = true
    }
  }

  documentation {
    content   = each.value.mend
    mime_type = "text/markdown"
  }
}

# Messages that the broker could not hand over never reached the gateway: Pub/Sub counts them.
resource "google_monitoring_alert_policy" "dead_letters" {
  for_each = toset(var.dead_subscriptions)

  project               = var.project
  display_name          = "vedette ${var.fleet}: dead letters in ${each.key}"
  combiner              = "OR"
  severity              = "ERROR"
  notification_channels = local.channels
  user_labels           = local.labels

  conditions {
    display_name = "messages wait in ${each.key}"

    condition_threshold {
      filter          = "resource.type = \"pubsub_subscription\" AND resource.labels.subscription_id = \"${each.key}\" AND metric.type = \"pubsub.googleapis.com/subscription/num_undelivered_messages\""
      comparison      = "COMPARISON_GT"
      threshold_value = 0
      duration        = "0s"

      aggregations {
        alignment_period   = "60s"
        per_series_aligner = "ALIGN_MAX"
      }
    }
  }

  documentation {
    content   = "`vedette pubsub --redrive` publishes them again when what was wrong is mended. They are kept for 31 days."
    mime_type = "text/markdown"
  }
}

resource "google_monitoring_alert_policy" "database_disk" {
  project               = var.project
  display_name          = "vedette ${var.fleet}: the database fills its disk"
  combiner              = "OR"
  severity              = "ERROR"
  notification_channels = local.channels
  user_labels           = local.labels

  conditions {
    display_name = "more than 85 % of the disk"

    condition_threshold {
      filter          = "resource.type = \"cloudsql_database\" AND resource.labels.database_id = \"${var.project}:${var.database}\" AND metric.type = \"cloudsql.googleapis.com/database/disk/utilization\""
      comparison      = "COMPARISON_GT"
      threshold_value = 0.85
      duration        = "300s"

      aggregations {
        alignment_period   = "60s"
        per_series_aligner = "ALIGN_MEAN"
      }
    }
  }

  documentation {
    content   = "The disk grows by itself; if this stays, `vedette ledger archive` moves old entries out of the store."
    mime_type = "text/markdown"
  }
}

# --- service level ------------------------------------------------------------------------------

resource "google_monitoring_custom_service" "fleet" {
  count = var.objective ? 1 : 0

  project      = var.project
  service_id   = "vedette-${var.fleet}"
  display_name = "vedette ${var.fleet}"
}

resource "google_monitoring_slo" "runs" {
  count = var.objective ? 1 : 0

  project             = var.project
  service             = google_monitoring_custom_service.fleet[0].service_id
  slo_id              = "runs-done"
  display_name        = "Accepted events end as done runs"
  goal                = var.goal
  rolling_period_days = 28

  request_based_sli {
    good_total_ratio {
      good_service_filter = "metric.type = \"prometheus.googleapis.com/vedette_runs_total/counter\" AND resource.type = \"prometheus_target\" AND metric.labels.state = \"done\""
      bad_service_filter  = "metric.type = \"prometheus.googleapis.com/vedette_runs_total/counter\" AND resource.type = \"prometheus_target\" AND metric.labels.state = \"dead\""
    }
  }
}

# At this pace a month's allowance is gone in two days (Google's SRE workbook, chapter 5).
resource "google_monitoring_alert_policy" "burning" {
  count = var.objective ? 1 : 0

  project               = var.project
  display_name          = "vedette ${var.fleet}: the allowance of failed runs burns"
  combiner              = "OR"
  severity              = "ERROR"
  notification_channels = local.channels
  user_labels           = local.labels

  conditions {
    display_name = "14.4 times the pace that the goal allows"

    condition_threshold {
      filter          = "select_slo_burn_rate(\"${google_monitoring_slo.runs[0].name}\", \"3600s\")"
      comparison      = "COMPARISON_GT"
      threshold_value = 14.4
      duration        = "0s"
    }
  }
}
