package vedette.grant_test

import data.vedette.grant

question := {
	"subject": {"agent": "watch", "requested_mode": "act"},
	"action": {
		"tool": "bell.ring",
		"verb": "ring",
		"digest": "d1",
		"declared": "d2",
		"high_impact": false,
		"args": {},
		"origins": {},
		"sinks": [],
	},
	"resource": {"type": "bell", "id": "b1"},
}

given := {"watch": {
	"mode": "act",
	"tools": {"bell.ring": {"verb": "ring", "resource": "bell", "impact": "low"}},
	"memory": ["logs/night"],
}}

changed(path, value) := json.patch(question, [{"op": "replace", "path": path, "value": value}])

regranted(path, value) := json.patch(given, [{"op": "add", "path": path, "value": value}])

test_granted_tool_is_proven if grant.ok with input as question with data.grants as given

test_other_tool_is_not if {
	asked := changed("/action/tool", "bell.melt")
	grant.reasons == {"grant.tool"} with input as asked with data.grants as given
	not grant.ok with input as asked with data.grants as given
}

test_other_verb_is_not if {
	asked := changed("/action/verb", "melt")
	grant.reasons == {"grant.verb"} with input as asked with data.grants as given
	not grant.ok with input as asked with data.grants as given
}

test_other_resource_is_not if {
	asked := changed("/resource/type", "tower")
	grant.reasons == {"grant.resource"} with input as asked with data.grants as given
	not grant.ok with input as asked with data.grants as given
}

test_action_without_digest_is_not if {
	asked := changed("/action/digest", "")
	grant.reasons == {"grant.unbound"} with input as asked with data.grants as given
}

test_grant_without_impact_is_not if {
	bare := {"watch": {"mode": "act", "tools": {"bell.ring": {"verb": "ring", "resource": "bell"}}}}
	grant.reasons == {"grant.impact"} with input as question with data.grants as bare
	not grant.ok with input as question with data.grants as bare
}

test_impact_declared_high_is_high if {
	asked := changed("/action/high_impact", true)
	grant.impact == "high" with input as asked with data.grants as given
}

test_impact_granted_high_is_high if {
	high := regranted("/watch/tools/bell.ring/impact", "high")
	grant.impact == "high" with input as question with data.grants as high
}

test_silent_mode_observes if {
	silent := json.remove(given, ["watch/mode"])
	grant.mode == "observe" with input as question with data.grants as silent
	not grant.ok with input as question with data.grants as silent
	grant.would_ok with input as question with data.grants as silent
}

test_unknown_mode_observes if {
	odd := regranted("/watch/mode", "ACT")
	grant.mode == "observe" with input as question with data.grants as odd
}

test_more_careful_mode_is_in_force if {
	grant.mode == "ask" with input as changed("/subject/requested_mode", "ask") with data.grants as given
	grant.mode == "observe" with input as changed("/subject/requested_mode", "observe") with data.grants as given
	grant.mode == "ask" with input as question with data.grants as regranted("/watch/mode", "ask")
	grant.mode == "observe" with input as question with data.grants as regranted("/watch/mode", "observe")
}

reading(bank, scope) := object.union(question, {
	"action": {"tool": "memory.read", "verb": "read", "args": {"bank": bank, "scope": scope}},
	"resource": {"type": "memory", "id": concat("/", [bank, scope])},
})

test_listed_scope_may_be_read if {
	grant.ok with input as reading("logs", "night") with data.grants as given
}

test_reading_in_observe if {
	silent := json.remove(given, ["watch/mode"])
	grant.ok with input as reading("logs", "night") with data.grants as silent
}

test_other_scope_may_not_be_read if {
	grant.reasons == {"grant.memory"} with input as reading("logs", "day") with data.grants as given
	not grant.ok with input as reading("logs", "day") with data.grants as given with data.vedette.grant.reasons as set()
}

test_scope_in_arguments_must_be_the_resource if {
	asked := json.patch(reading("logs", "night"), [{"op": "replace", "path": "/action/args/scope", "value": "day"}])
	not grant.reading with input as asked with data.grants as given
	not grant.ok with input as asked with data.grants as given
}

test_declared_tool_of_that_name_is_no_reading if {
	asked := json.patch(reading("logs", "night"), [{"op": "replace", "path": "/action/origins", "value": {"/bank": "trusted"}}])
	not grant.ok with input as asked with data.grants as given
}

