output "dataset" {
  description = "The dataset, as [audit] of vedette.toml has it."
  value       = google_bigquery_dataset.ledger.dataset_id
}

output "tables" {
  description = "Its tables, with how each is clustered."
  value       = { for name, table in google_bigquery_table.table : name => table.clustering }
}

output "views" {
  description = "Its views."
  value       = sort(keys(local.views))
}

output "witness" {
  description = "The dataset of the nightly snapshots, where the gateway has no role."
  value       = google_bigquery_dataset.witness.dataset_id
}
