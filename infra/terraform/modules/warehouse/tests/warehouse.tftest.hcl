mock_provider "google" {
  mock_resource "google_service_account" {
    defaults = { email = "harbour-witness@p.iam.gserviceaccount.com" }
  }
}

variables {
  project     = "p"
  region      = "europe-west1"
  fleet       = "harbour"
  gateway     = "harbour-gateway@p.iam.gserviceaccount.com"
  definitions = "../../../../src/vedette/adapters/bigquery"
  readers     = ["group:compliance@example.org"]
}

run "a_warehouse" {
  # Tables as the engine ships them.
  assert {
    condition     = join(",", sort(keys(google_bigquery_table.table))) == "decisions,ledger"
    error_message = "The tables are those of the engine."
  }
  assert {
    condition = alltrue([
      for table in google_bigquery_table.table :
      table.time_partitioning[0].field == "recorded_at" && table.time_partitioning[0].type == "DAY"
      && length(table.clustering) == 3 && table.deletion_protection
    ])
    error_message = "Partitioned by day of recording, clustered, and not deleted by accident."
  }
  assert {
    condition = alltrue([
      for table in google_bigquery_table.table :
      contains([for column in jsondecode(table.schema) : column.name], "recorded_at")
      && length(setsubtract(table.clustering, [for column in jsondecode(table.schema) : column.name])) == 0
    ])
    error_message = "Partition and clusters are columns."
  }
  assert {
    condition     = !google_bigquery_dataset.ledger.delete_contents_on_destroy
    error_message = "A dataset that holds a ledger is not destroyed."
  }

  # Views.
  assert {
    condition     = contains(keys(google_bigquery_table.first), "entries") && google_bigquery_table.first["entries"].view[0].use_legacy_sql == false
    error_message = "The ledger as it stands is a view on the table."
  }
  assert {
    condition = alltrue([
      for view in concat(values(google_bigquery_table.first), values(google_bigquery_table.second), values(google_bigquery_table.third)) :
      strcontains(view.view[0].query, "`p.vedette_harbour.") && !strcontains(view.view[0].query, "$${dataset}")
    ])
    error_message = "Each view names this dataset."
  }
  assert {
    condition = length(setsubtract(
      ["actions_per_agent", "denials_by_rule", "cost_per_useful_action", "held_time"], output.views
    )) == 0
    error_message = "There is a view for each question that operators ask."
  }

  # Least access.
  assert {
    condition = (
      length(setintersection(google_project_iam_custom_role.ships.permissions, [
        "bigquery.tables.create", "bigquery.tables.delete", "bigquery.tables.update", "bigquery.tables.setIamPolicy",
      ])) == 0
      && google_bigquery_dataset_iam_member.gateway_ships.role == google_project_iam_custom_role.ships.name
      && google_bigquery_dataset_iam_member.gateway_ships.dataset_id == "vedette_harbour"
    )
    error_message = "The gateway can neither make, alter nor drop a table (rows it can: see witness.tf)."
  }
  assert {
    condition     = google_project_iam_member.gateway_queries.role == "roles/bigquery.jobUser"
    error_message = "On the project it may run queries, no more."
  }
  assert {
    condition = (
      join(",", keys(google_bigquery_dataset_iam_member.reads)) == "group:compliance@example.org"
      && google_bigquery_dataset_iam_member.reads["group:compliance@example.org"].role == "roles/bigquery.dataViewer"
    )
    error_message = "Readers read."
  }

  # A witness that the gateway cannot reach.
  assert {
    condition = (
      join(",", sort(keys(google_bigquery_data_transfer_config.witness))) == join(",", sort(keys(google_bigquery_table.table)))
      && alltrue([
        for table, config in google_bigquery_data_transfer_config.witness :
        strcontains(config.params.query, "CREATE SNAPSHOT TABLE IF NOT EXISTS `p.vedette_harbour_witness.${table}_\",")
        && strcontains(config.params.query, "CLONE `p.vedette_harbour.${table}`")
        && config.service_account_name == google_service_account.witness.email
        && config.data_source_id == "scheduled_query" && !coalesce(config.disabled, false)
      ])
    )
    error_message = "Every night a snapshot of each shipped table, in the witness dataset."
  }
  assert {
    condition = alltrue([
      for grant in concat(
        [google_bigquery_dataset_iam_member.witness_adds, google_bigquery_dataset_iam_member.gateway_ships, google_bigquery_dataset_iam_member.witness_reads],
        values(google_bigquery_dataset_iam_member.reads), values(google_bigquery_dataset_iam_member.reads_witness),
      ) : grant.dataset_id != google_bigquery_dataset.witness.dataset_id || grant.member != "serviceAccount:${var.gateway}"
    ])
    error_message = "The gateway has no role in the witness dataset."
  }
  assert {
    condition = (
      join(",", sort(google_project_iam_custom_role.witnesses.permissions)) == "bigquery.datasets.get,bigquery.tables.create,bigquery.tables.updateData"
      && google_bigquery_dataset_iam_member.witness_adds.role == google_project_iam_custom_role.witnesses.name
      && google_bigquery_dataset_iam_member.witness_reads.role == "roles/bigquery.dataViewer"
      && !google_bigquery_dataset.witness.delete_contents_on_destroy
    )
    error_message = "Who makes snapshots can delete none, and reads the ledger only."
  }
}

run "sources_are_read_only" {
  command = plan

  variables {
    sources = { bookings = { dataset = "office", table = "bookings" } }
  }

  assert {
    condition = (
      google_bigquery_table_iam_member.gateway_reads["bookings"].role == "roles/bigquery.dataViewer"
      && google_bigquery_table_iam_member.gateway_reads["bookings"].table_id == "bookings"
    )
    error_message = "A source's table is read, and only that table."
  }
}

run "not_for_everybody" {
  command = plan

  variables {
    readers = ["allAuthenticatedUsers"]
  }

  expect_failures = [var.readers]
}
