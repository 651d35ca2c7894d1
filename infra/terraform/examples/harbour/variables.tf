variable "project" {
  description = "The Google Cloud project: one for the fleet alone."
  type        = string
}

variable "region" {
  description = "Where everything runs."
  type        = string
  default     = "europe-west1"
}

variable "fleet" {
  description = "The fleet's name."
  type        = string
  default     = "harbour"
}

variable "image" {
  description = "The image of the fleet, by digest: docs/deploy.md."
  type        = string
}

variable "database_password" {
  description = "openssl rand -hex 24"
  type        = string
  ephemeral   = true
}

variable "ledger_key" {
  description = "base64 < .vedette/ledger.key"
  type        = string
  ephemeral   = true
}

variable "policy_key" {
  description = "base64 < .vedette/policy.key"
  type        = string
  ephemeral   = true
}

variable "secrets_version" {
  description = "Raise it when one of the three above has changed."
  type        = number
  default     = 1
}

variable "streams" {
  description = "Which topics bring which types of events, and who may publish to them. `type`: of events given as bare data."
  type = map(object({
    types      = list(string)
    type       = optional(string)
    publishers = optional(list(string), [])
    ordered    = optional(bool, false)
  }))
  default = {
    metrics = { types = ["metric.point"], type = "metric.point", ordered = true }
  }
}

variable "oncall_url" {
  description = "Where anomaly_detection tells whoever is on call."
  type        = string
}

variable "mailbox" {
  description = "The shared mailbox as a Maildir on NFS; without one inbox_triage sorts a copy of the samples."
  type        = object({ server = string, path = string })
  default     = null
}

variable "people" {
  description = "The OIDC provider of the people who may use the operator API, and which values of its role claim give which role; null for nobody."
  type = object({
    issuer        = string
    audience      = string
    role_claim    = optional(string, "roles")
    viewer        = optional(list(string), [])
    approver      = optional(list(string), [])
    operator      = optional(list(string), [])
    policy_author = optional(list(string), [])
  })
  default = null
}

variable "readers" {
  description = "Who may query the shipped ledger, for example group:compliance@example.org."
  type        = list(string)
  default     = []
}

variable "emails" {
  description = "Whom alarms go to."
  type        = list(string)
}

variable "objective" {
  description = "Whether there is a service level objective. Cloud Monitoring takes it once the gateway has written its first metrics: false for the first apply."
  type        = bool
  default     = true
}

variable "target_secrets" {
  description = "Further secrets that targets and senders name."
  type        = set(string)
  default     = []
}

variable "models" {
  description = "What agents may ask (model: of an agent.yaml): entries of [models]. key_secret is the id of a secret of this project that exists already; vertex needs none."
  type = map(object({
    provider          = string
    model             = string
    key_secret        = optional(string)
    location          = optional(string)
    price             = optional(string)
    calls_in_flight   = optional(number)
    calls_per_minute  = optional(number)
    tokens_per_minute = optional(number)
    timeout           = optional(string)
    fallback          = optional(string)
  }))
  default = {}
  validation {
    condition     = alltrue([for name, model in var.models : can(regex("^[a-z][a-z0-9_-]{0,62}$", name)) && contains(["gemini", "vertex", "anthropic", "openai"], model.provider)])
    error_message = "An entry's name is a-z, 0-9, _ and -; its provider gemini, vertex, anthropic or openai: the image has the packages of these."
  }
  validation {
    condition     = alltrue([for model in values(var.models) : (model.provider == "vertex") != (model.key_secret != null)])
    error_message = "Each entry needs its key_secret, but for one of vertex, which takes none."
  }
  validation {
    condition     = alltrue([for model in values(var.models) : model.fallback == null ? true : contains(keys(var.models), model.fallback)])
    error_message = "A fallback is another entry of models."
  }
}

variable "cloud_scheduler" {
  description = "Whether Cloud Scheduler's jobs fire. The engine's own scheduler always does; both together make each tick once."
  type        = bool
  default     = true
}

variable "availability_type" {
  description = "REGIONAL: the database stands in two zones; ZONAL: in one, for half the price."
  type        = string
  default     = "REGIONAL"
}

variable "deletion_protection" {
  description = "Refuse to delete what holds state."
  type        = bool
  default     = true
}
