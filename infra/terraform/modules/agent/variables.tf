variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "project_number" {
  description = "Its number: the Pub/Sub service agent is named after it."
  type        = string
}

variable "region" {
  description = "Where the worker pool runs."
  type        = string
}

variable "fleet" {
  description = "The fleet's name, as in vedette.toml."
  type        = string
}

variable "name" {
  description = "The agent's name: its folder under agents/."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9_]{0,23}$", var.name))
    error_message = "An agent's name is a-z, 0-9 and _, and at most 24 characters: its service account's id is agent- and the name, and Google allows 30."
  }
}

variable "image" {
  description = "The image of the fleet; one for all roles."
  type        = string
}

variable "gateway" {
  description = "The gateway: its URL, the audience of tokens for it, and its service account."
  type = object({
    url             = string
    audience        = string
    service_account = string
  })
}

variable "network" {
  description = "The fleet's own network, which has no way out to the internet, and the tag that its firewall keeps from private addresses."
  type = object({
    network    = string
    subnetwork = string
    agent_tag  = string
  })
}

variable "instances" {
  description = "How many worker processes the agent has."
  type        = number
  default     = 1

  validation {
    condition     = var.instances >= 0 && var.instances <= 100
    error_message = "From 0 to 100; with 0 its runs wait."
  }
}

variable "limits" {
  description = "CPU and memory of one worker."
  type        = map(string)
  default     = { cpu = "1", memory = "1Gi" }
}

variable "worker" {
  description = "Whether the agent's judge runs in a worker of its own. An agent of ADK has none: the gateway asks its model."
  type        = bool
  default     = true
}

variable "subscription" {
  description = "A subscription of the agent's own, which the gateway pulls; null is the shared one. The gateway publishes to `topic` when it redrives: whoever makes the topic gives it that role."
  type = object({
    name                  = string
    topic                 = string
    filter                = optional(string, "")
    ordered               = optional(bool, false)
    exactly_once          = optional(bool, false)
    ack_deadline_seconds  = optional(number, 60)
    max_delivery_attempts = optional(number, 5)
  })
  default = null
}

variable "launch_stage" {
  description = "Of Cloud Run's worker pools."
  type        = string
  default     = "BETA"
}

variable "deletion_protection" {
  description = "Refuse to delete the worker pool."
  type        = bool
  default     = true
}
