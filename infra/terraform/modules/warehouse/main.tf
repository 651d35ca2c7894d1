# Where the ledger is shipped to: tables in which every entry stands once, and views for the
# questions that operators ask.

locals {
  labels  = { fleet = var.fleet, managed-by = "terraform" }
  tables  = { for file in fileset("${var.definitions}/schema", "*.json") : trimsuffix(file, ".json") => "${var.definitions}/schema/${file}" }
  views   = { for file in fileset("${var.definitions}/views", "*.sql") : trimsuffix(file, ".sql") => "${var.definitions}/views/${file}" }
  dataset = "${var.project}.${google_bigquery_dataset.ledger.dataset_id}"
  texts   = { for view, file in local.views : view => templatefile(file, { dataset = local.dataset }) }
  # A view that stands on another one is made after it; they are at most three storeys high.
  stands_on = {
    for view, file in local.views : view => [
      for other in keys(local.views) : other if strcontains(file(file), "$${dataset}.${other}`")
    ]
  }
  first  = { for view, text in local.texts : view => text if length(local.stands_on[view]) == 0 }
  second = { for view, text in local.texts : view => text if length(local.stands_on[view]) > 0 && alltrue([for on in local.stands_on[view] : contains(keys(local.first), on)]) }
  third  = { for view, text in local.texts : view => text if !contains(keys(local.first), view) && !contains(keys(local.second), view) }
}

resource "google_bigquery_dataset" "ledger" {
  project                    = var.project
  location                   = var.region
  dataset_id                 = "vedette_${replace(var.fleet, "-", "_")}"
  description                = "The ledger of the fleet ${var.fleet}: no content, only entries and digests."
  max_time_travel_hours      = "168"
  delete_contents_on_destroy = false
  labels                     = local.labels
}

resource "google_bigquery_table" "table" {
  for_each = local.tables

  project             = var.project
  dataset_id          = google_bigquery_dataset.ledger.dataset_id
  table_id            = each.key
  schema              = file(each.value)
  clustering          = var.clustering[each.key]
  deletion_protection = var.deletion_protection
  labels              = local.labels

  time_partitioning {
    type  = "DAY"
    field = "recorded_at"
  }
}

resource "google_bigquery_table" "first" {
  for_each = local.first

  project             = var.project
  dataset_id          = google_bigquery_dataset.ledger.dataset_id
  table_id            = each.key
  deletion_protection = false # a view holds nothing
  labels              = local.labels

  view {
    query          = each.value
    use_legacy_sql = false
  }

  depends_on = [google_bigquery_table.table]
}

resource "google_bigquery_table" "second" {
  for_each = local.second

  project             = var.project
  dataset_id          = google_bigquery_dataset.ledger.dataset_id
  table_id            = each.key
  deletion_protection = false
  labels              = local.labels

  view {
    query          = each.value
    use_legacy_sql = false
  }

  depends_on = [google_bigquery_table.first]
}

resource "google_bigquery_table" "third" {
  for_each = local.third

  project             = var.project
  dataset_id          = google_bigquery_dataset.ledger.dataset_id
  table_id            = each.key
  deletion_protection = false
  labels              = local.labels

  view {
    query          = each.value
    use_legacy_sql = false
  }

  depends_on = [google_bigquery_table.second]
}
