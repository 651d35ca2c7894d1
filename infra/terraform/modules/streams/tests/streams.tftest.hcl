mock_provider "google" {}

variables {
  project        = "p"
  project_number = "123"
  fleet          = "harbour"
  gateway        = "harbour-gateway@p.iam.gserviceaccount.com"
  regions        = ["europe-west1"]
  streams = {
    metrics = {
      publishers   = ["serviceAccount:collector@p.iam.gserviceaccount.com"]
      ordered      = true
      exactly_once = true
      schema       = { type = "AVRO", definition = "{}", encoding = "JSON" }
    }
    mails = {}
    ticks = { redriven = false }
  }
}

run "streams" {
  # Dead letters.
  assert {
    condition = alltrue([
      for name in ["metrics", "mails"] :
      google_pubsub_subscription.stream[name].dead_letter_policy[0].dead_letter_topic == google_pubsub_topic.dead[name].id
      && google_pubsub_subscription.stream[name].dead_letter_policy[0].max_delivery_attempts == 5
    ])
    error_message = "Each subscription has a dead-letter policy of five attempts."
  }
  assert {
    condition = alltrue([
      for name in ["metrics", "mails"] :
      google_pubsub_subscription.dead[name].topic == google_pubsub_topic.dead[name].id
      && google_pubsub_subscription.dead[name].message_retention_duration == "2678400s"
      && google_pubsub_subscription.dead[name].expiration_policy[0].ttl == ""
    ])
    error_message = "Dead letters are kept for 31 days, by a subscription that never expires."
  }
  assert {
    condition = alltrue([
      for name in ["metrics", "mails"] :
      google_pubsub_topic_iam_member.broker_publishes_dead[name].topic == "harbour-${name}-dead"
      && google_pubsub_topic_iam_member.broker_publishes_dead[name].role == "roles/pubsub.publisher"
      && google_pubsub_topic_iam_member.broker_publishes_dead[name].member == "serviceAccount:service-123@gcp-sa-pubsub.iam.gserviceaccount.com"
      && google_pubsub_subscription_iam_member.broker_takes_off[name].subscription == "harbour-${name}"
      && google_pubsub_subscription_iam_member.broker_takes_off[name].role == "roles/pubsub.subscriber"
      && google_pubsub_subscription_iam_member.broker_takes_off[name].member == "serviceAccount:service-123@gcp-sa-pubsub.iam.gserviceaccount.com"
    ])
    error_message = "Without these two roles the broker drops the dead-letter policy silently."
  }

  # As declared.
  assert {
    condition = (
      google_pubsub_subscription.stream["metrics"].enable_message_ordering
      && google_pubsub_subscription.stream["metrics"].enable_exactly_once_delivery
      && !google_pubsub_subscription.stream["mails"].enable_message_ordering
      && !google_pubsub_subscription.stream["mails"].enable_exactly_once_delivery
      && google_pubsub_subscription.stream["mails"].expiration_policy[0].ttl == ""
    )
    error_message = "Order and exactly-once as declared; a silent month deletes no subscription."
  }
  assert {
    condition = (
      join(",", keys(google_pubsub_schema.stream)) == "metrics"
      && google_pubsub_topic.stream["metrics"].schema_settings[0].encoding == "JSON"
      && length(google_pubsub_topic.stream["mails"].schema_settings) == 0
    )
    error_message = "A schema where one is given."
  }
  assert {
    condition = alltrue([
      for topic in concat(values(google_pubsub_topic.stream), values(google_pubsub_topic.dead)) :
      tolist(topic.message_storage_policy[0].allowed_persistence_regions) == tolist(["europe-west1"])
    ])
    error_message = "Messages lie in the named regions only."
  }

  # Least access.
  assert {
    condition = alltrue([
      for pull in google_pubsub_subscription_iam_member.gateway_pulls :
      pull.role == "roles/pubsub.subscriber" && pull.member == "serviceAccount:harbour-gateway@p.iam.gserviceaccount.com"
    ])
    error_message = "The gateway pulls."
  }
  assert {
    condition = (
      length(google_pubsub_topic_iam_member.publishes) == 1
      && one(values(google_pubsub_topic_iam_member.publishes)).member == "serviceAccount:collector@p.iam.gserviceaccount.com"
      && one(values(google_pubsub_topic_iam_member.publishes)).topic == "harbour-metrics"
    )
    error_message = "Only whom the stream names may publish."
  }

  # The gateway redrives.
  assert {
    condition = (
      join(",", sort(keys(google_pubsub_subscription_iam_member.gateway_takes_dead))) == "mails,metrics"
      && join(",", sort(keys(google_pubsub_topic_iam_member.gateway_publishes_again))) == "mails,metrics"
    )
    error_message = "A redrive takes both roles, for each stream that is redriven and for no other."
  }
  assert {
    condition = alltrue([
      for name in ["mails", "metrics"] :
      google_pubsub_subscription_iam_member.gateway_takes_dead[name].subscription == "harbour-${name}-dead"
      && google_pubsub_subscription_iam_member.gateway_takes_dead[name].role == "roles/pubsub.subscriber"
      && google_pubsub_subscription_iam_member.gateway_takes_dead[name].member == "serviceAccount:harbour-gateway@p.iam.gserviceaccount.com"
      && google_pubsub_topic_iam_member.gateway_publishes_again[name].topic == "harbour-${name}"
      && google_pubsub_topic_iam_member.gateway_publishes_again[name].role == "roles/pubsub.publisher"
      && google_pubsub_topic_iam_member.gateway_publishes_again[name].member == "serviceAccount:harbour-gateway@p.iam.gserviceaccount.com"
    ])
    error_message = "The gateway takes dead letters off their subscription and publishes them to the stream's topic."
  }
}

run "not_everybody_publishes" {
  command = plan

  variables {
    streams = { mails = { publishers = ["allUsers"] } }
  }

  expect_failures = [var.streams]
}

run "an_impossible_deadline" {
  command = plan

  variables {
    streams = { mails = { ack_deadline_seconds = 5 } }
  }

  expect_failures = [var.streams]
}
