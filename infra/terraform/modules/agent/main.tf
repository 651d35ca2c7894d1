# One agent: who it is, where its code runs, and what wakes it if not the shared subscription.
#
# The agent's process holds its own identity and nothing else, and has no role anywhere: its ID token
# lets it in at the gateway. Whatever it has done is done by the gateway, with a token that the
# gateway mints for the one call.

locals {
  id     = "agent-${replace(var.name, "_", "-")}"
  labels = { fleet = var.fleet, agent = var.name, managed-by = "terraform" }
}

resource "google_service_account" "agent" {
  project      = var.project
  account_id   = local.id
  display_name = "vedette ${var.fleet}: ${var.name}"
}

# The gateway, and nobody else, may act as this agent: that is how a call gets its token.
resource "google_service_account_iam_member" "gateway_mints" {
  service_account_id = google_service_account.agent.name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = "serviceAccount:${var.gateway.service_account}"
}

resource "google_cloud_run_v2_worker_pool" "agent" {
  count = var.worker ? 1 : 0

  project             = var.project
  location            = var.region
  name                = "${var.fleet}-${replace(var.name, "_", "-")}"
  launch_stage        = var.launch_stage
  deletion_protection = var.deletion_protection
  labels              = local.labels

  scaling {
    scaling_mode          = "MANUAL"
    manual_instance_count = var.instances
  }

  template {
    service_account = google_service_account.agent.email
    labels          = local.labels

    containers {
      name  = "worker"
      image = var.image
      args = [
        "worker", "--agent", var.name, "--agents", "/fleet/agents",
        "--gateway", var.gateway.url, "--identity", "google:${var.gateway.audience}",
      ]

      resources {
        limits = var.limits
      }
    }

    # All traffic goes into a network without a way out, and the tag bars the private addresses in
    # it (database, mailbox): the gateway and Google's APIs are all that agent code can reach.
    vpc_access {
      egress = "ALL_TRAFFIC"

      network_interfaces {
        network    = var.network.network
        subnetwork = var.network.subnetwork
        tags       = [var.network.agent_tag]
      }
    }
  }
}
