# The gateway: the one process with store, policy and credentials, behind an internal address.

resource "google_service_account" "gateway" {
  project      = var.project
  account_id   = "${var.fleet}-gateway"
  display_name = "vedette ${var.fleet}: gateway"
}

resource "google_project_iam_member" "gateway" {
  for_each = toset(concat(
    var.metrics_image == null ? [] : ["roles/monitoring.metricWriter"],
    var.model ? ["roles/aiplatform.user"] : [],
  ))

  project = var.project
  role    = each.key
  member  = google_service_account.gateway.member
}

locals {
  # Where the image's entry point takes keys from, and where settings lie.
  files = merge(
    {
      ledger-key = { mount = "/run/vedette/keys/ledger", file = "ledger.key", version = google_secret_manager_secret_version.ledger_key.version, for = "gateway" }
      policy-key = { mount = "/run/vedette/keys/policy", file = "policy.key", version = google_secret_manager_secret_version.policy_key.version, for = "gateway" }
      settings   = { mount = "/run/vedette/settings", file = "vedette.toml", version = google_secret_manager_secret_version.settings.version, for = "gateway" }
      router     = { mount = "/etc/nginx/vedette", file = "nginx.conf", version = google_secret_manager_secret_version.router.version, for = "router" }
    },
    var.metrics_image == null ? {} : {
      metrics = { mount = "/etc/rungmp", file = "config.yaml", version = google_secret_manager_secret_version.metrics.version, for = "metrics" }
    },
  )
}

resource "google_cloud_run_v2_service" "gateway" {
  project             = var.project
  location            = var.region
  name                = "${var.fleet}-gateway"
  deletion_protection = var.deletion_protection
  labels              = local.labels

  # Only this project's networks, Pub/Sub and the like reach it. Every door checks a token of its
  # own: Cloud Run's check would put its own mark in the place of the token's signature, and knows
  # neither people's OIDC provider nor senders' tokens.
  ingress              = "INGRESS_TRAFFIC_INTERNAL_ONLY"
  invoker_iam_disabled = true

  template {
    service_account                  = google_service_account.gateway.email
    labels                           = local.labels
    timeout                          = "3600s" # workers' WebSockets; they connect again
    max_instance_request_concurrency = 1000
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2"

    scaling {
      min_instance_count = 1
      max_instance_count = var.max_instances
    }

    containers {
      name       = "router"
      image      = var.router_image
      args       = ["nginx", "-c", "/etc/nginx/vedette/nginx.conf", "-g", "daemon off;"]
      depends_on = ["gateway"]

      ports {
        container_port = 8080
      }

      resources {
        cpu_idle = false
        limits   = { cpu = "0.5", memory = "256Mi" }
      }

      startup_probe {
        period_seconds    = 5
        failure_threshold = 24

        http_get {
          path = "/readyz"
          port = 8080
        }
      }

      volume_mounts {
        name       = "router"
        mount_path = local.files["router"].mount
      }
    }

    containers {
      name  = "gateway"
      image = var.image
      args  = ["--config", "${local.files["settings"].mount}/vedette.toml", "run", "--gateway"]

      # CPU is always there: the gateway works without anybody asking it anything.
      resources {
        cpu_idle = false
        limits   = var.limits
      }

      env {
        name = "VEDETTE_DATABASE"

        value_source {
          secret_key_ref {
            secret  = google_secret_manager_secret.gateway["database-url"].secret_id
            version = google_secret_manager_secret_version.database_url.version
          }
        }
      }

      startup_probe {
        period_seconds    = 5
        failure_threshold = 24

        tcp_socket {
          port = 8088
        }
      }

      dynamic "volume_mounts" {
        for_each = { for name, file in local.files : name => file if file.for == "gateway" }

        content {
          name       = volume_mounts.key
          mount_path = volume_mounts.value.mount
        }
      }

      dynamic "volume_mounts" {
        for_each = var.mailbox == null ? [] : [var.mailbox]

        content {
          name       = "mailbox"
          mount_path = "/mnt/mailbox"
        }
      }
    }

    dynamic "containers" {
      for_each = var.metrics_image == null ? [] : [var.metrics_image]

      content {
        name       = "metrics"
        image      = containers.value
        depends_on = ["gateway"]

        resources {
          cpu_idle = false
          limits   = { cpu = "0.5", memory = "256Mi" }
        }

        volume_mounts {
          name       = "metrics"
          mount_path = local.files["metrics"].mount
        }
      }
    }

    dynamic "volumes" {
      for_each = local.files

      content {
        name = volumes.key

        secret {
          secret       = google_secret_manager_secret.gateway[volumes.key].secret_id
          default_mode = 292 # 0444: read by the image's own user

          items {
            path    = volumes.value.file
            version = volumes.value.version
          }
        }
      }
    }

    dynamic "volumes" {
      for_each = var.mailbox == null ? [] : [var.mailbox]

      content {
        name = "mailbox"

        nfs {
          server = volumes.value.server
          path   = volumes.value.path
        }
      }
    }

    vpc_access {
      egress = "PRIVATE_RANGES_ONLY"

      network_interfaces {
        network    = google_compute_network.fleet.id
        subnetwork = google_compute_subnetwork.fleet.id
      }
    }
  }

  depends_on = [
    google_secret_manager_secret_iam_member.gateway_reads,
    google_secret_manager_secret_iam_member.gateway_reads_targets,
    google_sql_user.store,
  ]
}
