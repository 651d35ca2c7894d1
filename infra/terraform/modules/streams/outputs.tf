output "streams" {
  description = "By stream: what a [[sources]] table of vedette.toml names, and the topic's id."
  value = {
    for name, stream in var.streams : name => {
      topic                 = google_pubsub_topic.stream[name].name
      topic_id              = google_pubsub_topic.stream[name].id
      subscription          = google_pubsub_subscription.stream[name].name
      dead_letter_topic     = google_pubsub_topic.dead[name].name
      max_delivery_attempts = stream.max_delivery_attempts
      ordered               = stream.ordered
      exactly_once          = stream.exactly_once
      ack_deadline_seconds  = stream.ack_deadline_seconds
      filter                = stream.filter
    }
  }
}

output "dead_subscriptions" {
  description = "The subscriptions that keep dead letters, for alarms."
  value       = [for subscription in google_pubsub_subscription.dead : subscription.name]
}
