# A subscription of the agent's own, with its dead letters. The gateway pulls it, so the agent's
# own account may not.

locals {
  own            = var.subscription == null ? {} : { (var.subscription.name) = var.subscription }
  broker         = "serviceAccount:service-${var.project_number}@gcp-sa-pubsub.iam.gserviceaccount.com"
  gateway_member = "serviceAccount:${var.gateway.service_account}"
}

resource "google_pubsub_topic" "dead" {
  for_each = local.own

  project                    = var.project
  name                       = "${each.key}-dead"
  message_retention_duration = "2678400s"
  labels                     = local.labels
}

# Without a subscription a dead letter would be gone when it is published.
resource "google_pubsub_subscription" "dead" {
  for_each = local.own

  project                    = var.project
  name                       = "${each.key}-dead"
  topic                      = google_pubsub_topic.dead[each.key].id
  message_retention_duration = "2678400s"
  ack_deadline_seconds       = 60
  labels                     = local.labels

  expiration_policy {
    ttl = ""
  }
}

resource "google_pubsub_subscription" "own" {
  for_each = local.own

  project                      = var.project
  name                         = each.key
  topic                        = each.value.topic
  filter                       = each.value.filter
  enable_message_ordering      = each.value.ordered
  enable_exactly_once_delivery = each.value.exactly_once
  ack_deadline_seconds         = each.value.ack_deadline_seconds
  message_retention_duration   = "604800s"
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
  for_each = local.own

  project = var.project
  topic   = google_pubsub_topic.dead[each.key].name
  role    = "roles/pubsub.publisher"
  member  = local.broker
}

resource "google_pubsub_subscription_iam_member" "broker_takes_off" {
  for_each = local.own

  project      = var.project
  subscription = google_pubsub_subscription.own[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = local.broker
}

resource "google_pubsub_subscription_iam_member" "gateway_pulls" {
  for_each = local.own

  project      = var.project
  subscription = google_pubsub_subscription.own[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = local.gateway_member
}

# `vedette pubsub --redrive` of this subscription: the gateway takes the dead letter, and publishes it
# again to the topic. That second role comes with the topic (modules/streams gives it): two
# resources for one grant would take it from each other when one of them goes.
resource "google_pubsub_subscription_iam_member" "gateway_takes_dead" {
  for_each = local.own

  project      = var.project
  subscription = google_pubsub_subscription.dead[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = local.gateway_member
}
