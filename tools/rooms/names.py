# ruff: noqa
# mypy: ignore-errors
"""Old place and new place of each module below src/vedette, without .py."""

FLAT = """
action domain/action
action_record domain/action_record
again engine/reauthorization
agent domain/agent
answering operations/approvals
apart app/remote_workers
app app/composition_root
approval domain/hold
archived ledger/pruned_log
backoff domain/base/backoff
backup app/backup
breaker engine/circuit_breaker
budget domain/budget
bundle domain/bundle
carry engine/effect_executor
case engine/run_context
ceiling domain/rate_limit
clock domain/base/clock
cloudevents domain/cloudevents
commands operations/commands
confidence domain/confidence
connections domain/base/connections
correcting operations/corrections
crashpoint domain/base/failpoint
curate memory/review
curating operations/curation
decision domain/decision
digest domain/base/canonical
disk_errors domain/base/disk_errors
dispatch engine/scheduler/dispatcher
display domain/display
display_text domain/display_text
doubt domain/loss_window
durable domain/base/fsync
edges app/source_plans
effect domain/effect
engines app/policy_engines
entry domain/entry
errors domain/base/errors
evaluate operations/evaluation
event domain/event
fair engine/scheduler/fair_queue
fleet_clock domain/base/fleet_clock
follow engine/cluster
founding operations/scaffold
gateway policy/gateway
guard engine/scheduler/failure_policy
handle engine/handle
hiding domain/redaction
http_client adapters/http_client
hold engine/held_actions
identity domain/identity
intake engine/ingest
isolation app/workers
judge_releases app/judge_releases
judge_replay operations/judge_replay
judge_report operations/judge_report
judge_state domain/judge_state
keychain ledger/key_history
labels domain/labels
learned domain/memory_state
learned_from memory/lineage
lessons memory/training_set
line engine/services
linger domain/base/linger
links domain/links
live app/doctor
loosening policy/loosening
machine domain/base/machine
memory domain/memory
modes operations/modes
moved domain/conflict
name_locks engine/keyed_lock
notices app/followers/notifications
notify app/followers/notifier
origin domain/origin
outside app/doctor_network
parking engine/parked_runs
perform engine/tool_calls
policy_check policy/compatibility
policy_folder policy/folder
policy_wasm domain/policy_wasm
proof ledger/merkle
publishing app/policy_publication
question domain/decision_request
quick_data domain/base/dataclass
quiet_time engine/quiet_time
readers domain/readers
recall memory/retrieval
releasing app/releases
replay policy/replay
reserve engine/reservation
rights operations/permissions
roles domain/roles
rollout policy/rollout
row_proof domain/row_proof
run domain/run
runner interfaces/daemon
safe_text domain/base/safe_text
sealing policy/signed_archive
second_opinion policy/second_opinion
shelving policy/distribution
signals interfaces/signals
sourcing app/sources
standing engine/kill_switch
state_folder domain/base/state_folder
stop domain/stop
store_copy app/store_copy
stores app/stores
supply engine/scheduler/backpressure
tail ledger/pruned_tree
tell app/followers/telemetry
tick domain/schedule
today domain/origin_check
told engine/call_report
tool domain/tool
totals domain/spend
trigger domain/trigger
trying app/dry_run
turn engine/turn
undo domain/compensation
undoing operations/undo
upkeep operations/maintenance
view ledger/history/projection
waking engine/scheduler/wakeups
watchdog engine/scheduler/watchdog
worker app/worker_main
"""
FOLDERS = """
storage store
store/sqlite store/sqlite
store/postgres store/postgres
store/banks store/banks
verify ledger/verify
ports domain/ports
load config
timeline ledger/history
cli interfaces/cli
serve interfaces/http
mail adapters/mail
adapters/adk adapters/reasoners/adk
adapters/worker_pool adapters/reasoners/workers
judging/encoder judging/encoder
adapters/rego adapters/policy_engines/regorus
adapters/opa adapters/policy_engines/opa
adapters/opa_wasm adapters/policy_engines/opa_wasm
adapters/bundle_file adapters/bundles
adapters/bundle_shelf adapters/bundles/shelf
adapters/google_tokens adapters/identity/google
adapters/jwt adapters/identity/jwt
adapters/svid adapters/identity/spiffe
adapters/secrets adapters/identity/secrets
adapters/http_tool adapters/http
adapters/imap_source adapters/mail/imap
adapters/maildir_source adapters/mail/maildir
adapters/smtp adapters/mail/smtp
adapters/sql_source adapters/sql
adapters/prometheus_source adapters/prometheus
adapters/otel adapters/telemetry/otel
adapters/ledger_file adapters/ledger_export
adapters/target_records adapters/audit
"""
FILES = """
adapters/local_judges adapters/reasoners/in_process
adapters/local_hands adapters/tools/in_process
adapters/in_hand adapters/reasoners/workers/run_journal
adapters/policy_watch adapters/bundles/watch
adapters/keys adapters/signing_keys
adapters/notifiers/mail adapters/mail/smtp/notifier
adapters/notifiers/webhook adapters/notify/plugin
adapters/prometheus adapters/telemetry/prometheus
adapters/file_source adapters/files/source
adapters/host_source adapters/host/source
adapters/schedule_source adapters/schedule/source
operations/eval_cases operations/eval_cases
store/group_commit store/group_commit
store/write_runs store/write_runs
store/write_commands store/write_commands
store/write_memories store/write_memories
store/read_archived_memories store/read_archived_memories
store/read_runs store/read_runs
store/read_ledger store/read_ledger
store/readmodel/tables store/readmodel/tables
store/readmodel/counts store/readmodel/counts
store/readmodel/run_lists store/readmodel/run_lists
store/readmodel/entry_lists store/readmodel/entry_lists
store/retention store/retention
store/write_buffer store/write_buffer
store/dead_letters store/dead_letters
store/erasure store/erasure
store/ledger_writer store/ledger_writer
store/spend_totals store/spend_totals
store/dialect store/dialect
store/row_mapper store/row_mapper
store/runner_lock store/runner_lock
store/loss_detection store/loss_detection
store/sqlite/migration store/sqlite/migration
store/sqlite/online_backup store/sqlite/online_backup
store/sqlite/previous_state store/sqlite/previous_state
store/banks/revisions store/banks/revisions
store/banks/statements store/banks/statements
store/postgres/shard_owner store/postgres/shard_owner
store/postgres/shards store/postgres/shards
store/postgres/dialect store/postgres/dialect
store/postgres/leases store/postgres/leases
domain/ports/reasoner domain/ports/reasoner
domain/ports/memory_bank domain/ports/memory_bank
domain/ports/policy_engine domain/ports/policy_engine
domain/ports/bundle_repository domain/ports/bundle_repository
adapters/worker_pool/seat adapters/reasoners/workers/worker_handle
adapters/worker_pool/pool adapters/reasoners/workers/supervisor
adapters/worker_pool/zygote adapters/reasoners/workers/fork_server
adapters/worker_pool/birth adapters/reasoners/workers/worker_start
adapters/worker_pool/begun adapters/reasoners/workers/fork_server_start
adapters/worker_pool/box adapters/reasoners/workers/sandbox
adapters/worker_pool/confine adapters/reasoners/workers/confinement
adapters/worker_pool/protection adapters/reasoners/workers/sandbox_probe
adapters/worker_pool/door adapters/reasoners/workers/websocket_server
adapters/worker_pool/relay adapters/reasoners/workers/websocket_client
adapters/worker_pool/wire adapters/reasoners/workers/protocol
adapters/worker_pool/plain adapters/reasoners/workers/plain_data
adapters/worker_pool/asked adapters/reasoners/workers/pending_call
adapters/worker_pool/errors adapters/reasoners/workers/remote_error
adapters/worker_pool/judges adapters/reasoners/workers/reasoner_client
adapters/worker_pool/hands adapters/reasoners/workers/tool_client
adapters/worker_pool/judge_side adapters/reasoners/workers/reasoner_worker
adapters/worker_pool/hands_side adapters/reasoners/workers/tool_worker
adapters/worker_pool/remote adapters/reasoners/workers/remote_reasoner
adapters/worker_pool/names adapters/reasoners/workers/name_resolution
adapters/worker_pool/scratch adapters/reasoners/workers/scratch_folder
adapters/rego/attempt adapters/policy_engines/regorus/trial_process
adapters/rego/beside adapters/policy_engines/regorus/forked_check
adapters/rego/golden adapters/policy_engines/regorus/golden_inputs
adapters/rego/branches adapters/policy_engines/regorus/branch_inputs
adapters/rego/shelf adapters/policy_engines/regorus/program_cache
adapters/rego/undefined adapters/policy_engines/regorus/undefined_check
adapters/rego/unread adapters/policy_engines/regorus/unread_rules
adapters/rego/values adapters/policy_engines/regorus/expression_kinds
adapters/opa/link adapters/policy_engines/opa/connection
adapters/pubsub/hand adapters/pubsub/batch_delivery
adapters/pubsub/settle adapters/pubsub/acknowledgement
adapters/pubsub/declared adapters/pubsub/declaration
adapters/pubsub/scheduled adapters/pubsub/cloud_scheduler
adapters/pubsub/sink adapters/pubsub/publisher
adapters/http_tool/hands adapters/http/tools
adapters/http_tool/send adapters/http/request
adapters/google_tokens/hands adapters/identity/google/tools
adapters/secrets/hands adapters/identity/secrets/tools
adapters/sql_source/in_postgres adapters/sql/postgres
adapters/sql_source/in_sqlite adapters/sql/sqlite
adapters/sql_source/marks adapters/sql/watermark
adapters/bigquery/compare adapters/bigquery/reconciliation
ledger/verify/entry_check ledger/verify/entry_check
ledger/verify/checkpoint_check ledger/verify/checkpoint_check
testing/rough testing/unreliable_source
testing/power testing/power_loss
testing/steps testing/sample_steps
testing/toy testing/toy_fleet
adapters/bundle_file/token adapters/bundles/signature
adapters/bundle_shelf/__init__ adapters/bundles/repository
adapters/bundle_shelf/bucket adapters/bundles/bucket
adapters/bundle_shelf/directory adapters/bundles/directory
adapters/ledger_file/checking adapters/ledger_export/verification
config/source_tables config/source_tables
config/deployment config/deployment
config/deployment_tables config/deployment_tables
config/mail_servers config/mail_servers
config/notify config/notify
config/http_tool config/http_tool
config/http_template config/http_template
config/bank config/bank
config/trigger_table config/trigger_table
config/secret_reference config/secret_reference
config/agent config/agent
config/agent_file config/agent_file
config/agent_folder config/agent_folder
config/agent_loader config/agent_loader
policy/bundle_data policy/bundle_data
config/settings_file config/settings_file
config/displays config/displays
config/yaml_edit config/yaml_edit
config/code_rename config/code_rename
serve/local interfaces/http/local_api
serve/client interfaces/http/local_client
serve/endpoint interfaces/http/unix_socket
serve/operators interfaces/http/operator_api
serve/operator_reads interfaces/http/operator_queries
serve/orders interfaces/http/command_dispatch
serve/sent_policy interfaces/http/policy_upload
serve/leftover interfaces/http/request_drain
serve/workers interfaces/http/worker_gateway
serve/http interfaces/http/server
serve/server interfaces/http/uvicorn_server
serve/ingest interfaces/http/event_receiver
serve/push interfaces/http/pubsub_receiver
serve/alertmanager interfaces/http/alertmanager_receiver
serve/bundles interfaces/http/bundle_server
ledger/history/action ledger/history/action
ledger/history/reader ledger/history/reader
ledger/history/changes ledger/history/changes
ledger/history/lists ledger/history/lists
ledger/history/approval_times ledger/history/approval_times
ledger/history/hold_groups ledger/history/hold_groups
ledger/history/target_match ledger/history/target_match
ledger/history/compensations ledger/history/compensations
ledger/history/observe_mode ledger/history/observe_mode
ledger/history/dead_letters ledger/history/dead_letters
ledger/history/policy_history ledger/history/policy_history
ledger/history/series ledger/history/series
ledger/history/counts ledger/history/counts
ledger/history/time_window ledger/history/time_window
ledger/history/reconstruction ledger/history/reconstruction
timeline/page interfaces/render/explain_html
timeline/text interfaces/render/explain_text
timeline/report_text interfaces/render/report_text
timeline/picture interfaces/render/series_svg
cli/answer interfaces/cli/approve
cli/showing interfaces/cli/hold_text
cli/wide interfaces/cli/text_width
cli/stopping interfaces/cli/stop
cli/fresh interfaces/cli/reset
cli/live interfaces/cli/doctor
cli/try_ interfaces/cli/dry_run
cli/policy_past interfaces/cli/policy_history
cli/view interfaces/cli/live_table
judging/confusables judging/confusables
judging/extreme_values judging/extreme_values
judging/hourly_profile judging/hourly_profile
judging/side_features judging/side_features
judging/kernel_svm judging/kernel_svm
judging/rank_anomaly judging/rank_anomaly
judging/alarm_policy judging/alarm_policy
judging/binary_classifier judging/binary_classifier
"""
# Stay where they are, as everything below them that is not named above.
STAY = (
    "adapters/alertmanager",
    "adapters/bigquery",
    "adapters/files",
    "adapters/host",
    "adapters/notify",
    "adapters/pubsub",
    "judging",
    "testing",
    "sdk",
    "adapters/__init__",
    "__init__",
    "__main__",
)


def table(text):
    return [tuple(line.split()) for line in text.strip().split("\n")]


def plan(old_modules):
    """old_modules: paths below src/vedette without .py -> {old: new}, all of them."""
    flat, files, folders = dict(table(FLAT)), dict(table(FILES)), table(FOLDERS)
    folders.sort(key=lambda row: -len(row[0]))
    out, missing = {}, []
    for old in old_modules:
        if old in flat:
            out[old] = flat[old]
        elif old in files:
            out[old] = files[old]
        else:
            for a, b in folders:
                if old.startswith(a + "/"):
                    out[old] = b + old[len(a) :]
                    break
            else:
                if old in STAY or old.startswith(tuple(f"{x}/" for x in STAY)):
                    out[old] = old
                else:
                    missing.append(old)
    new = list(out.values())
    double = {x for x in new if new.count(x) > 1}
    return out, missing, double
