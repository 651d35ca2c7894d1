variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "region" {
  description = "Where everything of the gateway runs."
  type        = string
}

variable "fleet" {
  description = "The fleet's name, as in vedette.toml; it begins every name here."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.fleet))
    error_message = "A fleet's name is a-z, 0-9 and -, from 2 to 20 characters: its service account's id is the name and -gateway, and Google allows 30."
  }
  validation {
    condition     = !can(regex("^agent(-|$)", var.fleet))
    error_message = "Agents' service accounts begin with agent-: the gateway's own would be taken for one."
  }
}

variable "image" {
  description = "The image of the fleet; one for all roles."
  type        = string
}

variable "settings" {
  description = "The text of vedette.toml."
  type        = string
}

# --- secrets: never in the state, never in a plan -------------------------------------------

variable "database_password" {
  description = "The database user's password: openssl rand -hex 24."
  type        = string
  ephemeral   = true
}

variable "ledger_key" {
  description = "The ledger's signing key, ledger.key of a state folder, in base64."
  type        = string
  ephemeral   = true
}

variable "policy_key" {
  description = "The key that signs policy bundles, policy.key of a state folder, in base64."
  type        = string
  ephemeral   = true
}

variable "secrets_version" {
  description = "Raise it when a secret above has changed; otherwise what is given above is not looked at."
  type        = number
  default     = 1
}

variable "target_secrets" {
  description = "Further secrets, which exist already and which [targets], [models] and [serve.senders] name; the gateway alone may read them."
  type        = set(string)
  default     = []
}

variable "model" {
  description = "Whether an agent asks a model of Vertex AI; it is the gateway that asks."
  type        = bool
  default     = false
}

# --- sizes --------------------------------------------------------------------------------------

variable "limits" {
  description = "CPU and memory of the gateway."
  type        = map(string)
  default     = { cpu = "2", memory = "2Gi" }
}

variable "max_instances" {
  description = "How many gateways there may be at once; while a new revision takes over there is one more."
  type        = number
  default     = 1
}

variable "database_tier" {
  description = "The machine of the database."
  type        = string
  default     = "db-custom-2-7680"
}

variable "database_version" {
  description = "PostgreSQL 15 or newer."
  type        = string
  default     = "POSTGRES_16"

  validation {
    condition     = can(regex("^POSTGRES_(1[5-9]|[2-9][0-9])$", var.database_version))
    error_message = "The store needs PostgreSQL 15 or newer."
  }
}

variable "availability_type" {
  description = "REGIONAL: the database stands in two zones; ZONAL: in one, for half the price."
  type        = string
  default     = "REGIONAL"

  validation {
    condition     = contains(["REGIONAL", "ZONAL"], var.availability_type)
    error_message = "REGIONAL or ZONAL."
  }
}

variable "subnet" {
  description = "The addresses of the fleet's own network."
  type        = string
  default     = "10.20.0.0/24"
}

variable "bundle_retention_days" {
  description = "How long a bundle that was overwritten or deleted can be had back."
  type        = number
  default     = 90

  validation {
    condition     = var.bundle_retention_days >= 7 && var.bundle_retention_days <= 90
    error_message = "Cloud Storage keeps what was deleted from 7 to 90 days."
  }
}

variable "router_image" {
  description = "The nginx that parts workers from everything else (see router.tf)."
  type        = string
  default     = "nginx:1.28-alpine"
}

variable "metrics_image" {
  description = "Google's sidecar that hands /metrics to Managed Service for Prometheus; null for none."
  type        = string
  default     = "us-docker.pkg.dev/cloud-ops-agents-artifacts/cloud-run-gmp-sidecar/cloud-run-gmp-sidecar:1.2.0"
}

variable "mailbox" {
  description = "A Maildir on NFS, mounted at /mnt/mailbox; null for none."
  type        = object({ server = string, path = string })
  default     = null
}

variable "deletion_protection" {
  description = "Refuse to delete the database, the secrets and the service."
  type        = bool
  default     = true
}
