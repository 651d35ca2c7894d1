output "agents" {
  description = "By agent: its service account, its worker pool, its own subscription."
  value = {
    for name, agent in module.agents : name => {
      service_account = agent.service_account
      worker_pool     = agent.worker_pool
      subscription    = agent.subscription
    }
  }

  precondition {
    condition     = length(local.uncarried) == 0
    error_message = "No stream of its own in `streams` carries all types that a trigger waits for on: pubsub:${join(", pubsub:", local.uncarried)}. Mend: name the types in one stream's `types`, or part the trigger."
  }
  precondition {
    condition     = length(local.shared) == 0
    error_message = "Two agents name the same source: pubsub:${join(", pubsub:", local.shared)}. Mend: give each a name of its own, or make it a stream."
  }
  precondition {
    condition     = length(local.several) == 0
    error_message = "More than one subscription of its own: ${join(", ", local.several)}. Mend: one for each agent; make the others streams."
  }
}

output "gateway_url" {
  description = "The gateway, from the fleet's own network."
  value       = module.gateway.url
}

output "schedules" {
  description = "What Cloud Scheduler fires, and what is left to the engine's own scheduler."
  value = {
    jobs               = module.schedules.jobs
    left_to_the_engine = module.schedules.left_to_the_engine
  }
}

output "settings" {
  description = "vedette.toml of the gateway."
  value       = local.settings
}
