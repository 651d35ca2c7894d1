package vedette.origins_test

import data.vedette.origins

link(at, origin) := {"at": at, "link": "https://quay.example/a", "host": "quay.example", "origin": origin}

linking(links) := {
	"now": 1000,
	"action": {
		"tool": "letter.send",
		"digest": "d1",
		"args": {"to": "x", "text": "y", "parts": ["a", "b"]},
		"origins": {"/to": "trusted", "/text": "untrusted", "/parts": "derived"},
		"sinks": ["/to"],
		"links": links,
	},
	"context": {"approvals": []},
}

watched(otherwise) := {
	"tools": {"letter.send": {
		"/text": {"accepts": ["registered"], "otherwise": otherwise},
		"/parts": {"accepts": [], "otherwise": otherwise},
	}},
	"complete": true,
}

test_known_links_are_proven if {
	every links in [[], [link("/text", "registered")], [link("/text", "trusted")], [link("/parts", "trusted")]] {
		origins.ok with input as linking(links) with data.sinks as plain with data.links as watched("deny")
	}
}

test_other_links_are_denied if {
	every origin in ["derived", "untrusted"] {
		asked := linking([link("/text", "registered"), link("/text", origin)])
		origins.reasons == {"origins.link:/text"} with input as asked with data.sinks as plain with data.links as watched("deny")
		not origins.ok with input as asked with data.sinks as plain with data.links as watched("deny")
			with data.vedette.origins.reasons as set()
			with data.vedette.origins.holds as set()
		not origins.holdable with input as asked with data.sinks as plain with data.links as watched("deny")
			with data.vedette.origins.reasons as set()
	}
}

test_links_in_an_element_are_those_of_its_text if {
	every at in ["/parts", "/parts/1", "/parts/1/href"] {
		asked := linking([link(at, "registered")])
		origins.reasons == {"origins.link:/parts"} with input as asked with data.sinks as plain with data.links as watched("deny")
	}
	origins.ok with input as linking([link("/parting", "derived")]) with data.sinks as plain with data.links as watched("deny")
}

test_policy_may_ask_a_person_about_a_link if {
	asked := linking([link("/text", "derived")])
	origins.holds == {"origins.link:/text"} with input as asked with data.sinks as plain with data.links as watched("hold")
	origins.holdable with input as asked with data.sinks as plain with data.links as watched("hold")
	not origins.ok with input as asked with data.sinks as plain with data.links as watched("hold")
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
}

test_links_of_other_texts_do_not_count if {
	origins.ok with input as linking([link("/to", "derived")]) with data.sinks as plain with data.links as watched("deny")
}

test_without_links_nothing_is_proven if {
	bare := json.remove(linking([]), ["action/links"])
	not origins.ok with input as bare with data.sinks as plain with data.links as watched("deny")
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	cut := object.remove(watched("deny"), ["complete"])
	not origins.ok with input as linking([]) with data.sinks as plain with data.links as cut
		with data.vedette.origins.reasons as set()
		with data.vedette.origins.holds as set()
	not origins.holdable with input as linking([]) with data.sinks as plain with data.links as cut
		with data.vedette.origins.reasons as set()
}

test_rules_that_are_no_object_prove_nothing if {
	every odd in ["deny", ["/text"], true, null] {
		broken := {"tools": {"letter.send": odd}, "complete": true}
		not origins.ok with input as linking([]) with data.sinks as plain with data.links as broken
			with data.vedette.origins.reasons as set()
			with data.vedette.origins.holds as set()
		not origins.holdable with input as linking([]) with data.sinks as plain with data.links as broken
			with data.vedette.origins.reasons as set()
	}
}

test_accepts_that_is_no_list_accepts_nothing if {
	every odd in ["registered", null, {"registered": true}] {
		broken := {"tools": {"letter.send": {"/text": {"accepts": odd, "otherwise": "deny"}}}, "complete": true}
		asked := linking([link("/text", "registered")])
		not origins.ok with input as asked with data.sinks as plain with data.links as broken
			with data.vedette.origins.reasons as set()
			with data.vedette.origins.holds as set()
	}
}
