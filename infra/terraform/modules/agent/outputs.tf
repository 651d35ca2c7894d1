output "service_account" {
  description = "The agent's own service account: an e-mail."
  value       = google_service_account.agent.email
}

output "worker_pool" {
  description = "Where its judge runs; null if it has none."
  value       = one(google_cloud_run_v2_worker_pool.agent[*].name)
}

output "subscription" {
  description = "What the gateway pulls for this agent alone: name, topic and dead-letter topic; null if nothing."
  value = one([
    for name, own in google_pubsub_subscription.own : {
      name                  = name
      topic                 = own.topic
      dead_letter_topic     = google_pubsub_topic.dead[name].name
      max_delivery_attempts = own.dead_letter_policy[0].max_delivery_attempts
    }
  ])
}
