# The store: PostgreSQL with a private address only, backed up, and replicated across zones.

resource "google_sql_database_instance" "store" {
  project             = var.project
  region              = var.region
  name                = "${var.fleet}-store"
  database_version    = var.database_version
  deletion_protection = var.deletion_protection

  settings {
    tier                        = var.database_tier
    edition                     = "ENTERPRISE"
    availability_type           = var.availability_type
    disk_type                   = "PD_SSD"
    disk_autoresize             = true
    deletion_protection_enabled = var.deletion_protection
    user_labels                 = local.labels

    ip_configuration {
      ipv4_enabled    = false
      private_network = google_compute_network.fleet.id
      ssl_mode        = "ENCRYPTED_ONLY"
    }

    backup_configuration {
      enabled                        = true
      point_in_time_recovery_enabled = true
      transaction_log_retention_days = 7
      start_time                     = "02:00"

      backup_retention_settings {
        retained_backups = 30
        retention_unit   = "COUNT"
      }
    }

    maintenance_window {
      day          = 7
      hour         = 3
      update_track = "stable"
    }
  }

  depends_on = [google_service_networking_connection.services]
}

resource "google_sql_database" "store" {
  project         = var.project
  instance        = google_sql_database_instance.store.name
  name            = "vedette"
  deletion_policy = "ABANDON"
}

resource "google_sql_user" "store" {
  project             = var.project
  instance            = google_sql_database_instance.store.name
  name                = "vedette"
  password_wo         = var.database_password
  password_wo_version = var.secrets_version
}
