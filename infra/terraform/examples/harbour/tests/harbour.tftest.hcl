mock_provider "google" {
  mock_data "google_project" {
    defaults = { number = "123" }
  }
  mock_resource "google_cloud_run_v2_service" {
    defaults = { uri = "https://harbour-gateway-123.europe-west1.run.app" }
  }
}

variables {
  project           = "harbour-lights-fleet"
  image             = "image@sha256:0"
  database_password = "seeded-password-7f3a"
  ledger_key        = "c2VlZGVkLWxlZGdlci03ZjNh"
  policy_key        = "c2VlZGVkLXBvbGljeS03ZjNh"
  oncall_url        = "https://oncall.harbourlights.example/hook"
  emails            = ["operations@harbourlights.example"]
}

run "fleet" {
  assert {
    condition     = join(",", sort(keys(output.agents))) == join(",", sort([for file in fileset("../../../../agents", "*/agent.yaml") : dirname(file)]))
    error_message = "Every folder of agents/ is an agent here, and nothing else is."
  }
  assert {
    condition     = length(distinct([for agent in module.agents : agent.worker_pool])) == length(module.agents)
    error_message = "Each agent has a worker pool of its own."
  }
  assert {
    condition     = strcontains(output.settings, "[[sources]]") && !strcontains(output.settings, "seeded-")
    error_message = "The settings name sources, and hold no secret."
  }
}

run "with_people_and_a_mailbox" {
  variables {
    mailbox        = { server = "10.0.0.2", path = "/mail" }
    readers        = ["group:compliance@harbourlights.example"]
    target_secrets = ["oncall-token"]
    models = {
      fast = { provider = "gemini", model = "gemini-3-flash", key_secret = "gemini-key", calls_per_minute = 60, fallback = "deep" }
      deep = { provider = "vertex", model = "gemini-3-pro", timeout = "2m" }
    }
    streams = {
      metrics = {
        types      = ["metric.point"]
        type       = "metric.point"
        ordered    = true
        publishers = ["serviceAccount:collector@harbour-lights.iam.gserviceaccount.com"]
      }
      tides = { types = ["metric.point", "tide.point"] }
    }
    people = {
      issuer   = "https://login.example.org"
      audience = "vedette"
      viewer   = ["compliance"]
      operator = ["operations"]
    }
  }

  assert {
    condition     = strcontains(output.settings, "[people]") && strcontains(output.settings, "/mnt/mailbox")
    error_message = "People and the mailbox are in the settings."
  }
}
