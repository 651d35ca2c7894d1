terraform {
  required_version = ">= 1.11"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }

  # Put the state where the people who deploy share it, for example:
  # backend "gcs" { bucket = "…" }
}

provider "google" {
  project = var.project
  region  = var.region
}
