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
adapters/reasoners/adk adapters/reasoners/adk
adapters/reasoners/workers adapters/reasoners/workers
judging/encoder judging/encoder
adapters/policy_engines/regorus adapters/policy_engines/regorus
adapters/policy_engines/opa adapters/policy_engines/opa
adapters/policy_engines/opa_wasm adapters/policy_engines/opa_wasm
adapters/bundles adapters/bundles
adapters/bundles/repository adapters/bundles/shelf
adapters/identity/google adapters/identity/google
adapters/identity/jwt adapters/identity/jwt
adapters/identity/spiffe adapters/identity/spiffe
adapters/identity/secrets adapters/identity/secrets
adapters/http adapters/http
adapters/mail/imap adapters/mail/imap
adapters/mail/maildir adapters/mail/maildir
adapters/mail/smtp adapters/mail/smtp
adapters/sql adapters/sql
adapters/prometheus adapters/telemetry/prometheus
adapters/telemetry/otel adapters/telemetry/otel
adapters/ledger_export adapters/ledger_export
adapters/audit adapters/audit
"""
FILES = """
adapters/reasoners/in_process adapters/reasoners/in_process
adapters/tools/in_process adapters/tools/in_process
adapters/reasoners/workers/run_journal adapters/reasoners/workers/run_journal
adapters/bundles/watch adapters/bundles/watch
adapters/signing_keys adapters/signing_keys
adapters/mail/smtp/notifier adapters/mail/smtp/notifier
adapters/notify/plugin adapters/notify/plugin
adapters/telemetry/prometheus adapters/telemetry/prometheus
adapters/files/source adapters/files/source
adapters/host/source adapters/host/source
adapters/schedule/source adapters/schedule/source
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
adapters/reasoners/workers/worker_handle adapters/reasoners/workers/worker_handle
adapters/reasoners/workers/supervisor adapters/reasoners/workers/supervisor
adapters/reasoners/workers/fork_server adapters/reasoners/workers/fork_server
adapters/reasoners/workers/worker_start adapters/reasoners/workers/worker_start
adapters/reasoners/workers/fork_server_start adapters/reasoners/workers/fork_server_start
adapters/reasoners/workers/sandbox adapters/reasoners/workers/sandbox
adapters/reasoners/workers/confinement adapters/reasoners/workers/confinement
adapters/reasoners/workers/sandbox_probe adapters/reasoners/workers/sandbox_probe
adapters/reasoners/workers/websocket_server adapters/reasoners/workers/websocket_server
adapters/reasoners/workers/websocket_client adapters/reasoners/workers/websocket_client
adapters/reasoners/workers/protocol adapters/reasoners/workers/protocol
adapters/reasoners/workers/plain_data adapters/reasoners/workers/plain_data
adapters/reasoners/workers/pending_call adapters/reasoners/workers/pending_call
adapters/reasoners/workers/remote_error adapters/reasoners/workers/remote_error
adapters/reasoners/workers/reasoner_client adapters/reasoners/workers/reasoner_client
adapters/reasoners/workers/tool_client adapters/reasoners/workers/tool_client
adapters/reasoners/workers/reasoner_worker adapters/reasoners/workers/reasoner_worker
adapters/reasoners/workers/tool_worker adapters/reasoners/workers/tool_worker
adapters/reasoners/workers/remote_reasoner adapters/reasoners/workers/remote_reasoner
adapters/reasoners/workers/name_resolution adapters/reasoners/workers/name_resolution
adapters/reasoners/workers/scratch_folder adapters/reasoners/workers/scratch_folder
adapters/policy_engines/regorus/trial_process adapters/policy_engines/regorus/trial_process
adapters/policy_engines/regorus/forked_check adapters/policy_engines/regorus/forked_check
adapters/policy_engines/regorus/golden_inputs adapters/policy_engines/regorus/golden_inputs
adapters/policy_engines/regorus/branch_inputs adapters/policy_engines/regorus/branch_inputs
adapters/policy_engines/regorus/program_cache adapters/policy_engines/regorus/program_cache
adapters/policy_engines/regorus/undefined_check adapters/policy_engines/regorus/undefined_check
adapters/policy_engines/regorus/unread_rules adapters/policy_engines/regorus/unread_rules
adapters/policy_engines/regorus/expression_kinds adapters/policy_engines/regorus/expression_kinds
adapters/policy_engines/opa/connection adapters/policy_engines/opa/connection
adapters/pubsub/batch_delivery adapters/pubsub/batch_delivery
adapters/pubsub/acknowledgement adapters/pubsub/acknowledgement
adapters/pubsub/declaration adapters/pubsub/declaration
adapters/pubsub/cloud_scheduler adapters/pubsub/cloud_scheduler
adapters/pubsub/publisher adapters/pubsub/publisher
adapters/http/tools adapters/http/tools
adapters/http/request adapters/http/request
adapters/identity/google/tools adapters/identity/google/tools
adapters/identity/secrets/tools adapters/identity/secrets/tools
adapters/sql/postgres adapters/sql/postgres
adapters/sql/sqlite adapters/sql/sqlite
adapters/sql/watermark adapters/sql/watermark
adapters/bigquery/reconciliation adapters/bigquery/reconciliation
ledger/verify/entry_check ledger/verify/entry_check
ledger/verify/checkpoint_check ledger/verify/checkpoint_check
testing/unreliable_source testing/unreliable_source
testing/power_loss testing/power_loss
testing/sample_steps testing/sample_steps
testing/toy_fleet testing/toy_fleet
adapters/bundles/signature adapters/bundles/signature
adapters/bundles/repository adapters/bundles/repository
adapters/bundles/bucket adapters/bundles/bucket
adapters/bundles/directory adapters/bundles/directory
adapters/ledger_export/verification adapters/ledger_export/verification
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
interfaces/http/local_api interfaces/http/local_api
interfaces/http/local_client interfaces/http/local_client
interfaces/http/unix_socket interfaces/http/unix_socket
interfaces/http/operator_api interfaces/http/operator_api
interfaces/http/operator_queries interfaces/http/operator_queries
interfaces/http/command_dispatch interfaces/http/command_dispatch
interfaces/http/policy_upload interfaces/http/policy_upload
interfaces/http/request_drain interfaces/http/request_drain
interfaces/http/worker_gateway interfaces/http/worker_gateway
interfaces/http/server interfaces/http/server
interfaces/http/uvicorn_server interfaces/http/uvicorn_server
interfaces/http/event_receiver interfaces/http/event_receiver
interfaces/http/pubsub_receiver interfaces/http/pubsub_receiver
interfaces/http/alertmanager_receiver interfaces/http/alertmanager_receiver
interfaces/http/bundle_server interfaces/http/bundle_server
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
interfaces/render/explain_html interfaces/render/explain_html
interfaces/render/explain_text interfaces/render/explain_text
interfaces/render/report_text interfaces/render/report_text
interfaces/render/series_svg interfaces/render/series_svg
interfaces/cli/approve interfaces/cli/approve
interfaces/cli/hold_text interfaces/cli/hold_text
interfaces/cli/text_width interfaces/cli/text_width
interfaces/cli/stop interfaces/cli/stop
interfaces/cli/reset interfaces/cli/reset
interfaces/cli/doctor interfaces/cli/doctor
interfaces/cli/dry_run interfaces/cli/dry_run
interfaces/cli/policy_history interfaces/cli/policy_history
interfaces/cli/live_table interfaces/cli/live_table
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
