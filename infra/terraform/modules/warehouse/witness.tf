# What the gateway cannot rewrite: every night a snapshot of each shipped table, in a dataset where
# the gateway has no role, made by an account that may add snapshots and delete none. A snapshot is
# read-only, and costs what its table has lost since.

locals {
  witness = "serviceAccount:${google_service_account.witness.email}"
}

resource "google_bigquery_dataset" "witness" {
  project                    = var.project
  location                   = var.region
  dataset_id                 = "${google_bigquery_dataset.ledger.dataset_id}_witness"
  description                = "The shipped ledger of the fleet ${var.fleet} as it stood each night."
  max_time_travel_hours      = "168"
  delete_contents_on_destroy = false
  labels                     = local.labels
}

resource "google_service_account" "witness" {
  project      = var.project
  account_id   = "${var.fleet}-witness"
  display_name = "vedette ${var.fleet}: snapshots of the shipped ledger"
}

# The name has the day in it: a second run on the same day changes nothing.
resource "google_bigquery_data_transfer_config" "witness" {
  for_each = local.tables

  project              = var.project
  location             = var.region
  display_name         = "vedette ${var.fleet}: witness of ${each.key}"
  data_source_id       = "scheduled_query"
  schedule             = var.witness_schedule
  service_account_name = google_service_account.witness.email

  params = {
    query = <<-SQL
      EXECUTE IMMEDIATE CONCAT(
        "CREATE SNAPSHOT TABLE IF NOT EXISTS `${var.project}.${google_bigquery_dataset.witness.dataset_id}.${each.key}_",
        FORMAT_DATE("%Y%m%d", CURRENT_DATE("UTC")),
        "` CLONE `${local.dataset}.${each.key}`"
      );
    SQL
  }

  depends_on = [
    google_bigquery_table.table,
    google_bigquery_dataset_iam_member.witness_adds,
    google_bigquery_dataset_iam_member.witness_reads,
    google_project_iam_member.witness_queries,
  ]
}

resource "google_project_iam_custom_role" "witnesses" {
  project = var.project
  role_id = "vedette_${replace(var.fleet, "-", "_")}_witnesses"
  title   = "vedette ${var.fleet}: adds snapshots"
  permissions = [
    "bigquery.datasets.get",
    "bigquery.tables.create",
    "bigquery.tables.updateData",
  ]
}

resource "google_bigquery_dataset_iam_member" "witness_adds" {
  project    = var.project
  dataset_id = google_bigquery_dataset.witness.dataset_id
  role       = google_project_iam_custom_role.witnesses.name
  member     = local.witness
}

# roles/bigquery.dataViewer has tables.createSnapshot: taking one is reading.
resource "google_bigquery_dataset_iam_member" "witness_reads" {
  project    = var.project
  dataset_id = google_bigquery_dataset.ledger.dataset_id
  role       = "roles/bigquery.dataViewer"
  member     = local.witness
}

resource "google_project_iam_member" "witness_queries" {
  project = var.project
  role    = "roles/bigquery.jobUser"
  member  = local.witness
}

resource "google_bigquery_dataset_iam_member" "reads_witness" {
  for_each = toset(var.readers)

  project    = var.project
  dataset_id = google_bigquery_dataset.witness.dataset_id
  role       = "roles/bigquery.dataViewer"
  member     = each.key
}
