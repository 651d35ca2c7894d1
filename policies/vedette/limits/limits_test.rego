package vedette.limits_test

import data.vedette.limits

# Ten seconds into a minute that begins an hour.
question := {
	"now": 1795257610000000,
	"subject": {"agent": "watch"},
	"action": {"tool": "bell.ring"},
	"context": {
		"event": {"hops": 0},
		"counters": {"minute": 0, "hour": 0, "day": 0, "run": 0},
		"budget": {"hour": 0, "day": 0, "run": 0},
	},
}

most := {
	"hops": 8,
	"actions": {"default": {"minute": 2, "hour": 4, "day": 8}, "agents": {}},
	"confidence_milli": {"default": 800, "agents": {}},
	"complete": true,
}

known := {"watch": {}}

changed(path, value) := json.patch(question, [{"op": "replace", "path": path, "value": value}])

# What must not be proven is asked with no reason speaking: each part must stand by itself.

test_below_all_is_proven if {
	limits.ok with input as question with data.limits as most with data.grants as known
}

test_hops_up_to_the_limit if {
	limits.ok with input as changed("/context/event/hops", 8) with data.limits as most with data.grants as known
	asked := changed("/context/event/hops", 9)
	limits.reasons == {"limits.hops"} with input as asked with data.limits as most with data.grants as known
	not limits.holdable with input as asked with data.limits as most with data.grants as known
		with data.vedette.limits.reasons as set()
}

# Engines do not agree on fractions and on numbers that no 64-bit integer holds.
test_an_instant_that_is_no_safe_integer_proves_nothing if {
	every now in ["1", -1, 9007199254740992, null, true] {
		asked := changed("/now", now)
		not limits.ok with input as asked with data.limits as most with data.grants as known
			with data.vedette.limits.reasons as set()
			with data.vedette.limits.waits as set()
		"limits.unknown" in limits.reasons with input as asked with data.limits as most with data.grants as known
	}
}

test_hops_as_text_or_negative_prove_nothing if {
	every hops in ["0", -1, null, true] {
		not limits.ok with input as changed("/context/event/hops", hops) with data.limits as most
			with data.grants as known
			with data.vedette.limits.reasons as set()
			with data.vedette.limits.waits as set()
	}
}

test_full_minute_waits_for_the_next if {
	asked := changed("/context/counters/minute", 2)
	not limits.ok with input as asked with data.limits as most with data.grants as known
		with data.vedette.limits.reasons as set()
		with data.vedette.limits.waits as set()
	limits.holdable with input as asked with data.limits as most with data.grants as known
	limits.waits == {"limits.minute"} with input as asked with data.limits as most with data.grants as known
	limits.until == 1795257660000000 with input as asked with data.limits as most with data.grants as known
}

test_last_of_a_minute_is_free if {
	limits.ok with input as changed("/context/counters/minute", 1) with data.limits as most with data.grants as known
}

test_longest_full_window_decides if {
	asked := changed("/context/counters", {"minute": 2, "hour": 4, "day": 4, "run": 0})
	limits.waits == {"limits.hour", "limits.minute"} with input as asked with data.limits as most with data.grants as known
	limits.until == 1795258800000000 with input as asked with data.limits as most with data.grants as known
}

test_own_budget_is_for_the_store_to_keep if {
	asked := json.patch(question, [
		{"op": "replace", "path": "/context/counters/day", "value": 3},
		{"op": "replace", "path": "/context/budget/day", "value": 3},
	])
	limits.ok with input as asked with data.limits as most with data.grants as known
}

test_own_budget_cannot_widen if {
	asked := json.patch(question, [
		{"op": "replace", "path": "/context/counters/day", "value": 8},
		{"op": "replace", "path": "/context/budget/day", "value": 1000},
	])
	not limits.ok with input as asked with data.limits as most with data.grants as known
		with data.vedette.limits.reasons as set()
		with data.vedette.limits.waits as set()
}

test_run_budget_denies if {
	asked := json.patch(question, [
		{"op": "replace", "path": "/context/counters/run", "value": 3},
		{"op": "replace", "path": "/context/budget/run", "value": 3},
	])
	limits.reasons == {"limits.run"} with input as asked with data.limits as most with data.grants as known
	not limits.holdable with input as asked with data.limits as most with data.grants as known
		with data.vedette.limits.reasons as set()
}

