mock_provider "google" {}

variables {
  project = "p"
  region  = "europe-west1"
  fleet   = "harbour"
  topic   = "projects/p/topics/harbour-ticks"
  agents = {
    night_watch = {
      triggers = [
        { on = "metric.point" },
        { cron = "*/5 * * * mon-fri", zone = "Europe/London", name = "rounds" },
        { daily = "06:30", zone = "Europe/Paris" },
      ]
    }
    tide_table = {
      triggers = [
        { every = "15m" },
        { every = "6h", name = "slow" },
        { every = "1h", name = "hourly" },
        { every = "30s", name = "quick" },
        { every = "7m", name = "odd" },
      ]
    }
  }
}

run "jobs" {
  # Cron lines of agent.yaml.
  assert {
    condition = output.jobs == {
      "night_watch/rounds" = { cron = "*/5 * * * mon-fri", zone = "Europe/London" }
      "night_watch/daily"  = { cron = "30 6 * * *", zone = "Europe/Paris" }
      "tide_table/every"   = { cron = "*/15 * * * *", zone = "UTC" }
      "tide_table/slow"    = { cron = "0 */6 * * *", zone = "UTC" }
      "tide_table/hourly"  = { cron = "0 * * * *", zone = "UTC" }
    }
    error_message = "Each schedule that a cron line can say is a job."
  }
  assert {
    condition     = output.left_to_the_engine == tolist(["tide_table/odd", "tide_table/quick"])
    error_message = "What no cron line says is left to the engine, and said."
  }

  # Only the name is sent.
  assert {
    condition = alltrue([
      for id, job in google_cloud_scheduler_job.schedule :
      job.pubsub_target[0].topic_name == "projects/p/topics/harbour-ticks"
      && base64decode(job.pubsub_target[0].data) == jsonencode({ schedule_id = id })
      && job.pubsub_target[0].attributes == tomap({ "vedette-schedule" = id })
    ])
    error_message = "A job names its schedule and carries nothing else."
  }
  assert {
    condition     = alltrue([for job in google_cloud_scheduler_job.schedule : length(job.http_target) == 0])
    error_message = "Jobs call no URL."
  }
  assert {
    condition     = alltrue([for job in google_cloud_scheduler_job.schedule : !job.paused && job.retry_config[0].retry_count == 5])
    error_message = "Jobs fire, and try again when publishing fails."
  }
}

run "paused_for_a_migration" {
  command = plan

  variables {
    paused = true
  }

  assert {
    condition     = alltrue([for job in google_cloud_scheduler_job.schedule : job.paused])
    error_message = "No job fires while the engine's own scheduler does."
  }
}

run "no_schedules_no_jobs" {
  command = plan

  variables {
    agents = { night_watch = { triggers = [{ on = "metric.point" }] } }
  }

  assert {
    condition     = length(google_cloud_scheduler_job.schedule) == 0
    error_message = "Subscriptions are no schedules."
  }
}
