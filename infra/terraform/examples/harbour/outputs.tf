output "agents" {
  description = "By agent: its service account, its worker pool, its own subscription."
  value = {
    for name, agent in module.agents : name => {
      service_account = agent.service_account
      worker_pool     = agent.worker_pool
      subscription    = agent.subscription
    }
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
