# The rules together, seen from outside: who may do what under the policy of vedette.testdata.
package vedette.gateway_test

import data.vedette.gateway
import data.vedette.testdata

under(policy, asked) := answer if {
	answer := gateway.decision with input as asked
		with data.grants as policy.grants
		with data.limits as policy.limits
		with data.sinks as policy.sinks
		with data.links as policy.links
		with data.denies as policy.denies
		with data.vedette.denies.deny as set()
}

decided(asked) := under(testdata.policy, asked)

replaced(what, path, value) := json.patch(what, [{"op": "replace", "path": path, "value": value}])

changed(path, value) := replaced(testdata.question, path, value)

sending(origin) := json.patch(testdata.question, [
	{"op": "replace", "path": "/action/tool", "value": "letter.send"},
	{"op": "replace", "path": "/action/verb", "value": "send"},
	{"op": "replace", "path": "/action/high_impact", "value": true},
	{"op": "replace", "path": "/action/args", "value": {"letter": "l1", "to": "x@evil.example", "subject": "s", "body": "b"}},
	{"op": "replace", "path": "/action/origins", "value": {
		"/letter": "trusted",
		"/to": origin,
		"/subject": "derived",
		"/body": "untrusted",
	}},
	{"op": "replace", "path": "/action/sinks", "value": ["/letter", "/to"]},
	{"op": "replace", "path": "/resource/type", "value": "post"},
])

approved(asked) := replaced(asked, "/context/approvals", [{
	"action_digest": "d1",
	"by": "person:ada",
	"until": 1795257620000000,
}])

test_filing_is_permitted if {
	decided(testdata.question) == {
		"schema": "vedette.decision/1",
		"outcome": "permit",
		"rule": "permit.tool",
		"reasons": ["permit.tool:letter.file"],
		"wait": null,
		"until": 0,
		"would": null,
		"obligations": [],
	}
}

test_empty_question_is_denied if {
	answer := decided({})
	answer.outcome == "deny"
}

test_sending_to_an_address_out_of_the_content_is_denied if {
	every origin in ["derived", "untrusted"] {
		answer := decided(sending(origin))
		answer.outcome == "deny"
		answer.rule == concat("", ["origins.", origin])
	}
}

test_sending_to_a_known_address_waits_for_a_person if {
	every origin in ["trusted", "registered"] {
		answer := decided(sending(origin))
		answer.outcome == "hold"
		answer.wait == "approval"
		answer.rule == "impact.high"
	}
}

test_approved_sending_is_permitted_with_duties if {
	answer := decided(approved(sending("trusted")))
	answer.outcome == "permit"
	answer.rule == "permit.approved"
	{duty.type | some duty in answer.obligations} == {"label_output", "notify"}
	plain := decided(approved(testdata.question))
	plain.rule == "permit.approved"
	plain.obligations == []
	warned := decided(approved(changed("/action/high_impact", true)))
	warned.obligations == [{"type": "notify", "reason": "impact.high"}]
}

test_approval_undoes_no_deny if {
	decided(approved(sending("untrusted"))) == {
		"schema": "vedette.decision/1",
		"outcome": "deny",
		"rule": "origins.untrusted",
		"reasons": ["origins.untrusted:/to"],
		"wait": null,
		"until": 0,
		"would": null,
		"obligations": [],
	}
}

test_sink_that_takes_all_origins if {
	asked := json.patch(sending("untrusted"), [
		{"op": "replace", "path": "/action/tool", "value": "letter.draft"},
		{"op": "replace", "path": "/action/verb", "value": "draft"},
		{"op": "replace", "path": "/action/high_impact", "value": false},
		{"op": "replace", "path": "/resource/type", "value": "shelf"},
	])
	answer := decided(asked)
	answer.outcome == "permit"
}

# Each proof of `permitted` and of `admissible`, missing alone.

test_identity_of_another_is_denied if {
	other := changed("/subject/id", "spiffe://harbour/agent/other")
	answer := decided(other)
	answer.outcome == "deny"
	answer.rule == "identity.spiffe"
	unsure := decided(replaced(other, "/context/confidence", 0))
	unsure.outcome == "deny"
}

test_tool_not_granted_is_denied if {
	other := changed("/action/tool", "letter.burn")
	answer := decided(other)
	answer.outcome == "deny"
	answer.rule == "grant.tool"
	unsure := decided(replaced(other, "/context/confidence", 0))
	unsure.outcome == "deny"
}

