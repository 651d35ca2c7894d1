package vedette.origins_test

import data.vedette.origins

question(given) := {
	"now": 1000,
	"action": {
		"tool": "letter.send",
		"digest": "d1",
		"args": {"to": "x", "text": "y"},
		"origins": {"/to": given, "/text": "untrusted"},
		"sinks": ["/to"],
		"links": [],
	},
	"context": {"approvals": []},
}

plain := {"tools": {}, "complete": true}

widened := {"tools": {"letter.send": {"/to": {"accepts": ["trusted", "registered"], "otherwise": "deny"}}}, "complete": true}

asking := {"tools": {"letter.send": {"/to": {"accepts": ["trusted"], "otherwise": "hold"}}}, "complete": true}

# What must not be proven is asked with no reason speaking: each part must stand by itself.

test_trusted_sink_is_proven if origins.ok with input as question("trusted") with data.sinks as plain

test_other_origins_are_not if {
	every given in ["registered", "derived", "untrusted"] {
		reason := concat("", ["origins.", given, ":/to"])
		origins.reasons == {reason} with input as question(given) with data.sinks as plain
		not origins.ok with input as question(given) with data.sinks as plain
			with data.vedette.origins.reasons as set()
			with data.vedette.origins.holds as set()
		not origins.holdable with input as question(given) with data.sinks as plain
			with data.vedette.origins.reasons as set()
	}
}

