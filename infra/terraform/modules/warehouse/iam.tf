# The gateway adds rows and asks how far it is. It can neither make nor drop a table, but it can
# delete and rewrite rows: BigQuery has no permission to append alone (tables.updateData carries
# DML), and asking takes a query job. So the shipped table is a copy and no witness against the
# gateway; the snapshots of witness.tf are.

locals {
  gateway = "serviceAccount:${var.gateway}"
}

resource "google_project_iam_custom_role" "ships" {
  project = var.project
  role_id = "vedette_${replace(var.fleet, "-", "_")}_ships"
  title   = "vedette ${var.fleet}: ships the ledger"
  permissions = [
    "bigquery.datasets.get",
    "bigquery.tables.get",
    "bigquery.tables.getData",
    "bigquery.tables.updateData",
  ]
}

resource "google_bigquery_dataset_iam_member" "gateway_ships" {
  project    = var.project
  dataset_id = google_bigquery_dataset.ledger.dataset_id
  role       = google_project_iam_custom_role.ships.name
  member     = local.gateway
}

resource "google_project_iam_member" "gateway_queries" {
  project = var.project
  role    = "roles/bigquery.jobUser"
  member  = local.gateway
}

resource "google_bigquery_table_iam_member" "gateway_reads" {
  for_each = var.sources

  project    = var.project
  dataset_id = each.value.dataset
  table_id   = each.value.table
  role       = "roles/bigquery.dataViewer"
  member     = local.gateway
}

resource "google_bigquery_dataset_iam_member" "reads" {
  for_each = toset(var.readers)

  project    = var.project
  dataset_id = google_bigquery_dataset.ledger.dataset_id
  role       = "roles/bigquery.dataViewer"
  member     = each.key
}
