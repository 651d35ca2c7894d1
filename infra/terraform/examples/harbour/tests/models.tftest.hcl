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

run "a_model_that_cannot_be_asked_here" {
  command = plan
  variables {
    models = { local = { provider = "ollama", model = "qwen3", key_secret = "none" } }
  }
  expect_failures = [var.models]
}

run "a_model_without_its_key" {
  command = plan
  variables {
    models = { fast = { provider = "gemini", model = "gemini-3-flash" } }
  }
  expect_failures = [var.models]
}

run "a_model_with_a_fallback_that_is_none" {
  command = plan
  variables {
    models = { deep = { provider = "vertex", model = "gemini-3-pro", fallback = "none" } }
  }
  expect_failures = [var.models]
}
