output "jobs" {
  description = "By schedule (AGENT/NAME): cron line and time zone."
  value = {
    for id, job in google_cloud_scheduler_job.schedule : id => { cron = job.schedule, zone = job.time_zone }
  }
}

output "left_to_the_engine" {
  description = "Schedules that no cron line says (seconds, periods that do not divide a day): the engine's own scheduler fires them."
  value       = sort([for id, _ in local.triggers : id if local.lines[id] == null])
}
