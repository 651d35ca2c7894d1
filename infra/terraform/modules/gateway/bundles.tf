# Where signed policy bundles are put: archives/DIGEST.tar.gz, which never change, and
# FLEET.tar.gz, the live one, which each publication overwrites.
#
# A retention policy of the bucket (Bucket Lock) would forbid exactly that overwriting. So nothing
# is lost in another way: what is overwritten stays as an older version, what is deleted can be had
# back, and the gateway itself may replace the live bundle's object and no other.

resource "google_storage_bucket" "bundles" {
  project                     = var.project
  name                        = "${var.project}-${var.fleet}-bundles"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false
  labels                      = local.labels

  versioning {
    enabled = true
  }

  soft_delete_policy {
    retention_duration_seconds = var.bundle_retention_days * 86400
  }
}

resource "google_storage_bucket_iam_member" "gateway_reads" {
  bucket = google_storage_bucket.bundles.name
  role   = "roles/storage.objectViewer"
  member = google_service_account.gateway.member
}

resource "google_storage_bucket_iam_member" "gateway_adds" {
  bucket = google_storage_bucket.bundles.name
  role   = "roles/storage.objectCreator"
  member = google_service_account.gateway.member
}

# To overwrite is to delete and create.
resource "google_project_iam_custom_role" "replaces" {
  project     = var.project
  role_id     = "vedette_${replace(var.fleet, "-", "_")}_replaces"
  title       = "vedette ${var.fleet}: replaces the live policy bundle"
  permissions = ["storage.objects.delete"]
}

resource "google_storage_bucket_iam_member" "gateway_replaces" {
  bucket = google_storage_bucket.bundles.name
  role   = google_project_iam_custom_role.replaces.name
  member = google_service_account.gateway.member

  condition {
    title      = "the live bundle only"
    expression = "resource.name == 'projects/_/buckets/${google_storage_bucket.bundles.name}/objects/bundles/${var.fleet}.tar.gz'"
  }
}