# Without the reasons: each part must stand by itself.
test_every_part_of_a_grant_is_needed if {
	every part in [
		["/action/tool", "bell.melt"],
		["/action/verb", "melt"],
		["/resource/type", "tower"],
		["/resource/id", 7],
		["/action/digest", ""],
		["/action/digest", 7],
		["/action/declared", ""],
		["/action/declared", 7],
		["/subject/agent", "other"],
	] {
		asked := changed(part[0], part[1])
		not grant.ok with input as asked with data.grants as given with data.vedette.grant.reasons as set()
		not grant.tool_granted with input as asked with data.grants as given with data.vedette.grant.reasons as set()
	}
	not grant.ok with input as question with data.grants as regranted("/watch/tools/bell.ring/impact", "none")
		with data.vedette.grant.reasons as set()
	not grant.ok with input as question with data.grants as regranted("/watch/tools/bell.ring", true)
		with data.vedette.grant.reasons as set()
}

test_reading_looks_like_nothing_else if {
	every part in [
		["/action/tool", "bell.ring"],
		["/action/verb", "ring"],
		["/resource/type", "bell"],
		["/resource/id", "logs/day"],
		["/action/sinks", ["/scope"]],
		["/action/origins", {"/scope": "untrusted"}],
		["/action/high_impact", true],
		["/action/args", {"bank": "logs", "scope": "night", "to": "x"}],
	] {
		asked := json.patch(reading("logs", "night"), [{"op": "replace", "path": part[0], "value": part[1]}])
		not grant.reading with input as asked with data.grants as given
		not grant.may_read with input as asked with data.grants as given
	}
}

test_reasons_speak_of_what_is_lacking_only if {
	grant.reasons == set() with input as question with data.grants as given
	grant.reasons == set() with input as reading("logs", "night") with data.grants as given
	grant.reasons == {"grant.tool"} with input as changed("/subject/agent", "other") with data.grants as given
}

filing(folder) := object.union(question, {"action": {
	"args": {"folder": folder},
	"origins": {"/folder": "trusted"},
}})

only(value) := {"watch": {"mode": "act", "tools": {"bell.ring": {
	"verb": "ring",
	"resource": "bell",
	"impact": "low",
	"only": value,
}}}}

test_without_a_list_every_value_is_within if {
	grant.unlimited with input as filing("Spam") with data.grants as given
	grant.beyond == set() with input as filing("Spam") with data.grants as given
}

test_listed_value_is_within if {
	every folder in ["Invoices", "Legal"] {
		grant.unlimited with input as filing(folder) with data.grants as only({"/folder": ["Invoices", "Legal"]})
	}
}

test_other_value_is_beyond if {
	named := only({"/folder": ["Invoices"]})
	not grant.unlimited with input as filing("Legal") with data.grants as named
	grant.beyond == {"/folder"} with input as filing("Legal") with data.grants as named
	grant.tool_granted with input as filing("Legal") with data.grants as named
}

test_missing_argument_is_beyond if {
	named := only({"/folder": ["Invoices"], "/other": ["x"]})
	not grant.unlimited with input as filing("Invoices") with data.grants as named
	grant.beyond == {"/other"} with input as filing("Invoices") with data.grants as named
}

test_every_named_argument_must_be_within if {
	named := only({"/folder": ["Invoices"], "/series": ["a"]})
	asked := json.patch(filing("Invoices"), [{"op": "add", "path": "/action/args/series", "value": "b"}])
	not grant.unlimited with input as asked with data.grants as named
}

test_a_key_that_nobody_reads_may_be_a_limit_misspelt if {
	every key in ["onyl", "Only", "only ", "", "verbs"] {
		odd := regranted(concat("", ["/watch/tools/bell.ring/", key]), {"/folder": ["Invoices"]})
		not grant.unlimited with input as filing("Invoices") with data.grants as odd
		grant.tool_granted with input as filing("Invoices") with data.grants as odd
	}
	both := json.patch(only({"/folder": ["Invoices"]}), [{
		"op": "add",
		"path": "/watch/tools/bell.ring/onyl",
		"value": {"/series": ["a"]},
	}])
	not grant.unlimited with input as filing("Invoices") with data.grants as both
}

