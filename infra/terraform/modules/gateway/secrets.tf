# What the gateway reads and nobody else does. Values are write-only: neither plan nor state has
# them.

locals {
  secrets = toset(["database-url", "ledger-key", "policy-key", "settings", "router", "metrics"])
}

resource "google_secret_manager_secret" "gateway" {
  for_each = local.secrets

  project             = var.project
  secret_id           = "${var.fleet}-${each.key}"
  labels              = local.labels
  deletion_protection = var.deletion_protection

  replication {
    user_managed {
      replicas {
        location = var.region
      }
    }
  }
}

resource "google_secret_manager_secret_version" "database_url" {
  secret                 = google_secret_manager_secret.gateway["database-url"].id
  secret_data_wo         = "postgresql://vedette:${var.database_password}@${google_sql_database_instance.store.private_ip_address}:5432/${google_sql_database.store.name}?sslmode=require"
  secret_data_wo_version = var.secrets_version
  deletion_policy        = "DISABLE"

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_secret_manager_secret_version" "ledger_key" {
  secret                 = google_secret_manager_secret.gateway["ledger-key"].id
  secret_data_wo         = var.ledger_key
  secret_data_wo_version = var.secrets_version
  is_secret_data_base64  = true
  deletion_policy        = "DISABLE"

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_secret_manager_secret_version" "policy_key" {
  secret                 = google_secret_manager_secret.gateway["policy-key"].id
  secret_data_wo         = var.policy_key
  secret_data_wo_version = var.secrets_version
  is_secret_data_base64  = true
  deletion_policy        = "DISABLE"

  lifecycle {
    create_before_destroy = true
  }
}

# The next three are no secrets, only files that Cloud Run mounts this way. A change makes a new
# version and with it a new revision of the service; the older one stays for an older revision.
resource "google_secret_manager_secret_version" "settings" {
  secret          = google_secret_manager_secret.gateway["settings"].id
  secret_data     = var.settings
  deletion_policy = "ABANDON"

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_secret_manager_secret_version" "router" {
  secret          = google_secret_manager_secret.gateway["router"].id
  secret_data     = file("${path.module}/router.conf")
  deletion_policy = "ABANDON"

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_secret_manager_secret_version" "metrics" {
  secret          = google_secret_manager_secret.gateway["metrics"].id
  secret_data     = file("${path.module}/metrics.yaml")
  deletion_policy = "ABANDON"

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_secret_manager_secret_iam_member" "gateway_reads" {
  for_each = local.secrets

  project   = var.project
  secret_id = google_secret_manager_secret.gateway[each.key].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.gateway.member
}

resource "google_secret_manager_secret_iam_member" "gateway_reads_targets" {
  for_each = var.target_secrets

  project   = var.project
  secret_id = each.key
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.gateway.member
}
