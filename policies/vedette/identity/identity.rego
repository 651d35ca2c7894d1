# Who asks: a question of the known shape, from an agent that policy knows, under its own identity.
package vedette.identity

known if is_object(data.grants[input.subject.agent])

# spiffe://FLEET/agent/NAME, and NAME is the agent itself.
own_identity if {
	is_string(input.subject.id)
	parts := split(input.subject.id, "/")
	parts == ["spiffe:", "", parts[2], "agent", input.subject.agent]
	parts[2] != ""
}

released if {
	is_string(input.subject.release)
	input.subject.release != ""
}

owner_required if is_string(data.grants[input.subject.agent].owner)

owned if input.subject.owner == data.grants[input.subject.agent].owner

else if {
	known
	not owner_required
	is_string(input.subject.owner)
}

asked_properly if {
	input.schema == "vedette.question/2"
	now := input.now
	is_number(now)
	now > 0
	is_array(input.context.approvals)
}

reasons contains "identity.schema" if not asked_properly

reasons contains "identity.agent" if not known

reasons contains "identity.spiffe" if not own_identity

reasons contains "identity.release" if not released

reasons contains "identity.owner" if {
	known
	not owned
}

# The proof. It counts the reasons, so that one added counts too. Last in the file, so that no part of a cut file proves anything.
ok if {
	asked_properly
	known
	own_identity
	released
	owned
	count(reasons) == 0
}
