mock_provider "google" {
  mock_resource "google_service_account" {
    defaults = {
      name   = "projects/p/serviceAccounts/agent-night-watch@p.iam.gserviceaccount.com"
      email  = "agent-night-watch@p.iam.gserviceaccount.com"
      member = "serviceAccount:agent-night-watch@p.iam.gserviceaccount.com"
    }
  }
}

variables {
  project        = "p"
  project_number = "123"
  region         = "europe-west1"
  fleet          = "harbour"
  name           = "night_watch"
  image          = "image:1"
  gateway = {
    url             = "https://gateway.example"
    audience        = "https://harbour.vedette.internal"
    service_account = "harbour-gateway@p.iam.gserviceaccount.com"
  }
  network = { network = "n", subnetwork = "s", agent_tag = "harbour-agent" }
}

run "an_agent" {
  # Identity and least access.
  assert {
    condition     = google_service_account.agent.account_id == "agent-night-watch"
    error_message = "Each agent has a service account of its own."
  }
  assert {
    condition     = google_cloud_run_v2_worker_pool.agent[0].template[0].service_account == google_service_account.agent.email
    error_message = "The worker runs as its own agent."
  }
  assert {
    condition = (
      google_service_account_iam_member.gateway_mints.role == "roles/iam.serviceAccountTokenCreator"
      && google_service_account_iam_member.gateway_mints.service_account_id == google_service_account.agent.name
      && google_service_account_iam_member.gateway_mints.member == "serviceAccount:harbour-gateway@p.iam.gserviceaccount.com"
    )
    error_message = "The gateway alone mints tokens of the agent, on this one account."
  }
  assert {
    condition = join(" ", google_cloud_run_v2_worker_pool.agent[0].template[0].containers[0].args) == join(" ", [
      "worker --agent night_watch --agents /fleet/agents --gateway https://gateway.example",
      "--identity google:https://harbour.vedette.internal",
    ])
    error_message = "The worker is told its agent, its gateway and whose token it presents; nothing else."
  }

  # No credential and no way out.
  assert {
    condition     = length(google_cloud_run_v2_worker_pool.agent[0].template[0].containers[0].env) == 0
    error_message = "A worker's environment holds nothing of ours."
  }
  assert {
    condition     = length(google_cloud_run_v2_worker_pool.agent[0].template[0].volumes) == 0
    error_message = "No secret is mounted into a worker."
  }
  assert {
    condition     = google_cloud_run_v2_worker_pool.agent[0].template[0].vpc_access[0].egress == "ALL_TRAFFIC"
    error_message = "All that a worker sends goes into the closed network."
  }
  assert {
    condition     = contains(google_cloud_run_v2_worker_pool.agent[0].template[0].vpc_access[0].network_interfaces[0].tags, "harbour-agent")
    error_message = "A worker carries the tag that the firewall keeps from private addresses."
  }
  assert {
    condition     = google_cloud_run_v2_worker_pool.agent[0].deletion_protection
    error_message = "The worker pool is not deleted by accident."
  }

  # Shared subscription by default.
  assert {
    condition = (
      length(google_pubsub_subscription.own) == 0 && length(google_pubsub_topic.dead) == 0
      && output.subscription == null
    )
    error_message = "An agent that declares no subscription has none."
  }
}

run "own_subscription_has_dead_letters" {
  variables {
    subscription = { name = "night-watch", topic = "projects/p/topics/metrics", ordered = true }
  }

  assert {
    condition = (
      google_pubsub_subscription.own["night-watch"].dead_letter_policy[0].dead_letter_topic == google_pubsub_topic.dead["night-watch"].id
      && google_pubsub_subscription.own["night-watch"].dead_letter_policy[0].max_delivery_attempts == 5
    )
    error_message = "What cannot be handed over becomes a dead letter after five attempts."
  }
  assert {
    condition     = google_pubsub_subscription.dead["night-watch"].topic == google_pubsub_topic.dead["night-watch"].id
    error_message = "Dead letters are kept by a subscription."
  }
  assert {
    condition = (
      google_pubsub_topic_iam_member.broker_publishes_dead["night-watch"].role == "roles/pubsub.publisher"
      && google_pubsub_topic_iam_member.broker_publishes_dead["night-watch"].topic == "night-watch-dead"
      && google_pubsub_topic_iam_member.broker_publishes_dead["night-watch"].member == "serviceAccount:service-123@gcp-sa-pubsub.iam.gserviceaccount.com"
      && google_pubsub_subscription_iam_member.broker_takes_off["night-watch"].role == "roles/pubsub.subscriber"
      && google_pubsub_subscription_iam_member.broker_takes_off["night-watch"].member == "serviceAccount:service-123@gcp-sa-pubsub.iam.gserviceaccount.com"
    )
    error_message = "Without these two roles the broker drops the dead-letter policy silently."
  }
  assert {
    condition = (
      google_pubsub_subscription_iam_member.gateway_pulls["night-watch"].role == "roles/pubsub.subscriber"
      && google_pubsub_subscription_iam_member.gateway_pulls["night-watch"].member == "serviceAccount:harbour-gateway@p.iam.gserviceaccount.com"
    )
    error_message = "The gateway pulls, not the agent."
  }
  assert {
    condition = (
      google_pubsub_subscription.own["night-watch"].enable_message_ordering
      && google_pubsub_subscription.own["night-watch"].expiration_policy[0].ttl == ""
      && google_pubsub_subscription.dead["night-watch"].expiration_policy[0].ttl == ""
    )
    error_message = "Order as declared, and a silent month deletes no subscription."
  }
  assert {
    condition = (
      google_pubsub_subscription_iam_member.gateway_takes_dead["night-watch"].subscription == "night-watch-dead"
      && google_pubsub_subscription_iam_member.gateway_takes_dead["night-watch"].role == "roles/pubsub.subscriber"
      && google_pubsub_subscription_iam_member.gateway_takes_dead["night-watch"].member == "serviceAccount:harbour-gateway@p.iam.gserviceaccount.com"
    )
    error_message = "A redrive is carried out by the gateway."
  }
}

run "no_judge_no_worker" {
  command = plan

  variables {
    worker = false
  }

  assert {
    condition     = length(google_cloud_run_v2_worker_pool.agent) == 0 && output.service_account == google_service_account.agent.email
    error_message = "An agent without a judge has an identity and no process."
  }
}

run "too_long_a_name" {
  command = plan

  variables {
    name = "the_watchman_of_the_north_pier"
  }

  expect_failures = [var.name]
}
