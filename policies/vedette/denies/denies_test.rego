package vedette.denies_test

import data.vedette.denies
import data.vedette.testdata

# Denies that were added to the package only add to what is found here: a test asks whether a deny
# is among them, and leaves them out where there must be none.

test_nothing_denied_is_proven if {
	denies.ok with input as testdata.question with data.denies as testdata.denies
		with data.vedette.denies.deny as set()
}

test_any_deny_undoes_the_proof if {
	not denies.ok with input as testdata.question with data.denies as testdata.denies
		with data.vedette.denies.deny as {"denies.of_yours"}
}

test_tool_switched_off if {
	"denies.tool" in denies.deny with input as testdata.question with data.denies.agents as []
		with data.denies.tools as ["letter.file"]
	not denies.ok with input as testdata.question with data.denies.agents as []
		with data.denies.tools as ["letter.file"]
}

test_agent_switched_off if {
	"denies.agent" in denies.deny with input as testdata.question with data.denies.agents as ["clerk"]
		with data.denies.tools as []
	not denies.ok with input as testdata.question with data.denies.agents as ["clerk"]
		with data.denies.tools as []
}

test_others_are_not_switched_off if {
	names := {"denies.agent", "denies.tool"}
	found := denies.deny with input as testdata.question with data.denies.agents as ["other"]
		with data.denies.tools as ["letter.send"]
	count(found & names) == 0
}

test_cut_data_proves_nothing if {
	every cut in [
		{"agents": [], "tools": []},
		{"agents": [], "complete": true},
		{"tools": [], "complete": true},
		{"agents": "", "tools": [], "complete": true},
		{"agents": [], "tools": "", "complete": true},
		{"agents": [], "tools": [], "complete": "true"},
	] {
		not denies.ok with input as testdata.question with data.denies as cut
			with data.vedette.denies.deny as set()
	}
}
