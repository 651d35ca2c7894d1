locals {
  tiles = [
    { title = "Events by outcome", unit = "1/s", query = "sum by (outcome) (rate(vedette_events_total[5m]))" },
    { title = "Decisions by outcome", unit = "1/s", query = "sum by (outcome) (rate(vedette_decisions_total[5m]))" },
    { title = "Denials by rule", unit = "1/s", query = "topk(10, sum by (rule) (rate(vedette_decisions_total{outcome=\"deny\"}[5m])))" },
    { title = "Effects by state", unit = "1/s", query = "sum by (state) (rate(vedette_effects_total[5m]))" },
    { title = "Runs that ended", unit = "1/s", query = "sum by (agent, state) (rate(vedette_runs_total[5m]))" },
    { title = "Pending runs", unit = "1", query = "sum(vedette_pending_runs)" },
    { title = "Accepted and not finished", unit = "1", query = "sum(vedette_accepted_unfinished)" },
    { title = "Keys that wait for a target", unit = "1", query = "sum(vedette_parked_keys)" },
    { title = "Live policy revision", unit = "1", query = "max(vedette_policy_revision)" },
    { title = "Publish, p99", unit = "s", query = "histogram_quantile(0.99, sum by (le) (rate(vedette_publish_seconds_bucket[1h])))" },
    { title = "Stop, p99", unit = "s", query = "histogram_quantile(0.99, sum by (le) (rate(vedette_stop_seconds_bucket[1h])))" },
    { title = "Ledger head", unit = "1", query = "max(vedette_ledger_head)" },
  ]
}

resource "google_monitoring_dashboard" "fleet" {
  project = var.project
  dashboard_json = jsonencode({
    displayName = "vedette ${var.fleet}"
    labels      = { fleet = var.fleet }
    mosaicLayout = {
      columns = 48
      tiles = [
        for index, tile in local.tiles : {
          xPos   = index % 3 * 16
          yPos   = floor(index / 3) * 12
          width  = 16
          height = 12
          widget = {
            title = tile.title
            xyChart = {
              dataSets = [{
                plotType        = "LINE"
                targetAxis      = "Y1"
                timeSeriesQuery = { prometheusQuery = tile.query, unitOverride = tile.unit }
              }]
            }
          }
        }
      ]
    }
  })
}
