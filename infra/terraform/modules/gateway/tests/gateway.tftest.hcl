mock_provider "google" {
  mock_resource "google_service_account" {
    defaults = {
      email  = "harbour-gateway@p.iam.gserviceaccount.com"
      member = "serviceAccount:harbour-gateway@p.iam.gserviceaccount.com"
    }
  }
  mock_resource "google_sql_database_instance" {
    defaults = { private_ip_address = "10.1.2.3" }
  }
  mock_resource "google_project_iam_custom_role" {
    defaults = { name = "projects/p/roles/vedette_harbour_replaces" }
  }
}

variables {
  project           = "p"
  region            = "europe-west1"
  fleet             = "harbour"
  image             = "image:1"
  settings          = "fleet = \"harbour\""
  database_password = "seeded-password"
  ledger_key        = "c2VlZGVkLWxlZGdlcg=="
  policy_key        = "c2VlZGVkLXBvbGljeQ=="
}

run "a_gateway" {
  # No public access.
  assert {
    condition     = google_cloud_run_v2_service.gateway.ingress == "INGRESS_TRAFFIC_INTERNAL_ONLY"
    error_message = "Nobody on the internet reaches the gateway."
  }
  assert {
    condition = (
      !google_sql_database_instance.store.settings[0].ip_configuration[0].ipv4_enabled
      && google_sql_database_instance.store.settings[0].ip_configuration[0].private_network == google_compute_network.fleet.id
      && google_sql_database_instance.store.settings[0].ip_configuration[0].ssl_mode == "ENCRYPTED_ONLY"
      && length(google_sql_database_instance.store.settings[0].ip_configuration[0].authorized_networks) == 0
    )
    error_message = "The database has a private address only, and speaks TLS only."
  }
  assert {
    condition = (
      google_storage_bucket.bundles.public_access_prevention == "enforced"
      && google_storage_bucket.bundles.uniform_bucket_level_access
    )
    error_message = "The bundles are nobody else's, object by object either."
  }
  assert {
    condition     = !google_compute_network.fleet.auto_create_subnetworks && google_compute_subnetwork.fleet.private_ip_google_access
    error_message = "The fleet's network is its own, and reaches Google's APIs from private addresses."
  }

  # Agents reach no private address.
  assert {
    condition = alltrue([
      for range in ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"] :
      contains(google_compute_firewall.agents_reach_no_private_address.destination_ranges, range)
    ])
    error_message = "The database, the mailbox and all other private addresses are barred."
  }
  assert {
    condition = alltrue([
      for bar in [google_compute_firewall.agents_reach_no_private_address, google_compute_firewall.agents_reach_nothing_else] :
      bar.direction == "EGRESS" && one(bar.deny).protocol == "all" && length(bar.allow) == 0 && !coalesce(bar.disabled, false)
      && join(",", bar.target_tags) == output.network.agent_tag && bar.network == google_compute_network.fleet.id
    ])
    error_message = "Both bars hold for what carries the agents' tag, for all protocols."
  }
  assert {
    condition = (
      google_compute_firewall.agents_reach_no_private_address.priority < google_compute_firewall.agents_reach_google.priority
      && google_compute_firewall.agents_reach_google.priority < google_compute_firewall.agents_reach_nothing_else.priority
      && join(",", one(google_compute_firewall.agents_reach_google.allow).ports) == "443"
    )
    error_message = "What is allowed, HTTPS to Google, stands after the private addresses and before the rest."
  }
  assert {
    condition     = length(coalesce(google_cloud_run_v2_service.gateway.template[0].vpc_access[0].network_interfaces[0].tags, [])) == 0
    error_message = "The gateway itself reaches the database: it has no tag of agents."
  }

  # Kept.
  assert {
    condition = (
      google_storage_bucket.bundles.versioning[0].enabled
      && google_storage_bucket.bundles.soft_delete_policy[0].retention_duration_seconds == 90 * 86400
      && !google_storage_bucket.bundles.force_destroy
    )
    error_message = "A bundle that was overwritten or deleted can be had back for 90 days."
  }
  assert {
    condition     = length(google_storage_bucket.bundles.retention_policy) == 0 && length(google_storage_bucket.bundles.lifecycle_rule) == 0
    error_message = "A retention policy of the bucket would forbid every publication after the first; no rule may delete bundles."
  }
  assert {
    condition = (
      google_sql_database_instance.store.deletion_protection
      && google_sql_database_instance.store.settings[0].deletion_protection_enabled
      && google_cloud_run_v2_service.gateway.deletion_protection
      && alltrue([for secret in google_secret_manager_secret.gateway : secret.deletion_protection])
      && google_sql_database.store.deletion_policy == "ABANDON"
    )
    error_message = "Nothing that holds state is deleted by accident."
  }
  assert {
    condition = (
      google_sql_database_instance.store.settings[0].backup_configuration[0].enabled
      && google_sql_database_instance.store.settings[0].backup_configuration[0].point_in_time_recovery_enabled
      && google_sql_database_instance.store.settings[0].backup_configuration[0].backup_retention_settings[0].retained_backups == 30
      && google_sql_database_instance.store.settings[0].availability_type == "REGIONAL"
    )
    error_message = "The store is backed up, and stands in two zones."
  }

  # Least access.
  assert {
    condition     = join(",", sort(keys(google_project_iam_member.gateway))) == "roles/monitoring.metricWriter"
    error_message = "On the project: write metrics; no other role."
  }
  assert {
    condition = alltrue([
      for read in google_secret_manager_secret_iam_member.gateway_reads :
      read.role == "roles/secretmanager.secretAccessor" && read.member == google_service_account.gateway.member
    ])
    error_message = "The gateway reads its secrets, one by one."
  }
  assert {
    condition = (
      google_storage_bucket_iam_member.gateway_reads.role == "roles/storage.objectViewer"
      && google_storage_bucket_iam_member.gateway_adds.role == "roles/storage.objectCreator"
    )
    error_message = "The gateway reads and adds bundles."
  }
  assert {
    condition = (
      join(",", google_project_iam_custom_role.replaces.permissions) == "storage.objects.delete"
      && google_storage_bucket_iam_member.gateway_replaces.role == google_project_iam_custom_role.replaces.name
      && google_storage_bucket_iam_member.gateway_replaces.condition[0].expression == "resource.name == 'projects/_/buckets/p-harbour-bundles/objects/bundles/harbour.tar.gz'"
    )
    error_message = "The gateway replaces the live bundle's object; archived ones it can neither change nor delete."
  }
  assert {
    condition     = google_cloud_run_v2_service.gateway.template[0].service_account == google_service_account.gateway.email
    error_message = "The gateway runs as itself, not as the project's default account."
  }

  # Secrets by reference.
  assert {
    condition = (
      google_sql_user.store.password_wo_version == 1
      && google_secret_manager_secret_version.database_url.secret_data_wo_version == 1
      && google_secret_manager_secret_version.ledger_key.secret_data_wo_version == 1
      && google_secret_manager_secret_version.policy_key.secret_data_wo_version == 1
    )
    error_message = "Passwords and keys are write-only: told once for each version."
  }
  assert {
    condition = alltrue(flatten([
      for container in google_cloud_run_v2_service.gateway.template[0].containers : [
        for env in container.env : try(env.value_source[0].secret_key_ref[0].secret, "") == "harbour-database-url"
      ]
    ]))
    error_message = "No value of the environment is written out."
  }
  assert {
    condition     = google_secret_manager_secret_version.ledger_key.is_secret_data_base64 && google_secret_manager_secret_version.policy_key.is_secret_data_base64
    error_message = "Keys are stored as the bytes they are."
  }

  # Always on.
  assert {
    condition = (
      google_cloud_run_v2_service.gateway.template[0].scaling[0].min_instance_count == 1
      && alltrue([for container in google_cloud_run_v2_service.gateway.template[0].containers : !container.resources[0].cpu_idle])
    )
    error_message = "The gateway works when nobody asks it anything."
  }
}

run "further_secrets_are_named" {
  command = plan

  variables {
    target_secrets = ["oncall-token"]
  }

  assert {
    condition = (
      google_secret_manager_secret_iam_member.gateway_reads_targets["oncall-token"].role == "roles/secretmanager.secretAccessor"
      && google_secret_manager_secret_iam_member.gateway_reads_targets["oncall-token"].member == google_service_account.gateway.member
    )
    error_message = "The gateway alone reads a target's secret."
  }
}

run "no_sidecar_no_role" {
  command = plan

  variables {
    metrics_image = null
  }

  assert {
    condition = (
      length(google_project_iam_member.gateway) == 0
      && length(google_cloud_run_v2_service.gateway.template[0].containers) == 2
    )
    error_message = "Who writes no metrics has no role for it."
  }
}

run "half_a_zone" {
  command = plan

  variables {
    availability_type = "NONE"
  }

  expect_failures = [var.availability_type]
}

run "too_old_a_database" {
  command = plan

  variables {
    database_version = "POSTGRES_14"
  }

  expect_failures = [var.database_version]
}

run "a_gateway_is_no_agent" {
  command = plan

  variables {
    fleet = "agent"
  }

  expect_failures = [var.fleet]
}