test_what_is_no_list_of_values_allows_none if {
	every value in [
		true, "Invoices", ["/folder"], {"/folder": "Invoices"}, {"/folder": []}, {"folder": ["Invoices"]},
		{"/folder/0": ["Invoices"]}, {"/": ["Invoices"]}, {"": ["Invoices"]}, null,
	] {
		not grant.unlimited with input as filing("Invoices") with data.grants as only(value)
	}
}

tied := regranted("/watch/tools/bell.ring/triggers", ["dawn", "dusk"])

woken(trigger) := object.union(question, {"context": {"trigger": trigger}})

test_grant_for_some_triggers_is_no_others if {
	grant.ok with input as woken("dusk") with data.grants as tied
	every trigger in ["noon", "", "DUSK", null, ["dusk"]] {
		asked := woken(trigger)
		grant.reasons == {"grant.trigger"} with input as asked with data.grants as tied
		not grant.ok with input as asked with data.grants as tied with data.vedette.grant.reasons as set()
		not grant.would_ok with input as asked with data.grants as tied with data.vedette.grant.reasons as set()
	}
}

test_grant_without_triggers_is_for_all if {
	grant.ok with input as woken("noon") with data.grants as given
}

test_triggers_that_are_no_list_are_none if {
	every odd in ["dusk", {"dusk": true}, null, true, []] {
		other := regranted("/watch/tools/bell.ring/triggers", odd)
		not grant.ok with input as woken("dusk") with data.grants as other with data.vedette.grant.reasons as set()
	}
}

test_run_without_a_trigger_has_no_tied_grant if {
	grant.reasons == {"grant.trigger"} with input as question with data.grants as tied
}

routines := regranted("/watch/tools/bell.ring/triggers", {
	"dawn": {"/bell": ["big"], "/times": [1, 2]},
	"dusk": {"/bell": ["ref:/event/subject"]},
	"noon": {},
	"night": "all",
})

ringing(trigger, args, sources) := object.union(question, {
	"action": {"args": args, "sources": sources},
	"context": {"trigger": trigger},
})

test_each_trigger_has_values_of_its_own if {
	grant.unlimited with input as ringing("dawn", {"bell": "big", "times": 2}, {}) with data.grants as routines
	grant.unlimited with input as ringing("noon", {"bell": "any", "times": 9}, {}) with data.grants as routines
	asked := ringing("dawn", {"bell": "small", "times": 2}, {})
	grant.ok with input as asked with data.grants as routines
	not grant.unlimited with input as asked with data.grants as routines
	grant.beyond == {"/bell"} with input as asked with data.grants as routines
	grant.beyond == {"/bell", "/times"} with input as ringing("dawn", {}, {}) with data.grants as routines
}

test_reference_stands_for_what_it_draws if {
	right := ringing("dusk", {"bell": "b7"}, {"/bell": "/event/subject"})
	grant.unlimited with input as right with data.grants as routines
	every wrong in [
		ringing("dusk", {"bell": "b7"}, {}),
		ringing("dusk", {"bell": "b7"}, {"/bell": "/charter/bell"}),
		ringing("dusk", {"bell": "b7"}, {"/other": "/event/subject"}),
		ringing("dusk", {"bell": "ref:/event/subject"}, {}),
		ringing("dusk", {"bell": "ref:/event/subject"}, {"/bell": "/event/data/text"}),
	] {
		not grant.unlimited with input as wrong with data.grants as routines
		grant.beyond == {"/bell"} with input as wrong with data.grants as routines
	}
}

test_trigger_without_an_object_or_not_named_has_no_grant if {
	every trigger in ["night", "never", ""] {
		asked := ringing(trigger, {"bell": "big", "times": 1}, {})
		grant.reasons == {"grant.trigger"} with input as asked with data.grants as routines
	}
}

test_both_lists_count if {
	both := json.patch(routines, [{
		"op": "add",
		"path": "/watch/tools/bell.ring/only",
		"value": {"/bell": ["small", "ref:/event/subject"]},
	}])
	grant.beyond == {"/bell"} with input as ringing("dawn", {"bell": "big", "times": 1}, {}) with data.grants as both
	grant.unlimited with input as ringing("dusk", {"bell": "b"}, {"/bell": "/event/subject"}) with data.grants as both
}
