# The fleet's own network: private addresses, Google's APIs, and no way out to the internet for
# whatever sends all its traffic here (agents do). The database and the mailbox stand in it too, or
# beside it, so agents' processes carry a tag, and what has the tag reaches no private address.

locals {
  labels    = { fleet = var.fleet, managed-by = "terraform" }
  agent_tag = "${var.fleet}-agent"
  # RFC 1918, RFC 6598, and what Google lets a network use beside these.
  private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4"]
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

# Three rules, the lowest number first: no private address; of the others port 443, of which only
# Google answers where there is no NAT (the gateway's run.app address is one of them); nothing else,
# whatever addresses somebody peers here. Name service and tokens come from the metadata server,
# which no rule forbids.
resource "google_compute_firewall" "agents_reach_no_private_address" {
  project            = var.project
  name               = "${var.fleet}-agents-no-private-address"
  network            = google_compute_network.fleet.id
  direction          = "EGRESS"
  priority           = 900
  target_tags        = [local.agent_tag]
  destination_ranges = local.private

  deny {
    protocol = "all"
  }

  log_config {
    metadata = "INCLUDE_ALL_METADATA"
  }
}

resource "google_compute_firewall" "agents_reach_google" {
  project            = var.project
  name               = "${var.fleet}-agents-google"
  network            = google_compute_network.fleet.id
  direction          = "EGRESS"
  priority           = 1000
  target_tags        = [local.agent_tag]
  destination_ranges = ["0.0.0.0/0"]

  allow {
    protocol = "tcp"
    ports    = ["443"]
  }
}

resource "google_compute_firewall" "agents_reach_nothing_else" {
  project            = var.project
  name               = "${var.fleet}-agents-nothing-else"
  network            = google_compute_network.fleet.id
  direction          = "EGRESS"
  priority           = 1100
  target_tags        = [local.agent_tag]
  destination_ranges = ["0.0.0.0/0"]

  deny {
    protocol = "all"
  }
}
