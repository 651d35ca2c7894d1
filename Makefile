# `make` prints what there is. ARGS="…" is handed on by the targets that say so.

.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
# Two, not one per core: the fault and speed tests measure time and start processes of their own.
WORKERS ?= 2
# The tests start thousands of programs, each of which would compile all that it imports once more.
unexport PYTHONDONTWRITEBYTECODE
# Tests commit many times: in memory, where there is room, no commit waits for a disk. What is about
# power cuts and errors of a disk plays them itself.
IN_MEMORY := $(shell test "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt 8000000 \
  2>/dev/null && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)
ARGS ?=
SEED ?=

.PHONY: help setup run test check fast long faults io-errors clients jepsen lock replay-real kill-real bench-line bench-start \
  bench-latency bench-idle bench-standing bench-canary bench-stop bench-peers bench-publish soak wheel clean \
  eval-real eval-cascade session show-imap mutants bench-pubsub replay-pubsub bench-bigquery bench-opa \
  bench-opinion bench-box diff-engines diff-residuals pairs simulate planted bench-kafka kafka-faults \
  month planted-month simulate-heads bench-postgres-workers bench-sleep bench-model bench-misbehaviour bench-task-turns \
  show-outage show-held-calls weekly-review long-task-kills

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv from requirements.lock and install the pinned opa (quick when done)
	@tools/setup
	@tools/opa
	@$(BIN)/python tools/policy_wasm.py
	@$(BIN)/python -m vedette.adapters.policy_engines.opa_wasm
	@tools/oidc/install
	@tools/bqemulator
	@tools/aiosmtpd
	@tools/clients
	@tools/mcp-servers
	@tools/dovecot
	@tools/prometheus
	@tools/terraform-provider

run: ## Run the sample fleet on this machine until Ctrl-C; ARGS go to `vedette run`
	@tools/setup
	@$(BIN)/python tools/run_demo.py $(ARGS)

test: setup ## Set up, then the whole gate: what CI calls
	@$(MAKE) --no-print-directory check

check: ## The gate: ruff, mypy, import contracts, Rego by opa, pytest
	@test -x $(BIN)/pytest || { echo "no .venv here. Mend: make setup" >&2; exit 3; }
	@echo "== ruff";             $(BIN)/ruff format --check . && $(BIN)/ruff check .
	@echo "== mypy --strict";    $(BIN)/mypy
	@echo "== import contracts"; $(BIN)/lint-imports
	@echo "== policies";         tools/check-policies
	@echo "== pytest";           env $(IN_MEMORY) $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	  -m "not long" $(ARGS)

fast: ## Unit and property tests only; ARGS go to pytest
	@$(BIN)/pytest -q -m "not long" tests/unit tests/properties $(ARGS)

long: ## The tests that the gate has no time for, file by file; resumable (40 min; ARGS=--fresh)
	@tools/setup
	@$(BIN)/python -m tests.long $(ARGS)

lock: ## Compile requirements.lock again; ARGS="--upgrade" moves the pins
	@tools/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-emit-index-url --quiet $(ARGS) --output-file requirements.lock
	@tools/image-locks
	@echo "requirements.lock is compiled; make setup installs it"

faults: ## Every crash point, 15,000 pairs, power cuts, controls on both stores; resumable (40 min; ARGS=--fresh)
	@tools/setup
	@$(BIN)/python -m tests.faults.every $(ARGS)

io-errors: ## An I/O error at every write, sync, open, rename … of a scripted day, in five ways; resumable (1 h; ARGS=--fresh)
	@tools/setup
	@$(BIN)/python -m tests.faults.io_errors $(ARGS)

simulate: ## Simulated histories of the whole cluster, judged by the model; ARGS="--histories 30000"
	@tools/setup
	@$(BIN)/python -m tests.simulation.search $(ARGS)

simulate-heads: ## The heads of many shards: 10,000 histories, planted bugs, what 512 shards cost (10 min; ARGS="--histories 300")
	@tools/setup
	@$(BIN)/python -m tests.simulation.heads_search $(ARGS)

kafka-faults: ## Kill -9 of a real broker and its owners, zombies, publishes between; resumable (20 min; ARGS=--fresh)
	@tools/setup
	@$(BIN)/python -m tests.bench.kafka.faults $(ARGS)

clients: ## The sample agents (a script, LangGraph, the OpenAI Agents SDK) before a daemon, each in its environment
	@tools/setup
	@tools/clients
	@CI=1 $(BIN)/pytest -q tests/acceptance/test_foreign_agents.py $(ARGS)

jepsen: ## The promises on real processes under SEED=n faults; ARGS="--minutes 30 --store postgresql"
	@tools/setup
	@SEED=$(SEED) $(BIN)/python -m tests.jepsen $(ARGS)

month: ## Thirty virtual days of a harbour with twenty agents, tasks and faults; resumable (15 min of CPU; ARGS="--days 3 --rate 0.2")
	@tools/setup
	@$(BIN)/python -m tests.month $(ARGS)

planted-month: ## Bugs planted in a copy of the checkout, which a few days of the month find (5 min; ARGS="--only NAME")
	@tools/setup
	@$(BIN)/python -m tests.month.planted $(ARGS)

planted: ## Bugs planted in a copy of the checkout: how soon the simulation finds each; ARGS="--most 1000"
	@tools/setup
	@$(BIN)/python -m tests.simulation.planted $(ARGS)

mutants: ## Every deliberate violation of a promise, and of tasks, each killed by the test that is to (10 min)
	@tools/setup
	@$(BIN)/python -m tests.mutants $(ARGS)

replay-real: ## Replay the real data of VEDETTE_DATA through the whole line; ARGS go to the tool
	@tools/setup
	@$(BIN)/python -m tools.replay_real $(ARGS)

eval-real: ## Score the judges on the data of VEDETTE_DATA beside baselines (30 min; ARGS=--quick: 5 min)
	@tools/setup
	@$(BIN)/python -m tools.eval_real $(ARGS)

eval-cascade: ## Score a judge, a scripted model and the cascade of both on the mails of VEDETTE_DATA (1 min)
	@tools/setup
	@$(BIN)/python -m tools.eval_cascade

kill-real: ## Kill -9 a replay of the real data of VEDETTE_DATA twenty times and compare; ARGS go to pytest
	@tools/setup
	@$(BIN)/pytest -q tests/faults/test_kill.py -k real_data $(ARGS)

bench-line: ## The whole line on a made-up load: events/s, CPU per event; ARGS=--matrix: every load, isolated and not, both stores
	@tools/setup
	@$(BIN)/python -m tests.bench.line $(ARGS)

bench-latency: ## From accept to effect at 500 events/s: p50 and p99 beside the fsync of the moment
	@tools/setup
	@$(BIN)/python -m tests.bench.latency $(ARGS)

bench-start: ## From process start to the first durable decision and the first effect
	@tools/setup
	@$(BIN)/python -m tests.bench.start $(ARGS)

bench-idle: ## Four agents at rest: share of a core, wakeups, memory; and when 200 agents are ready (8 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.idle $(ARGS)

bench-sleep: ## 10,000 runs that wait: start, CPU at rest and over 30 virtual days, how soon the right one wakes (8 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.sleep $(ARGS)

bench-standing: ## The others' p99 beside an endless loop, a memory eater, a storm, a hanging target
	@tools/setup
	@$(BIN)/python -m tests.bench.standing $(ARGS)

bench-canary: ## The others' p99 beside a bad release in a canary, A B A B; how soon it is aborted (5 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.canary $(ARGS)

bench-opa: ## One decision by the embedded engine, by OPA's Wasm and by an OPA server: p50, p99, CPU
	@tools/setup
	@tools/opa
	@$(BIN)/python -m tests.bench.opa $(ARGS)

diff-engines: ## 100,000 questions, and 20,000 generated modules, to every policy engine (30 min)
	@tools/setup
	@tools/opa
	@$(BIN)/python -m tests.diff_engines $(ARGS)
	@$(BIN)/python -m tests.diff_modules $(MODULES)

diff-residuals: ## 100,000 questions to each residual of the shipped policy and to OPA's Wasm (10 min); ARGS="--mutants mail.file"
	@tools/setup
	@tools/opa
	@$(BIN)/python -m tests.diff_residuals $(ARGS)

bench-opinion: ## What a second policy engine adds to a decision: on each permit, and on a sample
	@tools/setup
	@tools/opa
	@$(BIN)/python -m tests.bench.opinion $(ARGS)

bench-box: ## A worker's start and a judged event, with the box and without, in turns (1 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.box

bench-stop: ## From the order to stop to the last call, at 500 events/s and over a restart
	@tools/setup
	@$(BIN)/python -m tests.bench.stop $(ARGS)

bench-model: ## A model's turn outside its provider: CPU of engine, worker, tools, for each wire (5 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.model_turn $(ARGS)

delegation-trees: ## Random trees of delegation against a plain model: 10,000 run by a fleet (about an hour), 10,000 put to the policy (10 min); goes on where it was ended
	@tools/setup
	@$(BIN)/python -m tests.delegation_trees build/delegation-trees --trees 10000 --decisions $(ARGS)
	@$(BIN)/python -m tests.delegation_trees build/delegation-trees --trees 10000 $(ARGS)

long-task: ## A task of a thousand turns: prompt bounded, tokens linear, CPU of a turn early and late (3 min)
	@tools/setup
	@VEDETTE_TASK_TURNS=1000 $(BIN)/python -m pytest -s -k long_task tests/contract/adapters/reasoners/test_hand_offs.py $(ARGS)

long-task-kills: ## The same on two workers of one store, which are killed 20 times; ARGS="--turns 60 --kills 3" (15 min)
	@tools/setup
	@$(BIN)/python -m tests.faults.long_task $(ARGS)

bench-task-turns: ## CPU of a task's turn at 50 and at 1,000, in turns; 1 if the late one is above twice the early (3 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.task_turns $(ARGS)

drift: ## Twenty ways of drift in hand-offs: which are named, when, and how often honest ones are; ARGS=-v
	@tools/setup
	@$(BIN)/python -m tests.drift $(ARGS)

bench-misbehaviour: ## The others beside models that misbehave: /healthz, p99, effects, spend (15 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.misbehaving_models $(ARGS)

bench-publish: ## 60 policy changes at 20 processes under load: time, late calls, late commits (10 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.publish $(ARGS)

bench-peers: ## The line beside DBOS, LangGraph and ADK, in one run (15 min; ARGS=--quick: 3 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.peers $(ARGS)

soak: ## Cost at 10 thousand, 1 and 5 million entries with 1,000 agents (15 min, 8 GB); a plot in docs/
	@tools/setup
	@$(BIN)/python -m tests.bench.flat .tools/soak --plot docs/flat.svg $(ARGS)

bench-bigquery: ## BigQuery emulator: what shipping an entry and polling a table cost
	@tools/setup
	@$(BIN)/python -m tests.bench.bigquery $(ARGS)

bench-kafka: ## Segments by a Kafka broker, heads in PostgreSQL, beside PostgreSQL alone; needs Java 17 and Maven (6 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.kafka $(ARGS)

bench-postgres-workers: ## What one worker and four do on one PostgreSQL; ARGS=--line: the whole line (2 min)
	@tools/setup
	@$(BIN)/python -m tests.bench.postgres_workers $(ARGS)

bench-pubsub: ## Pub/Sub emulator, 20 subscriptions: events/s and CPU from receive over commit to ack
	@tools/setup
	@$(BIN)/python -m tests.bench.pubsub $(ARGS)

replay-pubsub: ## The replay over a Pub/Sub emulator on PostgreSQL; ARGS=--real: the data of VEDETTE_DATA
	@tools/setup
	@$(BIN)/python -m tests.bench.pubsub_replay $(ARGS)

show-imap: ## A new agent at an IMAP mailbox of 1,000 mails: observe, ask, act on one folder (2 min)
	@tools/setup
	@$(BIN)/python -m tests.acceptance.show_imap $(ARGS)

show-outage: ## A provider away for five minutes of real time (6 min); ARGS="--seconds 30"
	@tools/setup
	@$(BIN)/python -m tests.acceptance.show_outage $(ARGS)

show-held-calls: ## Calls of three clients held for five minutes on a daemon (17 min); ARGS="--minutes 0.3"
	@tools/setup
	@tools/clients
	@$(BIN)/python -m tests.acceptance.show_held_calls $(ARGS)

pairs: ## 98 routines against 126 attacks in nine ways, with rules and without, by an agent that obeys (2 min of CPU)
	@tools/setup
	@$(BIN)/python -m tests.acceptance.pairs

session: ## Record the session that the README shows: docs/session.svg, from the real program
	@tools/setup
	@$(BIN)/python -m tools.record_session $(ARGS)

weekly-review: ## The weekly review of the sample week, two hundred papers: its progress and its report (1 min)
	@tools/setup
	@$(BIN)/python -m tools.weekly_review $(ARGS)

wheel: ## Build the wheel into dist/
	@tools/setup
	@$(BIN)/python -m hatchling build -t wheel

clean: ## Remove build output and caches (never .vedette, which is state)
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find src tests tools agents samples -name __pycache__ -type d -prune -exec rm -rf {} +
