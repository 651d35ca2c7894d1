variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "region" {
  description = "Where the jobs live."
  type        = string
}

variable "fleet" {
  description = "The fleet's name, as in vedette.toml."
  type        = string
}

variable "topic" {
  description = "The id of the topic that ticks are published to."
  type        = string
}

variable "paused" {
  description = "Keep the jobs but let none fire: the engine's own scheduler goes on."
  type        = bool
  default     = false
}

variable "agents" {
  description = "Every agent's agent.yaml as read by yamldecode, by name; only `triggers` is looked at."
  type        = any
}