test_policy_may_take_registered if {
	origins.ok with input as question("registered") with data.sinks as widened
	not origins.ok with input as question("derived") with data.sinks as widened
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	not origins.ok with input as question("untrusted") with data.sinks as widened
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_policy_may_ask_a_person if {
	not origins.ok with input as question("untrusted") with data.sinks as asking
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	origins.holdable with input as question("untrusted") with data.sinks as asking
	origins.holds == {"origins.untrusted:/to"} with input as question("untrusted") with data.sinks as asking
	origins.reasons == set() with input as question("untrusted") with data.sinks as asking
}

test_approval_answers_what_was_asked if {
	approved := object.union(question("untrusted"), {"context": {"approvals": [{
		"action_digest": "d1",
		"by": "person:ada",
		"until": 1001,
	}]}})
	origins.ok with input as approved with data.sinks as asking
	not origins.ok with input as approved with data.sinks as plain
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_origin_that_is_none_is_not_asked_about if {
	odd := question("of old")
	not origins.holdable with input as odd with data.sinks as asking
		with data.vedette.origins.reasons as set()
}

test_sink_without_origin_is_not_proven if {
	bare := json.patch(question("trusted"), [{"op": "replace", "path": "/action/origins", "value": {}}])
	origins.reasons == {"origins.unknown:/to"} with input as bare with data.sinks as plain
	not origins.ok with input as bare with data.sinks as plain
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_absent_optional_argument_decides_nothing if {
	absent := json.patch(question("trusted"), [
		{"op": "replace", "path": "/action/origins", "value": {}},
		{"op": "replace", "path": "/action/args", "value": {"text": "y"}},
	])
	origins.ok with input as absent with data.sinks as plain
}

test_sink_inside_an_argument_has_its_origin if {
	inside := json.patch(question("trusted"), [{"op": "add", "path": "/action/sinks/-", "value": "/to/street"}])
	origins.ok with input as inside with data.sinks as plain
	tainted := json.patch(question("untrusted"), [{"op": "add", "path": "/action/sinks/-", "value": "/to/street"}])
	origins.reasons == {"origins.untrusted:/to", "origins.untrusted:/to/street"} with input as tainted
		with data.sinks as plain
}

# An order of one tool: what it goes to, whom it is copied to, and the members that may be missing.
ordering(args, origins) := json.patch(question("trusted"), [
	{"op": "replace", "path": "/action/args", "value": args},
	{"op": "replace", "path": "/action/origins", "value": origins},
	{"op": "replace", "path": "/action/sinks", "value": ["/order/to", "/order/by/ship", "/copies/*", "/lines/*/to"]},
])

test_absent_place_within_an_argument_decides_nothing if {
	labels := {"/order": "derived", "/copies": "derived", "/lines": "derived"}
	absent := ordering({"order": {"note": "x"}, "copies": [], "lines": []}, labels)
	origins.ok with input as absent with data.sinks as plain
}

test_place_within_an_argument_that_is_there_counts if {
	every there in [
		["/action/args/order", {"to": "x"}, "/order/to"],
		["/action/args/order", {"by": {}}, "/order/by/ship"],
		["/action/args/copies", ["x"], "/copies/*"],
		["/action/args/copies", {}, "/copies/*"],
		["/action/args/lines", [{"note": "x"}, {"to": "x"}], "/lines/*/to"],
		# What no element of a list has is not seen to be absent.
		["/action/args/lines", [{"note": "x"}], "/lines/*/to"],
	] {
		labels := {"/order": "derived", "/copies": "derived", "/lines": "derived"}
		absent := ordering({"order": {"note": "x"}, "copies": [], "lines": []}, labels)
		asked := json.patch(absent, [{"op": "replace", "path": there[0], "value": there[1]}])
		reason := concat("", ["origins.derived:", there[2]])
		origins.reasons == {reason} with input as asked with data.sinks as plain
		not origins.ok with input as asked with data.sinks as plain
			with data.vedette.origins.reasons as set()
			with data.vedette.origins.holds as set()
	}
}

test_label_of_a_place_that_is_absent_counts if {
	labels := {"/order": "derived", "/order/to": "derived"}
	asked := ordering({"order": {"note": "x"}}, labels)
	not origins.ok with input as asked with data.sinks as plain
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_absent_place_that_policy_alone_names_is_judged_with_its_argument if {
	listed := {"tools": {"letter.send": {"/order/to": {"accepts": ["trusted"], "otherwise": "deny"}}}, "complete": true}
	asked := json.patch(
		ordering({"order": {"note": "x"}}, {"/order": "derived"}),
		[{"op": "replace", "path": "/action/sinks", "value": []}],
	)
	origins.reasons == {"origins.derived:/order/to"} with input as asked with data.sinks as listed
}

# The engine gives no member a label that is named as a sink for each is spelled.
test_places_that_policy_alone_names_are_judged_with_their_argument if {
	rule := {"accepts": ["trusted"], "otherwise": "deny"}
	listed := {"tools": {"letter.send": {"/who/*": rule, "/lines/*/to": rule}}, "complete": true}
	given := {"who": {"*": "x", "to": "y"}, "lines": [{"to": "x"}]}
	asked := json.patch(
		ordering(given, {"/who": "derived", "/who/to": "derived", "/lines": "untrusted", "/lines/0/to": "untrusted"}),
		[{"op": "replace", "path": "/action/sinks", "value": []}],
	)
	origins.reasons == {"origins.derived:/who/*", "origins.untrusted:/lines/*/to"} with input as asked
		with data.sinks as listed
}

test_each_argument_at_once_is_no_sink if {
	listed := {"tools": {"letter.send": {"/*": {"accepts": ["trusted"], "otherwise": "deny"}}}, "complete": true}
	origins.reasons == {"origins.unknown:/*"} with input as question("trusted") with data.sinks as listed
	not origins.ok with input as question("trusted") with data.sinks as listed
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_sink_that_is_no_pointer_is_not_proven if {
	odd := json.patch(question("trusted"), [{"op": "add", "path": "/action/sinks/-", "value": "to"}])
	not origins.ok with input as odd with data.sinks as plain
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	worse := json.patch(question("trusted"), [{"op": "add", "path": "/action/sinks/-", "value": 7}])
	not origins.ok with input as worse with data.sinks as plain
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_policy_names_a_sink_the_tool_left_out if {
	undeclared := json.patch(question("untrusted"), [{"op": "replace", "path": "/action/sinks", "value": []}])
	not origins.ok with input as undeclared with data.sinks as widened
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	origins.ok with input as undeclared with data.sinks as plain
}

test_cut_data_proves_nothing if {
	cut := json.remove(widened, ["complete"])
	not origins.ok with input as question("trusted") with data.sinks as cut
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_shape_is_required if {
	not origins.ok with input as {"action": {"sinks": []}} with data.sinks as plain
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	not origins.ok with input as {} with data.sinks as plain
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_every_part_has_its_type if {
	every part in [
		["/action/sinks", {"first": "/to"}],
		["/action/origins", ["trusted"]],
		["/action/args", ["x"]],
	] {
		odd := json.patch(question("trusted"), [{"op": "replace", "path": part[0], "value": part[1]}])
		not origins.ok with input as odd with data.sinks as plain
			with data.vedette.origins.reasons as set()
			with data.vedette.origins.holds as set()
		not origins.holdable with input as odd with data.sinks as plain
			with data.vedette.origins.reasons as set()
	}
}

test_sink_that_does_not_begin_with_a_slash_is_not_proven if {
	odd := json.patch(question("trusted"), [{"op": "add", "path": "/action/sinks/-", "value": "x/to"}])
	not origins.ok with input as odd with data.sinks as plain
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	not origins.holdable with input as odd with data.sinks as plain
		with data.vedette.origins.reasons as set()
}

test_approval_does_not_complete_cut_data if {
	approved := object.union(question("untrusted"), {"context": {"approvals": [{
		"action_digest": "d1",
		"by": "person:ada",
		"until": 1001,
	}]}})
	cut := json.remove(asking, ["complete"])
	not origins.ok with input as approved with data.sinks as cut
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	not origins.holdable with input as approved with data.sinks as cut
		with data.vedette.origins.reasons as set()
}

test_only_what_a_person_may_decide_is_a_hold if {
	found := origins.holds with input as question("untrusted") with data.sinks as plain
	found == set()
}

test_any_reason_undoes_both_proofs if {
	not origins.ok with input as question("trusted") with data.sinks as plain
		with data.vedette.origins.reasons as {"a.rule.of.mine"}
	not origins.holdable with input as question("trusted") with data.sinks as plain
		with data.vedette.origins.reasons as {"a.rule.of.mine"}
	not origins.proven with input as question("trusted") with data.sinks as plain
		with data.vedette.origins.holds as {"a.rule.of.mine"}
}
