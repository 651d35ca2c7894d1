# The schedules of the agents as Cloud Scheduler jobs.
#
# A job says only which schedule fires. The engine maps it to the nominal instant and so to the
# same tick id as its own scheduler's: both may run at once, and each tick is one event.

locals {
  # Every schedule of every agent.yaml, under AGENT/NAME as the engine names it.
  triggers = merge([
    for agent, told in var.agents : {
      for trigger in try(told.triggers, []) :
      "${agent}/${try(trigger.name, null) != null ? trigger.name : try(trigger.cron, null) != null ? "cron" : try(trigger.daily, null) != null ? "daily" : "every"}" => {
        agent = agent
        zone  = try(trigger.zone, "UTC")
        cron  = try(trigger.cron, null)
        daily = try(trigger.daily, null)
        every = try(trigger.every, null)
      }
      if try(trigger.cron, trigger.daily, trigger.every, null) != null
    }
  ]...)

  # `every` counts from the epoch, in UTC: what divides an hour or a day is a cron line too.
  minutes = {
    for id, trigger in local.triggers : id => (
      trigger.every == null ? 0 :
      can(regex("^[0-9]+m$", trigger.every)) ? tonumber(trimsuffix(trigger.every, "m")) :
      can(regex("^[0-9]+h$", trigger.every)) ? tonumber(trimsuffix(trigger.every, "h")) * 60 :
      trigger.every == "1d" ? 1440 : 0
    )
  }
  every = {
    for id, minutes in local.minutes : id => (
      minutes == 0 ? null :
      minutes == 1440 ? "0 0 * * *" :
      minutes == 60 ? "0 * * * *" :
      minutes < 60 && 60 % minutes == 0 ? "*/${minutes} * * * *" :
      minutes % 60 == 0 && 1440 % minutes == 0 ? "0 */${minutes / 60} * * *" : null
    )
  }
  lines = {
    for id, trigger in local.triggers : id => (
      trigger.cron != null ? trigger.cron :
      trigger.daily != null ? format(
        "%d %d * * *", tonumber(split(":", trigger.daily)[1]), tonumber(split(":", trigger.daily)[0])
      ) : local.every[id]
    )
  }
  jobs = { for id, trigger in local.triggers : id => trigger if local.lines[id] != null }
}

resource "google_cloud_scheduler_job" "schedule" {
  for_each = local.jobs

  project     = var.project
  region      = var.region
  name        = "${var.fleet}-${replace(replace(each.key, "/", "-"), "_", "-")}"
  description = "Ticks of ${each.key} (agents/${each.value.agent}/agent.yaml)"
  schedule    = local.lines[each.key]
  time_zone   = each.value.every != null ? "UTC" : each.value.zone
  paused      = var.paused

  pubsub_target {
    topic_name = var.topic
    data       = base64encode(jsonencode({ schedule_id = each.key }))
    attributes = { "vedette-schedule" = each.key }
  }

  retry_config {
    retry_count          = 5
    min_backoff_duration = "5s"
    max_backoff_duration = "300s"
  }
}