test_content_that_decides_which_is_denied if {
	tainted := changed("/action/origins/~1letter", "untrusted")
	answer := decided(tainted)
	answer.outcome == "deny"
	answer.rule == "origins.untrusted"
	unsure := decided(replaced(tainted, "/context/confidence", 0))
	unsure.outcome == "deny"
}

test_too_many_hops_are_denied if {
	far := changed("/context/event/hops", 9)
	answer := decided(far)
	answer.outcome == "deny"
	answer.rule == "limits.hops"
	unsure := decided(replaced(far, "/context/confidence", 0))
	unsure.outcome == "deny"
}

test_denies_that_are_not_whole_deny if {
	cut := replaced(testdata.policy, "/denies", {"agents": [], "tools": []})
	answer := under(cut, testdata.question)
	answer.outcome == "deny"
	answer.rule == "proof.missing"
	unsure := under(cut, changed("/context/confidence", 0))
	unsure.outcome == "deny"
}

test_unsure_waits_for_a_person if {
	decided(changed("/context/confidence", 500)) == {
		"schema": "vedette.decision/1",
		"outcome": "hold",
		"rule": "confidence.low",
		"reasons": ["confidence.low"],
		"wait": "approval",
		"until": 0,
		"would": null,
		"obligations": [],
	}
}

test_full_window_waits_for_time if {
	answer := decided(changed("/context/counters/hour", 6000))
	answer.outcome == "hold"
	answer.wait == "time"
	answer.rule == "limits.hour"
	answer.until == 1795258800000000
}

test_stop_waits_for_resume if {
	answer := decided(approved(changed("/context/stopped", true)))
	answer.outcome == "hold"
	answer.wait == "resume"
	answer.rule == "stopped"
}

test_person_is_asked_before_time_is_waited_for if {
	answer := decided(replaced(changed("/context/counters/hour", 6000), "/context/confidence", 500))
	answer.outcome == "hold"
	answer.wait == "approval"
	{reason | some reason in answer.reasons} == {"confidence.low", "limits.hour"}
	consented := decided(approved(replaced(changed("/context/counters/hour", 6000), "/context/confidence", 500)))
	consented.outcome == "hold"
	consented.wait == "time"
}

test_deny_comes_before_hold if {
	answer := decided(replaced(changed("/context/stopped", true), "/context/event/hops", 9))
	answer.outcome == "deny"
	answer.rule == "limits.hops"
}

test_observe_tells_what_would_be if {
	watching := replaced(testdata.policy, "/grants/clerk/mode", "observe")
	permitted := under(watching, testdata.question)
	permitted.outcome == "deny"
	permitted.rule == "mode.observe"
	permitted.would == "permit"
	held := under(watching, sending("trusted"))
	held.outcome == "deny"
	held.would == "hold"
	denied := under(watching, sending("untrusted"))
	denied.outcome == "deny"
	denied.would == "deny"
	ungranted := under(watching, changed("/action/tool", "letter.burn"))
	ungranted.would == "deny"
	misused := under(watching, changed("/action/verb", "burn"))
	misused.would == "deny"
	read := under(watching, reading("letters"))
	read.outcome == "permit"
	elsewhere := under(watching, reading("payroll"))
	elsewhere.would == null
	stranger := under(watching, changed("/subject/agent", "stranger"))
	stranger.would == null
}

test_ask_holds_every_effect if {
	asked := changed("/subject/requested_mode", "ask")
	answer := decided(asked)
	answer.outcome == "hold"
	answer.rule == "mode.ask"
	released := decided(approved(asked))
	released.outcome == "permit"
}

test_value_beyond_the_grant_is_held_until_a_person_decides if {
	only := json.patch(testdata.grants, [{
		"op": "add",
		"path": "/clerk/tools/letter.file/only",
		"value": {"/shelf": ["Letters"]},
	}])
	held := gateway.decision with input as testdata.question
		with data.grants as only
		with data.limits as testdata.limits
		with data.sinks as testdata.sinks
		with data.links as testdata.links
		with data.vedette.denies.deny as set()
	held.outcome == "hold"
	held.rule == "grant.only"
	"grant.only:/shelf" in held.reasons
	within := json.patch(testdata.question, [{"op": "replace", "path": "/action/args/shelf", "value": "Letters"}])
	free := gateway.decision with input as within
		with data.grants as only
		with data.limits as testdata.limits
		with data.sinks as testdata.sinks
		with data.links as testdata.links
		with data.vedette.denies.deny as set()
	free.outcome == "permit"
}

