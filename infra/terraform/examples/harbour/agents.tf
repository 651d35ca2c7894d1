# The fleet as code: the same agents/*/agent.yaml that the engine reads. A new folder there is a
# new agent here, without a line of Terraform.

locals {
  folder = "${path.module}/../../../../agents"
  agents = {
    for file in fileset(local.folder, "*/agent.yaml") :
    dirname(file) => yamldecode(file("${local.folder}/${file}"))
  }
  judged = sort([for name, agent in local.agents : name if try(agent.reasoner, try(agent.model, null) == null ? "judge" : "adk") == "judge"])
  # Those whose own agent.py names their model: it may be one of Vertex AI.
  unnamed = [for name, agent in local.agents : name if !contains(local.judged, name) && try(agent.model, null) == null]

  # An agent declares a subscription of its own by a trigger that names it as the source:
  #   - on: metric.point
  #     source: pubsub:night-watch
  # where night-watch is none of the shared streams. It is made on the topic of the stream that
  # carries the trigger's types, all of them: a subscription has one topic. (An `on` without quotes
  # is the boolean true to YAML 1.1, and so to yamldecode: as a key it reads "true".)
  wishes = flatten([
    for name, agent in local.agents : [
      for trigger in agent.triggers : [
        for source in flatten([try(trigger.source, [])]) : {
          agent = name
          name  = trimprefix(source, "pubsub:")
          types = flatten([try(trigger["true"], trigger.on, [])])
        }
        if startswith(source, "pubsub:") && !strcontains(source, "*")
        && !contains(keys(var.streams), trimprefix(source, "pubsub:"))
      ]
    ]
  ])
  wanted = { for wish in local.wishes : wish.name => wish... }
  carriers = {
    for name, wishes in local.wanted : name => sort([
      for stream, told in var.streams : stream
      if length(setsubtract(flatten(wishes[*].types), told.types)) == 0
    ])
  }
  # What cannot be made: the output `agents` refuses the plan for it.
  uncarried = sort([for name, streams in local.carriers : name if length(streams) == 0])
  shared    = sort([for name, wishes in local.wanted : name if length(distinct(wishes[*].agent)) > 1])
  several   = sort([for agent, _ in local.agents : agent if length(distinct([for wish in local.wishes : wish.name if wish.agent == agent])) > 1])

  own = {
    for agent, names in { for wish in local.wishes : wish.agent => wish.name... } : agent => {
      name    = "${var.fleet}-own-${names[0]}"
      source  = names[0]
      stream  = local.carriers[names[0]][0]
      type    = var.streams[local.carriers[names[0]][0]].type
      ordered = var.streams[local.carriers[names[0]][0]].ordered
    } if !contains(local.uncarried, names[0])
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