test_agents_own_limit_is_used if {
	own := object.union(most, {"actions": {"agents": {"watch": {"minute": 1, "hour": 1, "day": 1}}}})
	asked := changed("/context/counters/minute", 1)
	not limits.ok with input as asked with data.limits as own with data.grants as known
		with data.vedette.limits.reasons as set()
		with data.vedette.limits.waits as set()
	limits.ok with input as asked with data.limits as most with data.grants as known
}

test_counters_of_other_types_prove_nothing if {
	every value in ["0", -1, null] {
		asked := changed("/context/counters/hour", value)
		not limits.ok with input as asked with data.limits as most with data.grants as known
			with data.vedette.limits.reasons as set()
			with data.vedette.limits.waits as set()
		not limits.holdable with input as asked with data.limits as most with data.grants as known
			with data.vedette.limits.reasons as set()
	}
}

test_cut_budgets_prove_nothing if {
	cut := json.remove(data.budgets, ["complete"])
	not limits.ok with input as question with data.limits as most with data.grants as known with data.budgets as cut
		with data.vedette.limits.reasons as set()
		with data.vedette.limits.waits as set()
	not limits.holdable with input as question with data.limits as most with data.grants as known
		with data.budgets as cut
		with data.vedette.limits.reasons as set()
	not limits.ok with input as question with data.limits as most with data.grants as known with data.budgets as {}
		with data.vedette.limits.reasons as set()
		with data.vedette.limits.waits as set()
}

test_every_full_window_counts if {
	every window in [["minute", 2], ["hour", 4], ["day", 8]] {
		asked := changed(concat("/", ["/context/counters", window[0]]), window[1])
		not limits.ok with input as asked with data.limits as most with data.grants as known
			with data.vedette.limits.waits as set()
	}
}

test_any_reason_undoes_both_proofs if {
	not limits.ok with input as question with data.limits as most with data.grants as known
		with data.vedette.limits.reasons as {"a.rule.of.mine"}
	not limits.holdable with input as question with data.limits as most with data.grants as known
		with data.vedette.limits.reasons as {"a.rule.of.mine"}
	not limits.ok with input as question with data.limits as most with data.grants as known
		with data.vedette.limits.waits as {"a.rule.of.mine"}
}

test_cut_limits_prove_nothing if {
	cut := json.remove(most, ["complete"])
	not limits.ok with input as question with data.limits as cut with data.grants as known
		with data.vedette.limits.reasons as set()
		with data.vedette.limits.waits as set()
}

test_every_number_is_a_number if {
	every path in [
		"/context/counters/minute", "/context/counters/hour", "/context/counters/day",
		"/context/budget/hour", "/context/budget/day", "/context/event/hops", "/now",
	] {
		every value in ["0", null, [], {}] {
			asked := changed(path, value)
			not limits.ok with input as asked with data.limits as most with data.grants as known
				with data.vedette.limits.reasons as set()
				with data.vedette.limits.waits as set()
			not limits.holdable with input as asked with data.limits as most with data.grants as known
				with data.vedette.limits.reasons as set()
		}
	}
	every value in ["9", null, []] {
		asked := changed("/context/budget/run", value)
		not limits.holdable with input as asked with data.limits as most with data.grants as known
			with data.vedette.limits.reasons as set()
	}
}

test_nothing_is_below_zero if {
	every path in [
		"/context/counters/minute", "/context/counters/hour", "/context/counters/day",
		"/context/budget/hour", "/context/budget/day", "/context/event/hops",
	] {
		not limits.holdable with input as changed(path, -1) with data.limits as most with data.grants as known
			with data.vedette.limits.reasons as set()
	}
	asked := changed("/context/counters/run", -1)
	own := json.patch(asked, [{"op": "replace", "path": "/context/budget/run", "value": 3}])
	not limits.holdable with input as own with data.limits as most with data.grants as known
		with data.vedette.limits.reasons as set()
}

test_limits_that_are_no_numbers_prove_nothing if {
	every path in ["/hops", "/actions/default/minute", "/actions/default/hour", "/actions/default/day"] {
		odd := json.patch(most, [{"op": "replace", "path": path, "value": "9"}])
		not limits.ok with input as question with data.limits as odd with data.grants as known
			with data.vedette.limits.reasons as set()
			with data.vedette.limits.waits as set()
		not limits.holdable with input as question with data.limits as odd with data.grants as known
			with data.vedette.limits.reasons as set()
	}
}

test_what_cannot_be_held_waits_for_nothing if {
	far := json.patch(changed("/context/counters/minute", 2), [{"op": "replace", "path": "/context/event/hops", "value": 9}])
	found := limits.waits with input as far with data.limits as most with data.grants as known
	found == set()
	not limits.until with input as far with data.limits as most with data.grants as known
}