# Here the denies in force are asked too: whatever was added, it stays a deny.
test_denied_tool_is_denied if {
	answer := gateway.decision with input as testdata.question
		with data.grants as testdata.grants
		with data.limits as testdata.limits
		with data.sinks as testdata.sinks
		with data.links as testdata.links
		with data.denies.agents as []
		with data.denies.tools as ["letter.file"]
	answer.outcome == "deny"
	"denies.tool" in answer.reasons
}

reading(scope) := json.patch(testdata.question, [
	{"op": "replace", "path": "/action/tool", "value": "memory.read"},
	{"op": "replace", "path": "/action/verb", "value": "read"},
	{"op": "replace", "path": "/action/args", "value": {"bank": "desk", "scope": scope}},
	{"op": "replace", "path": "/action/origins", "value": {}},
	{"op": "replace", "path": "/action/sinks", "value": []},
	{"op": "replace", "path": "/resource", "value": {"type": "memory", "id": concat("/", ["desk", scope])}},
	{"op": "replace", "path": "/context/confidence", "value": 0},
	{"op": "replace", "path": "/context/counters/hour", "value": 2000},
])

test_own_scope_is_read_without_holds if {
	answer := decided(reading("letters"))
	answer.outcome == "permit"
	answer.rule == "permit.memory"
}

test_other_scope_is_denied if {
	answer := decided(reading("payroll"))
	answer.outcome == "deny"
	answer.rule == "grant.memory"
}

ending(held) := json.patch(testdata.question, [
	{"op": "replace", "path": "/action/tool", "value": "task.finish"},
	{"op": "replace", "path": "/action/verb", "value": "finish"},
	{"op": "replace", "path": "/action/args", "value": {"summary": "s"}},
	{"op": "replace", "path": "/action/origins", "value": {"/summary": "derived"}},
	{"op": "replace", "path": "/action/sinks", "value": []},
	{"op": "replace", "path": "/resource/type", "value": "task"},
	{"op": "add", "path": "/context/task", "value": {
		"conditions": [{"name": "sent", "held": held, "why": "counted"}],
		"person": false,
	}},
])

working := json.patch(testdata.policy, [
	{"op": "add", "path": "/grants/clerk/tools/task.finish", "value": {"verb": "finish", "resource": "task", "impact": "low"}},
	{"op": "add", "path": "/sinks/tools/task.finish", "value": {}},
])

test_task_ends_when_its_conditions_hold if {
	answer := under(working, ending(true))
	answer.outcome == "permit"
}

test_task_with_an_unmet_condition_is_denied_by_its_name if {
	answer := under(working, ending(false))
	answer.outcome == "deny"
	answer.rule == "task.unmet"
	answer.reasons == ["task.unmet:sent"]
}

test_no_person_ends_a_task_with_an_unmet_condition if {
	unsure := under(working, replaced(ending(false), "/context/confidence", 0))
	unsure.outcome == "deny"
	agreed := under(working, approved(replaced(ending(false), "/context/confidence", 0)))
	agreed.outcome == "deny"
}

# What an agent above may not do, and what it would need a person for.
below(cover, room) := json.patch(testdata.question, [{"op": "add", "path": "/context/delegation", "value": {
	"ancestors": [{"agent": "clerk", "cover": cover, "owner": "desk@harbour.example", "requested_mode": "act"}],
	"room": room,
}}])

test_child_may_what_the_agent_above_may if {
	answer := under(testdata.policy, below("act", true))
	answer.outcome == "permit"
}

test_child_needs_a_person_where_the_agent_above_does if {
	asked := under(testdata.policy, below("ask", true))
	asked.outcome == "hold"
	asked.rule == "delegation.ask"
	answered := under(testdata.policy, approved(below("ask", true)))
	answered.outcome == "permit"
}

test_child_may_nothing_that_the_agent_above_may_not if {
	denied := under(testdata.policy, approved(below("none", true)))
	denied.outcome == "deny"
	denied.rule == "delegation.cover"
	unsure := under(testdata.policy, replaced(below("none", true), "/context/confidence", 0))
	unsure.outcome == "deny"
}

test_child_may_nothing_beyond_what_was_set_aside if {
	answer := under(testdata.policy, approved(below("act", false)))
	answer.outcome == "deny"
	answer.rule == "delegation.budget"
}
