# The fleet as code: the same agents/*/agent.yaml that the engine reads. A new folder there is a
# new agent here, without a line of Terraform.

locals {
  folder = "${path.module}/../../../../agents"
  agents = {
    for file in fileset(local.folder, "*/agent.yaml") :
    dirname(file) => yamldecode(file("${local.folder}/${file}"))
  }
  judged = sort([for name, agent in local.agents : name if try(agent.reasoner, "judge") == "judge"])

  # An agent declares a subscription of its own by a trigger that names it as the source:
  #   - on: metric.point
  #     source: pubsub:night-watch
  # where night-watch is none of the shared streams. It is made on the topic of the stream that
  # carries the trigger's type. (An `on` without quotes is the boolean true to YAML 1.1, and so to
  # yamldecode: as a key it reads "true".)
  wanted = merge([
    for name, agent in local.agents : {
      for trigger in agent.triggers : trimprefix(try(flatten([trigger.source])[0], ""), "pubsub:") => {
        agent = name
        type  = try(flatten([trigger["true"]])[0], flatten([trigger.on])[0], "")
      }
      if try(startswith(flatten([trigger.source])[0], "pubsub:"), false)
      && !try(strcontains(flatten([trigger.source])[0], "*"), false)
      && !contains(keys(var.streams), trimprefix(try(flatten([trigger.source])[0], ""), "pubsub:"))
    }
  ]...)
  carriers = {
    for name, wish in local.wanted : name => sort([
      for stream, told in var.streams : stream if contains(told.types, wish.type)
    ])
  }
  own = {
    for name, wish in local.wanted : wish.agent => {
      name    = "${var.fleet}-own-${name}"
      source  = name
      stream  = local.carriers[name][0]
      type    = var.streams[local.carriers[name][0]].type
      ordered = var.streams[local.carriers[name][0]].ordered
    } if length(local.carriers[name]) > 0
  }
}

check "every_wish_has_a_stream" {
  assert {
    condition     = alltrue([for name, streams in local.carriers : length(streams) > 0])
    error_message = "An agent names a pubsub: source of its own, and no stream carries the type that it waits for: add it to `streams`."
  }
}

module "agents" {
  source   = "../../modules/agent"
  for_each = local.agents

  project        = var.project
  project_number = data.google_project.fleet.number
  region         = var.region
  fleet          = var.fleet
  name           = each.key
  image          = var.image
  network        = module.gateway.network
  worker         = contains(local.judged, each.key)

  gateway = {
    url             = module.gateway.url
    audience        = local.audience
    service_account = module.gateway.service_account
  }

  subscription = contains(keys(local.own), each.key) ? {
    name    = local.own[each.key].name
    topic   = module.streams.streams[local.own[each.key].stream].topic_id
    ordered = local.own[each.key].ordered
  } : null

  deletion_protection = var.deletion_protection
}
