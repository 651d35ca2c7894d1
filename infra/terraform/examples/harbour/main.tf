# The fleet of this repository on Google Cloud.

locals {
  audience = "https://${var.fleet}.vedette.internal"

  # Ticks come from Cloud Scheduler alone.
  streams = merge(
    { for name, stream in var.streams : name => { publishers = stream.publishers, ordered = stream.ordered, redriven = true } },
    {
      ticks = {
        publishers = ["serviceAccount:service-${data.google_project.fleet.number}@gcp-sa-cloudscheduler.iam.gserviceaccount.com"]
        ordered    = false
        redriven   = false # which tick a message means follows from when it was published
      }
    },
  )
}

data "google_project" "fleet" {
  project_id = var.project
}

resource "google_project_service" "api" {
  for_each = toset([
    "aiplatform", "artifactregistry", "bigquery", "bigquerydatatransfer", "cloudresourcemanager", "cloudscheduler", "compute", "iam", "iamcredentials", "monitoring", "pubsub", "run",
    "secretmanager", "servicenetworking", "sqladmin", "storage",
  ])

  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false
}

module "gateway" {
  source = "../../modules/gateway"

  project             = var.project
  region              = var.region
  fleet               = var.fleet
  image               = var.image
  settings            = local.settings
  database_password   = var.database_password
  ledger_key          = var.ledger_key
  policy_key          = var.policy_key
  secrets_version     = var.secrets_version
  target_secrets      = setunion(var.target_secrets, [for model in var.models : model.key_secret if model.key_secret != null])
  mailbox             = var.mailbox
  availability_type   = var.availability_type
  model               = anytrue([for model in var.models : model.provider == "vertex"]) || length(local.unnamed) > 0
  deletion_protection = var.deletion_protection

  depends_on = [google_project_service.api]
}

module "streams" {
  source = "../../modules/streams"

  project        = var.project
  project_number = data.google_project.fleet.number
  fleet          = var.fleet
  gateway        = module.gateway.service_account
  regions        = [var.region]
  streams        = local.streams
}

module "schedules" {
  source = "../../modules/schedules"

  project = var.project
  region  = var.region
  fleet   = var.fleet
  topic   = module.streams.streams["ticks"].topic_id
  agents  = local.agents
  paused  = !var.cloud_scheduler
}

module "warehouse" {
  source = "../../modules/warehouse"

  project             = var.project
  region              = var.region
  fleet               = var.fleet
  gateway             = module.gateway.service_account
  definitions         = "${path.module}/../../../../src/vedette/adapters/bigquery"
  readers             = var.readers
  deletion_protection = var.deletion_protection
}

module "monitoring" {
  source = "../../modules/monitoring"

  project            = var.project
  fleet              = var.fleet
  emails             = var.emails
  objective          = var.objective
  database           = module.gateway.database
  dead_subscriptions = concat(module.streams.dead_subscriptions, [for agent in module.agents : "${agent.subscription.name}-dead" if agent.subscription != null])
}
