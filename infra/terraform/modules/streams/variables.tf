variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "project_number" {
  description = "Its number: the Pub/Sub service agent is named after it."
  type        = string
}

variable "fleet" {
  description = "The fleet's name, as in vedette.toml."
  type        = string
}

variable "gateway" {
  description = "The gateway's service account, which pulls and redrives; an e-mail."
  type        = string
}

variable "regions" {
  description = "Where messages may be stored."
  type        = list(string)

  validation {
    condition     = length(var.regions) > 0
    error_message = "Name at least one region: without one, messages may lie anywhere."
  }
}

variable "streams" {
  description = "A topic, its shared subscription and its dead letters, by name. One per trust class: `publishers` are whom the gateway trusts for an event's envelope. `redriven`: the gateway may publish its dead letters again."
  type = map(object({
    publishers            = optional(list(string), [])
    schema                = optional(object({ type = string, definition = string, encoding = string }))
    retention             = optional(string, "604800s")
    filter                = optional(string, "")
    ordered               = optional(bool, false)
    exactly_once          = optional(bool, false)
    ack_deadline_seconds  = optional(number, 60)
    max_delivery_attempts = optional(number, 5)
    redriven              = optional(bool, true)
  }))

  validation {
    condition     = alltrue([for name, _ in var.streams : can(regex("^[a-z][a-z0-9-]{2,60}$", name))])
    error_message = "A stream's name is a-z, 0-9 and -, from 3 to 61 characters."
  }
  validation {
    condition = alltrue(flatten([
      for stream in var.streams : [
        for who in stream.publishers : !contains(["allUsers", "allAuthenticatedUsers"], who)
      ]
    ]))
    error_message = "Everybody is nobody whom an envelope could be trusted for."
  }
  validation {
    condition     = alltrue([for stream in var.streams : stream.ack_deadline_seconds >= 10 && stream.ack_deadline_seconds <= 600])
    error_message = "Pub/Sub takes ack deadlines from 10 to 600 seconds."
  }
  validation {
    condition     = alltrue([for stream in var.streams : stream.max_delivery_attempts >= 5 && stream.max_delivery_attempts <= 100])
    error_message = "Pub/Sub takes from 5 to 100 delivery attempts."
  }
}
