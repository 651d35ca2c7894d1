variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "fleet" {
  description = "The fleet's name, as in vedette.toml."
  type        = string
}

variable "emails" {
  description = "Whom alarms go to."
  type        = list(string)

  validation {
    condition     = length(var.emails) > 0
    error_message = "An alarm that nobody hears is none: name at least one address."
  }
}

variable "database" {
  description = "The database instance."
  type        = string
}

variable "dead_subscriptions" {
  description = "The subscriptions that keep dead letters."
  type        = list(string)
}

variable "objective" {
  description = "Whether there is an objective. Cloud Monitoring takes it once its metric has been written: false until then."
  type        = bool
  default     = true
}

variable "goal" {
  description = "The share of runs that end done, not dead, over 28 days."
  type        = number
  default     = 0.999

  validation {
    condition     = var.goal > 0.5 && var.goal < 1
    error_message = "A goal lies between 0.5 and 1; 1 leaves no room for any failure."
  }
}
