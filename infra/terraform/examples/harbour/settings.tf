# vedette.toml of the deployment, out of the same names as the resources.

locals {
  own_sources = {
    for agent, own in local.own : own.source => {
      subscription          = own.name
      topic                 = module.streams.streams[own.stream].topic
      dead_letter_topic     = "${own.name}-dead"
      max_delivery_attempts = 5
      ordered               = own.ordered
      exactly_once          = false
      ack_deadline_seconds  = 60
      type                  = own.type
      schedules             = false
    }
  }
  shared_sources = {
    for name, stream in module.streams.streams : name => {
      subscription          = stream.subscription
      topic                 = stream.topic
      dead_letter_topic     = stream.dead_letter_topic
      max_delivery_attempts = stream.max_delivery_attempts
      ordered               = stream.ordered
      exactly_once          = stream.exactly_once
      ack_deadline_seconds  = stream.ack_deadline_seconds
      type                  = try(var.streams[name].type, null)
      schedules             = name == "ticks"
    }
  }

  settings = templatefile("${path.module}/vedette.toml.tftpl", {
    fleet      = var.fleet
    project    = var.project
    audience   = local.audience
    bundles    = module.gateway.bundles
    dataset    = module.warehouse.dataset
    judged     = local.judged
    models     = var.models
    sources    = merge(local.shared_sources, local.own_sources)
    oncall_url = var.oncall_url
    mailbox    = var.mailbox != null
    people     = var.people
  })
}
