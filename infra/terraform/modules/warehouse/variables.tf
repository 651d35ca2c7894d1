variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "region" {
  description = "Where the data lies."
  type        = string
}

variable "fleet" {
  description = "The fleet's name, as in vedette.toml."
  type        = string
}

variable "gateway" {
  description = "The gateway's service account, which ships the ledger; an e-mail."
  type        = string
}

variable "definitions" {
  description = "The folder with schema/TABLE.json and views/VIEW.sql: the engine's own (src/vedette/adapters/bigquery), so that it and the cloud cannot disagree."
  type        = string
}

variable "clustering" {
  description = "How the tables are clustered beside their partitions by day."
  type        = map(list(string))
  default = {
    ledger    = ["fleet", "agent", "kind"]
    decisions = ["fleet", "agent", "rule"]
  }
}

variable "readers" {
  description = "Who may query, for example group:compliance@example.org."
  type        = list(string)
  default     = []

  validation {
    condition     = length(setintersection(var.readers, ["allUsers", "allAuthenticatedUsers"])) == 0
    error_message = "The ledger is not for everybody."
  }
}

variable "sources" {
  description = "Tables whose new rows wake agents, by name."
  type        = map(object({ dataset = string, table = string }))
  default     = {}
}

variable "witness_schedule" {
  description = "When the shipped tables are snapshotted, in UTC, as BigQuery's scheduled queries have it."
  type        = string
  default     = "every day 03:30"
}

variable "deletion_protection" {
  description = "Refuse to delete the tables."
  type        = bool
  default     = true
}
