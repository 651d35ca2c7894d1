mock_provider "google" {
  mock_resource "google_project_iam_custom_role" {
    defaults = { name = "projects/p/roles/vedette_harbour_ships" }
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

run "tables_as_the_engine_ships_them" {
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
}

run "views" {
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
}

run "least_iam" {
  assert {
    condition = (
      length(setintersection(google_project_iam_custom_role.ships.permissions, [
        "bigquery.tables.create", "bigquery.tables.delete", "bigquery.tables.update", "bigquery.tables.setIamPolicy",
      ])) == 0
      && google_bigquery_dataset_iam_member.gateway_ships.role == google_project_iam_custom_role.ships.name
      && google_bigquery_dataset_iam_member.gateway_ships.dataset_id == "vedette_harbour"
    )
    error_message = "The gateway writes rows; it can neither make, alter nor drop a table."
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
}

run "sources_are_read_only" {
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
