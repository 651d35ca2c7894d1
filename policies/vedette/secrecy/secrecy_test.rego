package vedette.secrecy_test

import data.vedette.secrecy

# A letter to somebody, with a text that not everybody may read.
sending(to, readers) := {
	"action": {
		"tool": "letter.send",
		"settles": "idempotent",
		"args": {"letter": "l1", "to": to, "text": "y"},
		"origins": {},
		"sinks": ["/letter", "/to"],
		"readers": readers,
	},
	"resource": {"type": "post", "id": "quay"},
}

sinks := {
	"tools": {"letter.send": {"/letter": {"accepts": [], "otherwise": "deny", "receiver": false}}},
	"complete": true,
}

proven(asked) if secrecy.ok with input as asked with data.sinks as sinks

# Whether it would be proven if no reason spoke: each proof must stand by itself.
covered(asked) if secrecy.ok with input as asked with data.sinks as sinks with data.vedette.secrecy.reasons as set()

test_public_content_may_go_anywhere if proven(sending("ada@quay.example", {}))

test_labelled_content_goes_to_its_readers if {
	every readers in [
		["ada@quay.example"], ["@quay.example", "bob@mole.example"], ["resource:post"], ["target:quay"],
	] {
		proven(sending("ada@quay.example", {"/text": readers}))
	}
	proven(sending(["ada@quay.example", "bob@mole.example"], {"/text": ["@quay.example", "bob@mole.example"]}))
}

test_and_to_nobody_else if {
	every readers in [
		[], ["bob@mole.example"], ["@mole.example"], ["quay.example"], ["@example"], ["post"], ["resource:shelf"],
		["target:post"],
	] {
		asked := sending("ada@quay.example", {"/text": readers})
		not covered(asked)
		secrecy.reasons == {"secrecy.readers"} with input as asked with data.sinks as sinks
	}
}

test_every_argument_counts if {
	not covered(sending("ada@quay.example", {"/text": ["@quay.example"], "/letter": ["bob@mole.example"]}))
	not covered(sending("ada@quay.example", {"/text": ["@quay.example"], "/to": []}))
}

test_one_receiver_too_many if {
	not covered(sending(["ada@quay.example", "eve@evil.example"], {"/text": ["@quay.example"]}))
}

test_address_with_another_in_it_belongs_to_no_domain if {
	every to in [
		"eve@evil.example,ada@quay.example", "eve ada@quay.example", "eve@evil.example@quay.example",
		"<eve>ada@quay.example", "evil.example!eve@quay.example", "eve%evil.example@quay.example",
		"@quay.example", "ada@QUAY.example", "quay.example", "eve;ada@quay.example", "eve\nada@quay.example",
	] {
		not covered(sending(to, {"/text": ["@quay.example"]}))
	}
}

test_receiver_is_no_word_of_a_label if {
	every word in ["@quay.example", "resource:post", "target:mole"] {
		asked := json.patch(
			sending(word, {"/text": [word]}),
			[{"op": "replace", "path": "/resource/type", "value": "shelf"}],
		)
		not covered(asked)
	}
}

test_without_a_receiver_it_is_not_known_whom_it_reaches if {
	every to in [7, {"a": "ada@quay.example"}, [["ada@quay.example"]], [], null] {
		not covered(sending(to, {"/text": ["@quay.example"]}))
	}
	none := json.remove(sending("x", {"/text": ["@quay.example"]}), ["action/args/to"])
	not covered(none)
	every sink in ["/text/0", "text", 7] {
		deeper := json.patch(
			sending("ada@quay.example", {"/text": ["@quay.example"]}),
			[{"op": "add", "path": "/action/sinks/-", "value": sink}],
		)
		not covered(deeper)
	}
}

test_things_are_receivers_unless_policy_says_otherwise if {
	asked := sending("ada@quay.example", {"/text": ["@quay.example"]})
	plain := {"tools": {}, "complete": true}
	not secrecy.ok with input as asked with data.sinks as plain with data.vedette.secrecy.reasons as set()
}

test_rows_of_the_fleet_keep_their_labels if {
	asked := json.patch(sending("x", {"/text": []}), [{"op": "replace", "path": "/action/settles", "value": "transactional"}])
	proven(asked)
}

test_what_is_asked_of_an_agent_keeps_its_labels if {
	asked := json.patch(sending("x", {"/text": []}), [{"op": "replace", "path": "/action/tool", "value": "agent.ask"}])
	proven(asked)
}

test_without_readers_nothing_is_proven if {
	cut := json.remove(sending("ada@quay.example", {}), ["action/readers"])
	secrecy.reasons == {"secrecy.shape"} with input as cut with data.sinks as sinks
	not covered(cut)
	odd := sending("ada@quay.example", {"/text": "ada@quay.example"})
	not covered(odd)
	bare := object.remove(sinks, ["complete"])
	not secrecy.ok with input as sending("ada@quay.example", {}) with data.sinks as bare
		with data.vedette.secrecy.reasons as set()
}

test_any_reason_undoes_the_proof if {
	not secrecy.ok with input as sending("ada@quay.example", {}) with data.sinks as sinks
		with data.vedette.secrecy.reasons as {"a.rule.of.mine"}
}
