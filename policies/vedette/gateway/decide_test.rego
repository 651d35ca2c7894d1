# The whole policy with the data as shipped: who may do what, seen from outside.
package vedette.gateway_test

import data.vedette.gateway

question := {
	"schema": "vedette.question/1",
	"now": 1795257610000000,
	"subject": {
		"id": "spiffe://harbour/agent/inbox_triage",
		"agent": "inbox_triage",
		"release": "r1",
		"owner": "desk@harbourlights.example",
		"requested_mode": "act",
	},
	"action": {
		"tool": "mail.file",
		"verb": "move",
		"digest": "d1",
		"declared": "d2",
		"settles": "idempotent",
		"high_impact": false,
		"args": {"message": "m1", "folder": "Invoices"},
		"origins": {"/message": "trusted", "/folder": "trusted"},
		"sinks": ["/message", "/folder"],
	},
	"resource": {"type": "mailbox", "id": "m1"},
	"context": {
		"event": {"type": "mail.received", "source": "maildir:sample", "hops": 0, "lineage": [], "vouched": []},
		"confidence": 950,
		"memories": [],
		"counters": {"minute": 0, "hour": 0, "day": 0, "run": 0},
		"budget": {"hour": 2000, "day": 20000, "run": 8},
		"approvals": [],
		"stopped": false,
		"turn": 1,
	},
}

changed(path, value) := json.patch(question, [{"op": "replace", "path": path, "value": value}])

sending(origin) := json.patch(question, [
	{"op": "replace", "path": "/action/tool", "value": "mail.send"},
	{"op": "replace", "path": "/action/verb", "value": "send"},
	{"op": "replace", "path": "/action/high_impact", "value": true},
	{"op": "replace", "path": "/action/args", "value": {"message": "m1", "to": "x@evil.example", "subject": "s", "body": "b"}},
	{"op": "replace", "path": "/action/origins", "value": {
		"/message": "trusted",
		"/to": origin,
		"/subject": "derived",
		"/body": "untrusted",
	}},
	{"op": "replace", "path": "/action/sinks", "value": ["/message", "/to"]},
	{"op": "replace", "path": "/resource/type", "value": "outbox"},
])

approval := [{"op": "replace", "path": "/context/approvals", "value": [{
	"action_digest": "d1",
	"by": "person:ada",
	"until": 1795257620000000,
}]}]

test_filing_is_permitted if {
	answer := gateway.decision with input as question
	answer == {
		"schema": "vedette.decision/1",
		"outcome": "permit",
		"rule": "permit.tool",
		"reasons": ["permit.tool:mail.file"],
		"wait": null,
		"until": 0,
		"would": null,
		"obligations": [],
	}
}

test_empty_question_is_denied if {
	answer := gateway.decision with input as {}
	answer.outcome == "deny"
}

test_sending_to_an_address_out_of_the_mail_is_denied if {
	every origin in ["derived", "untrusted"] {
		answer := gateway.decision with input as sending(origin)
		answer.outcome == "deny"
		answer.rule == concat("", ["origins.", origin])
	}
}

test_sending_to_a_known_address_waits_for_a_person if {
	every origin in ["trusted", "registered"] {
		answer := gateway.decision with input as sending(origin)
		answer.outcome == "hold"
		answer.wait == "approval"
		answer.rule == "impact.high"
	}
}

test_approved_sending_is_permitted_with_duties if {
	answer := gateway.decision with input as json.patch(sending("trusted"), approval)
	answer.outcome == "permit"
	answer.rule == "permit.approved"
	{duty.type | some duty in answer.obligations} == {"label_output", "notify"}
}

test_approval_undoes_no_deny if {
	answer := gateway.decision with input as json.patch(sending("untrusted"), approval)
	answer.outcome == "deny"
}

test_draft_may_name_any_recipient if {
	asked := json.patch(sending("untrusted"), [
		{"op": "replace", "path": "/action/tool", "value": "mail.draft"},
		{"op": "replace", "path": "/action/verb", "value": "draft"},
		{"op": "replace", "path": "/action/high_impact", "value": false},
		{"op": "replace", "path": "/resource/type", "value": "mailbox"},
	])
	answer := gateway.decision with input as asked
	answer.outcome == "permit"
}

test_unsure_waits_for_a_person if {
	answer := gateway.decision with input as changed("/context/confidence", 500)
	answer.outcome == "hold"
	answer.wait == "approval"
	answer.rule == "confidence.low"
}

test_full_window_waits_for_time if {
	answer := gateway.decision with input as changed("/context/counters/hour", 2000)
	answer.outcome == "hold"
	answer.wait == "time"
	answer.rule == "limits.hour"
	answer.until == 1795258800000000
}

test_stop_waits_for_resume if {
	answer := gateway.decision with input as json.patch(changed("/context/stopped", true), approval)
	answer.outcome == "hold"
	answer.wait == "resume"
	answer.rule == "stopped"
}

test_deny_comes_before_hold if {
	answer := gateway.decision with input as json.patch(
		changed("/context/stopped", true),
		[{"op": "replace", "path": "/context/event/hops", "value": 9}],
	)
	answer.outcome == "deny"
	answer.rule == "limits.hops"
}

test_observe_tells_what_would_be if {
	watching := {"inbox_triage": object.remove(data.grants.inbox_triage, ["mode"])}
	permitted := gateway.decision with input as question with data.grants as watching
	permitted.outcome == "deny"
	permitted.rule == "mode.observe"
	permitted.would == "permit"
	held := gateway.decision with input as sending("trusted") with data.grants as watching
	held.outcome == "deny"
	held.would == "hold"
	denied := gateway.decision with input as sending("untrusted") with data.grants as watching
	denied.outcome == "deny"
	denied.would == "deny"
}

test_ask_holds_every_effect if {
	answer := gateway.decision with input as changed("/subject/requested_mode", "ask")
	answer.outcome == "hold"
	answer.rule == "mode.ask"
	approved := gateway.decision with input as json.patch(changed("/subject/requested_mode", "ask"), approval)
	approved.outcome == "permit"
}

test_denied_tool_is_denied if {
	answer := gateway.decision with input as question
		with data.denies as {"agents": [], "tools": ["mail.file"], "complete": true}
	answer.outcome == "deny"
	answer.rule == "denies.tool"
}

reading(scope) := json.patch(question, [
	{"op": "replace", "path": "/action/tool", "value": "memory.read"},
	{"op": "replace", "path": "/action/verb", "value": "read"},
	{"op": "replace", "path": "/action/args", "value": {"bank": "inbox", "scope": scope}},
	{"op": "replace", "path": "/action/origins", "value": {}},
	{"op": "replace", "path": "/action/sinks", "value": []},
	{"op": "replace", "path": "/resource", "value": {"type": "memory", "id": concat("/", ["inbox", scope])}},
	{"op": "replace", "path": "/context/confidence", "value": 0},
	{"op": "replace", "path": "/context/counters/hour", "value": 2000},
])

test_own_scope_is_read_without_holds if {
	answer := gateway.decision with input as reading("inbox")
	answer.outcome == "permit"
	answer.rule == "permit.memory"
}

test_other_scope_is_denied if {
	answer := gateway.decision with input as reading("payroll")
	answer.outcome == "deny"
	answer.rule == "grant.memory"
}
