package vedette.delegation_test

import data.vedette.delegation

import data.vedette.testdata

granted(tools) := {"chief": {"mode": "act", "tools": tools}, "desk": {
	"mode": "act",
	"tools": {"shelve": {"verb": "move", "resource": "shelf", "impact": "low"}},
}}

shelving := {"verb": "move", "resource": "shelf", "impact": "low"}

able := granted({"put": shelving})

ancestor(agent) := {
	"agent": agent,
	"owner": "kim@example.org",
	"requested_mode": "act",
	"cover": "act",
}

asked(ancestors, room) := json.patch(testdata.question, [{
	"op": "add",
	"path": "/context/delegation",
	"value": {"ancestors": ancestors, "room": room},
}])

both := asked([ancestor("chief"), ancestor("desk")], true)

test_run_that_nobody_asked_for_is_no_matter_of_delegation if {
	delegation.ok with input as testdata.question with data.grants as {}
	delegation.unasked with input as testdata.question with data.grants as {}
}

test_covered_by_each_ancestor if {
	delegation.ok with input as both with data.grants as able
	delegation.unasked with input as both with data.grants as able
}

test_one_that_is_not_covered_is_denied_by_name if {
	every tools in [
		{},
		{"put": {"verb": "take", "resource": "shelf", "impact": "low"}},
		{"put": {"verb": "move", "resource": "post", "impact": "low"}},
		{"put": {"verb": "move", "resource": "shelf", "impact": "some"}},
		{"put": {"verb": "move", "resource": "shelf"}},
		{"put": object.union(shelving, {"triggers": ["letters"]})},
		{"put": object.union(shelving, {"onyl": {"/shelf": ["Invoices"]}})},
		{"put": "all"},
	] {
		not delegation.ok with input as both with data.grants as granted(tools)
		not delegation.unasked with input as both with data.grants as granted(tools)
		reasons := delegation.reasons with input as both with data.grants as granted(tools)
		reasons == {"delegation.cover:chief"}
	}
}

test_an_ancestor_that_needs_a_person_is_covered_and_asks if {
	every tools in [
		{"put": object.union(shelving, {"impact": "high"})},
		{"put": object.union(shelving, {"only": {"/shelf": ["Invoices"]}})},
	] {
		delegation.ok with input as both with data.grants as granted(tools)
		not delegation.unasked with input as both with data.grants as granted(tools)
	}
}

test_modes_of_an_ancestor if {
	every mode in ["observe", "", null, "ACT"] {
		other := json.patch(able, [{"op": "replace", "path": "/chief/mode", "value": mode}])
		not delegation.ok with input as both with data.grants as other
		requesting := asked([object.union(ancestor("chief"), {"requested_mode": mode})], true)
		not delegation.ok with input as requesting with data.grants as able
		found := asked([object.union(ancestor("chief"), {"cover": mode})], true)
		not delegation.ok with input as found with data.grants as able
	}
	asking := json.patch(able, [{"op": "replace", "path": "/chief/mode", "value": "ask"}])
	delegation.ok with input as both with data.grants as asking
	not delegation.unasked with input as both with data.grants as asking
	every field in ["requested_mode", "cover"] {
		careful := asked([object.union(ancestor("chief"), {field: "ask"})], true)
		delegation.ok with input as careful with data.grants as able
		not delegation.unasked with input as careful with data.grants as able
	}
}

test_an_ancestor_of_another_owner_covers_nothing if {
	right := json.patch(able, [{"op": "add", "path": "/chief/owner", "value": "kim@example.org"}])
	delegation.ok with input as both with data.grants as right
	delegation.unasked with input as both with data.grants as right
	every owner in ["lee@example.org", "", null, ["kim@example.org"]] {
		other := json.patch(able, [{"op": "add", "path": "/chief/owner", "value": owner}])
		not delegation.ok with input as both with data.grants as other
		reasons := delegation.reasons with input as both with data.grants as other
		reasons == {"delegation.cover:chief"}
	}
	nobody := asked([object.remove(ancestor("chief"), {"owner"})], true)
	not delegation.ok with input as nobody with data.grants as able
	not delegation.ok with input as nobody with data.grants as right
}

test_no_room_is_denied if {
	every room in [false, "true", 1, null] {
		found := asked([ancestor("chief")], room)
		not delegation.ok with input as found with data.grants as able
		reasons := delegation.reasons with input as found with data.grants as able
		reasons == {"delegation.budget"}
	}
}

test_delegation_without_ancestors_proves_nothing if {
	every odd in [[], {}, {"chief": ancestor("chief")}, "chief", null] {
		not delegation.ok with input as asked(odd, true) with data.grants as able
		not delegation.unasked with input as asked(odd, true) with data.grants as able
		reasons := delegation.reasons with input as asked(odd, true) with data.grants as able
		reasons == {"delegation.unknown"}
	}
}

test_question_without_an_action_is_denied if {
	not delegation.ok with input as {} with data.grants as able
	not delegation.unasked with input as {} with data.grants as able
}

test_no_reason_against_it_is_no_proof if {
	not delegation.ok with input as both with data.grants as granted({}) with data.vedette.delegation.reasons as set()
	not delegation.ok with input as asked([ancestor("chief")], false)
		with data.grants as able
		with data.vedette.delegation.reasons as set()
}

test_added_reason_counts if {
	not delegation.ok with input as testdata.question with data.vedette.delegation.reasons as {"x"}
	not delegation.ok with input as both with data.grants as able with data.vedette.delegation.reasons as {"x"}
}
