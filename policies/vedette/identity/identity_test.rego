package vedette.identity_test

import data.vedette.identity

question := {
	"schema": "vedette.question/2",
	"now": 1795257600000000,
	"subject": {
		"id": "spiffe://harbour/agent/watch",
		"agent": "watch",
		"release": "r1",
		"owner": "watch@harbour.example",
		"requested_mode": "act",
	},
	"context": {"approvals": []},
}

grants := {"watch": {"mode": "act", "tools": {}, "memory": []}}

test_known_agent_is_proven if identity.ok with input as question with data.grants as grants

test_unknown_agent_is_not if {
	identity.reasons == {"identity.agent"} with input as question with data.grants as {"other": {}}
}

test_identity_of_another_is_not if {
	borrowed := json.patch(question, [{
		"op": "replace", "path": "/subject/id",
		"value": "spiffe://harbour/agent/other",
	}])
	identity.reasons == {"identity.spiffe"} with input as borrowed with data.grants as grants
}

test_deeper_path_is_not_the_agent if {
	deeper := json.patch(question, [{
		"op": "replace", "path": "/subject/id",
		"value": "spiffe://harbour/x/agent/watch",
	}])
	identity.reasons == {"identity.spiffe"} with input as deeper with data.grants as grants
}

test_release_is_required if {
	bare := json.patch(question, [{"op": "replace", "path": "/subject/release", "value": ""}])
	identity.reasons == {"identity.release"} with input as bare with data.grants as grants
}

test_owner_must_be_the_granted_one if {
	owned := {"watch": {"owner": "someone@else.example"}}
	identity.reasons == {"identity.owner"} with input as question with data.grants as owned
}

test_granted_owner_is_proven if {
	owned := {"watch": {"owner": "watch@harbour.example"}}
	identity.ok with input as question with data.grants as owned
}

test_other_schema_is_not if {
	every schema in ["vedette.question/1", "vedette.question/3"] {
		other := json.patch(question, [{"op": "replace", "path": "/schema", "value": schema}])
		identity.reasons == {"identity.schema"} with input as other with data.grants as grants
	}
}

test_approvals_of_another_shape_are_not if {
	odd := json.patch(question, [{"op": "replace", "path": "/context/approvals", "value": "all"}])
	identity.reasons == {"identity.schema"} with input as odd with data.grants as grants
}

test_empty_question_is_not if {
	found := identity.reasons with input as {} with data.grants as grants
	found == {"identity.agent", "identity.release", "identity.schema", "identity.spiffe"}
}

# Without the reasons: each part must stand by itself.
test_every_part_is_needed if {
	every part in [
		["/schema", "vedette.question/0"],
		["/now", 0],
		["/now", "1795257600000000"],
		["/context/approvals", {"0": "all"}],
		["/subject/id", "spiffe://harbour/agent/watch/agent/watch"],
		["/subject/id", "https://harbour/agent/watch"],
		["/subject/id", "spiffe:/x/harbour/agent/watch"],
		["/subject/id", "spiffe:/harbour/x/agent/watch"],
		["/subject/id", "spiffe:///agent/watch"],
		["/subject/id", "spiffe://harbour/person/watch"],
		["/subject/agent", "other"],
		["/subject/release", ""],
		["/subject/release", 1],
		["/subject/owner", 1],
	] {
		broken := json.patch(question, [{"op": "replace", "path": part[0], "value": part[1]}])
		not identity.ok with input as broken with data.grants as grants with data.vedette.identity.reasons as set()
	}
	not identity.ok with input as question with data.grants as {"watch": {"owner": "someone@else.example"}}
		with data.vedette.identity.reasons as set()
	not identity.ok with input as question with data.grants as {"watch": true} with data.vedette.identity.reasons as set()
	not identity.ok with input as question with data.grants as {} with data.vedette.identity.reasons as set()
}

test_any_reason_undoes_the_proof if {
	not identity.ok with input as question with data.grants as grants
		with data.vedette.identity.reasons as {"a.rule.of.mine"}
}
