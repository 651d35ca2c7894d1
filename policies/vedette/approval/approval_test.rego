package vedette.approval_test

import data.vedette.approval

question(given) := {
	"now": 1000,
	"action": {"digest": "d1"},
	"context": {"approvals": [given]},
}

good := {"action_digest": "d1", "by": "person:ada", "until": 1001}

test_good_approval_is_proven if approval.ok with input as question(good)

test_approval_of_another_action_is_not if {
	other := object.union(good, {"action_digest": "d2"})
	not approval.ok with input as question(other)
}

test_approval_that_ran_out_is_not if {
	late := object.union(good, {"until": 1000})
	not approval.ok with input as question(late)
}

test_approval_by_nobody_is_not if {
	nobody := object.union(good, {"by": ""})
	not approval.ok with input as question(nobody)
}

test_until_as_text_is_not if {
	text := object.union(good, {"until": "9999"})
	not approval.ok with input as question(text)
}

test_empty_digest_approves_nothing if {
	empty := object.union(good, {"action_digest": ""})
	asked := object.union(question(empty), {"action": {"digest": ""}})
	not approval.ok with input as asked
}

test_every_part_has_its_type if {
	every odd in [{"by": 7}, {"by": null}, {"until": null}, {"until": "2000"}] {
		not approval.ok with input as question(object.union(good, odd))
	}
	numbered := object.union(question(object.union(good, {"action_digest": 7})), {"action": {"digest": 7}})
	not approval.ok with input as numbered
	timeless := object.union(question(good), {"now": null})
	not approval.ok with input as timeless
	keyed := object.union(question(good), {"context": {"approvals": {"0": good}}})
	not approval.ok with input as json.patch(keyed, [{
		"op": "replace", "path": "/context/approvals",
		"value": {"0": good},
	}])
}
