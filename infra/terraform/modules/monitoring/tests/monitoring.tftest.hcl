mock_provider "google" {
  mock_resource "google_monitoring_notification_channel" {
    defaults = { name = "projects/p/notificationChannels/1" }
  }
}

variables {
  project            = "p"
  fleet              = "harbour"
  emails             = ["oncall@example.org"]
  database           = "harbour-store"
  dead_subscriptions = ["harbour-mails-dead", "harbour-metrics-dead"]
}

run "alarms" {
  # Alarms reach somebody.
  assert {
    condition = alltrue([
      for alarm in concat(
        values(google_monitoring_alert_policy.metric), values(google_monitoring_alert_policy.dead_letters),
        [google_monitoring_alert_policy.database_disk, google_monitoring_alert_policy.burning[0]],
      ) : tolist(alarm.notification_channels) == tolist(["projects/p/notificationChannels/1"])
    ])
    error_message = "Every alarm goes to every address."
  }
  assert {
    condition     = alltrue([for alarm in google_monitoring_alert_policy.metric : length(alarm.documentation[0].content) > 20])
    error_message = "Every alarm says what to do."
  }

  # What docs/telemetry.md names.
  assert {
    condition = alltrue([
      for metric in ["vedette_store_failures_total", "vedette_runs_total", "vedette_policy_refused_total", "vedette_parked_total",
      "vedette_budget_alerts_total", "vedette_pending_runs", "vedette_breakers_open", "vedette_stops"] :
      anytrue([
        for alarm in google_monitoring_alert_policy.metric :
        strcontains(alarm.conditions[0].condition_prometheus_query_language[0].query, metric)
      ])
    ])
    error_message = "What docs/telemetry.md calls worth an alarm has one."
  }
  assert {
    condition     = strcontains(google_monitoring_alert_policy.metric["silent"].conditions[0].condition_prometheus_query_language[0].query, "absent(")
    error_message = "Silence is an alarm too."
  }

  # Dead letters.
  assert {
    condition = alltrue([
      for name in ["harbour-mails-dead", "harbour-metrics-dead"] :
      strcontains(google_monitoring_alert_policy.dead_letters[name].conditions[0].condition_threshold[0].filter, "subscription_id = \"${name}\"")
      && google_monitoring_alert_policy.dead_letters[name].conditions[0].condition_threshold[0].threshold_value == 0
    ])
    error_message = "One dead letter is an alarm, whichever stream it comes from."
  }

  # Objective.
  assert {
    condition     = google_monitoring_slo.runs[0].goal == 0.999 && google_monitoring_slo.runs[0].rolling_period_days == 28
    error_message = "999 of 1,000 runs over 28 days."
  }
  assert {
    condition = (
      strcontains(google_monitoring_slo.runs[0].request_based_sli[0].good_total_ratio[0].good_service_filter, "state = \"done\"")
      && strcontains(google_monitoring_slo.runs[0].request_based_sli[0].good_total_ratio[0].bad_service_filter, "state = \"dead\"")
    )
    error_message = "Good is done, bad is dead."
  }

  # Dashboard.
  assert {
    condition = (
      length(jsondecode(google_monitoring_dashboard.fleet.dashboard_json).mosaicLayout.tiles) == 12
      && alltrue([
        for tile in jsondecode(google_monitoring_dashboard.fleet.dashboard_json).mosaicLayout.tiles :
        tile.xPos + tile.width <= 48 && strcontains(tile.widget.xyChart.dataSets[0].timeSeriesQuery.prometheusQuery, "vedette_")
      ])
    )
    error_message = "Twelve charts, none of them outside the dashboard."
  }
}

run "before_the_first_metric" {
  command = plan

  variables {
    objective = false
  }

  assert {
    condition     = length(google_monitoring_slo.runs) == 0 && length(google_monitoring_alert_policy.burning) == 0 && length(google_monitoring_alert_policy.metric) > 0
    error_message = "The objective waits for its metric; alarms do not."
  }
}

run "nobody_listens" {
  command = plan

  variables {
    emails = []
  }

  expect_failures = [var.emails]
}

run "no_room_for_failure" {
  command = plan

  variables {
    goal = 1
  }

  expect_failures = [var.goal]
}
