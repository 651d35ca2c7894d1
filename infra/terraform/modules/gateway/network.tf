# The fleet's own network: private addresses, Google's APIs, and no way out to the internet for
# whatever sends all its traffic here (agents do).

locals {
  labels = { fleet = var.fleet, managed-by = "terraform" }
}

resource "google_compute_network" "fleet" {
  project                 = var.project
  name                    = var.fleet
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "fleet" {
  project                  = var.project
  region                   = var.region
  name                     = var.fleet
  network                  = google_compute_network.fleet.id
  ip_cidr_range            = var.subnet
  private_ip_google_access = true
}

# Addresses for the database, and the peering that reaches it.
resource "google_compute_global_address" "services" {
  project       = var.project
  name          = "${var.fleet}-services"
  network       = google_compute_network.fleet.id
  purpose       = "VPC_PEERING"
  address_type  = "INTERNAL"
  prefix_length = 20
}

resource "google_service_networking_connection" "services" {
  network                 = google_compute_network.fleet.id
  service                 = "servicenetworking.googleapis.com"
  reserved_peering_ranges = [google_compute_global_address.services.name]
}
