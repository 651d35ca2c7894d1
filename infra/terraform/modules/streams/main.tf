# What wakes the fleet: topics, one shared subscription for each, and the dead letters.

locals {
  labels = { fleet = var.fleet, managed-by = "terraform" }
  broker = "serviceAccount:service-${var.project_number}@gcp-sa-pubsub.iam.gserviceaccount.com"

  publishers = merge([
    for name, stream in var.streams : {
      for who in stream.publishers : "${name} ${who}" => { stream = name, member = who }
    }
  ]...)
  redriven = { for name, stream in var.streams : name => stream if stream.redriven }
}

resource "google_pubsub_schema" "stream" {
  for_each = { for name, stream in var.streams : name => stream.schema if stream.schema != null }

  project    = var.project
  name       = "${var.fleet}-${each.key}"
  type       = each.value.type
  definition = each.value.definition
}

resource "google_pubsub_topic" "stream" {
  for_each = var.streams

  project                    = var.project
  name                       = "${var.fleet}-${each.key}"
  message_retention_duration = each.value.retention
  labels                     = local.labels

  message_storage_policy {
    allowed_persistence_regions = var.regions
  }

  dynamic "schema_settings" {
    for_each = each.value.schema == null ? [] : [each.value.schema]

    content {
      schema   = google_pubsub_schema.stream[each.key].id
      encoding = schema_settings.value.encoding
    }
  }
}

resource "google_pubsub_topic" "dead" {
  for_each = var.streams

  project                    = var.project
  name                       = "${var.fleet}-${each.key}-dead"
  message_retention_duration = "2678400s"
  labels                     = local.labels

  message_storage_policy {
    allowed_persistence_regions = var.regions
  }
}

# Without a subscription a dead letter would be gone when it is published.
resource "google_pubsub_subscription" "dead" {
  for_each = var.streams

  project                    = var.project
  name                       = "${var.fleet}-${each.key}-dead"
  topic                      = google_pubsub_topic.dead[each.key].id
  message_retention_duration = "2678400s"
  ack_deadline_seconds       = 60
  labels                     = local.labels

  expiration_policy {
    ttl = ""
  }
}

resource "google_pubsub_subscription" "stream" {
  for_each = var.streams

  project                      = var.project
  name                         = "${var.fleet}-${each.key}"
  topic                        = google_pubsub_topic.stream[each.key].id
  filter                       = each.value.filter
  enable_message_ordering      = each.value.ordered
  enable_exactly_once_delivery = each.value.exactly_once
  ack_deadline_seconds         = each.value.ack_deadline_seconds
  message_retention_duration   = each.value.retention
  labels                       = local.labels

  expiration_policy {
    ttl = ""
  }

  retry_policy {
    minimum_backoff = "1s"
    maximum_backoff = "60s"
  }

  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead[each.key].id
    max_delivery_attempts = each.value.max_delivery_attempts
  }
}

# The broker forwards dead letters itself: it publishes them and takes them off the subscription.
resource "google_pubsub_topic_iam_member" "broker_publishes_dead" {
  for_each = var.streams

  project = var.project
  topic   = google_pubsub_topic.dead[each.key].name
  role    = "roles/pubsub.publisher"
  member  = local.broker
}

resource "google_pubsub_subscription_iam_member" "broker_takes_off" {
  for_each = var.streams

  project      = var.project
  subscription = google_pubsub_subscription.stream[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = local.broker
}

resource "google_pubsub_subscription_iam_member" "gateway_pulls" {
  for_each = var.streams

  project      = var.project
  subscription = google_pubsub_subscription.stream[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = "serviceAccount:${var.gateway}"
}

resource "google_pubsub_topic_iam_member" "publishes" {
  for_each = local.publishers

  project = var.project
  topic   = google_pubsub_topic.stream[each.value.stream].name
  role    = "roles/pubsub.publisher"
  member  = each.value.member
}

# `vedette pubsub --redrive`: take a dead letter, publish it again. A person gives the order (role
# operator of the gateway's own doors) and has no role here: the gateway carries it out.
resource "google_pubsub_subscription_iam_member" "gateway_takes_dead" {
  for_each = local.redriven

  project      = var.project
  subscription = google_pubsub_subscription.dead[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = "serviceAccount:${var.gateway}"
}

resource "google_pubsub_topic_iam_member" "gateway_publishes_again" {
  for_each = local.redriven

  project = var.project
  topic   = google_pubsub_topic.stream[each.key].name
  role    = "roles/pubsub.publisher"
  member  = "serviceAccount:${var.gateway}"
}
