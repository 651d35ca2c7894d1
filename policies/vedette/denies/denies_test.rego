package vedette.denies_test

import data.vedette.denies

question := {"subject": {"agent": "watch"}, "action": {"tool": "bell.ring"}}

none := {"agents": [], "tools": [], "complete": true}

test_nothing_denied_is_proven if denies.ok with input as question with data.denies as none

test_tool_switched_off if {
	off := object.union(none, {"tools": ["bell.ring"]})
	denies.deny == {"denies.tool"} with input as question with data.denies as off
	not denies.ok with input as question with data.denies as off
}

test_agent_switched_off if {
	off := object.union(none, {"agents": ["watch"]})
	denies.deny == {"denies.agent"} with input as question with data.denies as off
	not denies.ok with input as question with data.denies as off
}

test_cut_data_proves_nothing if {
	not denies.ok with input as question with data.denies as {"agents": [], "tools": []}
}
