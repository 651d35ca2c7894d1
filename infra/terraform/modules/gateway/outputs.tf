output "service_account" {
  description = "The gateway's service account: an e-mail."
  value       = google_service_account.gateway.email
}

output "url" {
  description = "Where workers reach it, from the fleet's own network."
  value       = google_cloud_run_v2_service.gateway.uri
}

output "service" {
  description = "Its Cloud Run service."
  value       = google_cloud_run_v2_service.gateway.name
}

output "network" {
  description = "The fleet's own network, and the tag of what may reach no private address in it."
  value = {
    network    = google_compute_network.fleet.id
    subnetwork = google_compute_subnetwork.fleet.id
    agent_tag  = local.agent_tag
  }

  # No agent's process starts before the rules hold.
  depends_on = [
    google_compute_firewall.agents_reach_no_private_address,
    google_compute_firewall.agents_reach_google,
    google_compute_firewall.agents_reach_nothing_else,
  ]
}

output "bundles" {
  description = "Where bundles are put, as [policy] bundles of vedette.toml has it."
  value       = "gs://${google_storage_bucket.bundles.name}/bundles"
}

output "database" {
  description = "The database instance."
  value       = google_sql_database_instance.store.name
}
