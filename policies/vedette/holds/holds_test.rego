package vedette.holds_test

import data.vedette.holds

question := {
	"now": 1000,
	"subject": {"agent": "watch", "requested_mode": "act"},
	"action": {
		"tool": "bell.ring",
		"digest": "d1",
		"high_impact": false,
		"args": {},
		"origins": {},
		"links": [],
		"sinks": [],
	},
	"context": {"stopped": false, "confidence": 900, "approvals": []},
}

given := {"watch": {"mode": "act", "tools": {"bell.ring": {"impact": "low"}}}}

sure := {"confidence_milli": {"default": 800, "agents": {}}, "complete": true}

approval := [{"op": "replace", "path": "/context/approvals", "value": [{
	"action_digest": "d1",
	"by": "person:ada",
	"until": 2000,
}]}]

none := {"tools": {}, "complete": true}

changed(path, value) := json.patch(question, [{"op": "replace", "path": path, "value": value}])

test_clear_case_is_proven if {
	holds.ok with input as question with data.grants as given with data.limits as sure with data.sinks as none
}

test_unsure_asks if {
	asked := changed("/context/confidence", 799)
	holds.asks == {"confidence.low"} with input as asked with data.grants as given with data.limits as sure
		with data.sinks as none
	not holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
}

test_threshold_itself_is_sure if {
	asked := changed("/context/confidence", 800)
	holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
}

test_confidence_as_text_asks if {
	asked := changed("/context/confidence", "1000")
	not holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
}

test_threshold_of_agent_and_tool if {
	own := {
		"confidence_milli": {"default": 800, "agents": {"watch": {"default": 850, "tools": {"bell.ring": 950}}}},
		"complete": true,
	}
	holds.least == 950 with input as question with data.limits as own with data.grants as given
	holds.least == 850 with input as changed("/action/tool", "bell.oil") with data.limits as own
		with data.grants as given
}

test_high_impact_asks if {
	asked := changed("/action/high_impact", true)
	holds.asks == {"impact.high"} with input as asked with data.grants as given with data.limits as sure
		with data.sinks as none
}

test_mode_ask_asks if {
	asked := changed("/subject/requested_mode", "ask")
	holds.asks == {"mode.ask"} with input as asked with data.grants as given with data.limits as sure
		with data.sinks as none
}

test_approval_answers if {
	asked := json.patch(changed("/action/high_impact", true), approval)
	holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
}

test_approval_does_not_answer_a_stop if {
	asked := json.patch(changed("/context/stopped", true), approval)
	holds.stops == {"stopped"} with input as asked
	not holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
}

test_stopped_must_be_false_to_go_on if {
	asked := changed("/context/stopped", 0)
	not holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
}

test_cut_limits_ask if {
	cut := object.remove(sure, ["complete"])
	not holds.ok with input as question with data.grants as given with data.limits as cut with data.sinks as none
}

test_threshold_that_is_no_number_asks if {
	every least in [null, false, "800"] {
		odd := {"confidence_milli": {"default": least, "agents": {}}, "complete": true}
		not holds.ok with input as question with data.grants as given with data.limits as odd with data.sinks as none
	}
}

test_surer_than_sure_asks if {
	asked := changed("/context/confidence", 1001)
	not holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
}

named := {"watch": {"mode": "act", "tools": {"bell.ring": {"impact": "low", "only": {"/tone": ["low"]}}}}}

test_value_that_the_grant_names_is_proven if {
	asked := changed("/action/args", {"tone": "low"})
	holds.asks == set() with input as asked with data.grants as named with data.limits as sure
		with data.sinks as none
	holds.ok with input as asked with data.grants as named with data.limits as sure with data.sinks as none
}

test_other_value_asks if {
	asked := changed("/action/args", {"tone": "high"})
	holds.asks == {"grant.only", "grant.only:/tone"} with input as asked with data.grants as named
		with data.limits as sure
		with data.sinks as none
	not holds.ok with input as asked with data.grants as named with data.limits as sure with data.sinks as none
	approved := json.patch(asked, approval)
	holds.ok with input as approved with data.grants as named with data.limits as sure with data.sinks as none
}

test_list_that_is_none_asks if {
	odd := {"watch": {"mode": "act", "tools": {"bell.ring": {"impact": "low", "only": true}}}}
	holds.asks == {"grant.only"} with input as question with data.grants as odd with data.limits as sure
		with data.sinks as none
}

# Without what asks and stops: each part must stand by itself.
test_every_part_is_needed if {
	every part in [
		["/context/stopped", true],
		["/context/confidence", 0],
		["/action/high_impact", true],
		["/subject/requested_mode", "ask"],
		["/action/sinks", ["/to"]],
	] {
		asked := changed(part[0], part[1])
		not holds.ok with input as json.patch(asked, [{"op": "add", "path": "/action/args/to", "value": "x"}])
			with data.grants as given
			with data.limits as sure
			with data.sinks as none
			with data.vedette.holds.asks as set()
			with data.vedette.holds.stops as set()
	}
	beyond := changed("/action/args", {"tone": "high"})
	not holds.ok with input as beyond with data.grants as named with data.limits as sure with data.sinks as none
		with data.vedette.holds.asks as set()
	stopped := json.patch(changed("/context/stopped", true), approval)
	not holds.ok with input as stopped with data.grants as given with data.limits as sure with data.sinks as none
		with data.vedette.holds.stops as set()
}

test_whatever_asks_or_stops_counts if {
	holds.ok with input as question with data.grants as given with data.limits as sure with data.sinks as none
	not holds.ok with data.vedette.holds.asks as {"a.rule.of.mine"}
		with input as question
		with data.grants as given
		with data.limits as sure
		with data.sinks as none
	not holds.ok with data.vedette.holds.stops as {"a.rule.of.mine"}
		with input as question
		with data.grants as given
		with data.limits as sure
		with data.sinks as none
}

test_an_approval_answers_what_asks_and_not_what_stops if {
	approved := json.patch(question, approval)
	holds.ok with data.vedette.holds.asks as {"a.rule.of.mine"}
		with input as approved
		with data.grants as given
		with data.limits as sure
		with data.sinks as none
	not holds.ok with data.vedette.holds.stops as {"a.rule.of.mine"}
		with input as approved
		with data.grants as given
		with data.limits as sure
		with data.sinks as none
}

test_what_an_agent_above_needs_a_person_for_asks if {
	asked := json.patch(question, [{
		"op": "add",
		"path": "/context/delegation",
		"value": {"ancestors": [{"agent": "watch", "cover": "ask", "owner": "kim@example.org", "requested_mode": "act"}], "room": true},
	}])
	holds.asks == {"delegation.ask"} with input as asked with data.grants as given with data.limits as sure
		with data.sinks as none
	not holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
	not holds.ok with input as asked with data.grants as given with data.limits as sure with data.sinks as none
		with data.vedette.holds.asks as set()
}
