# What an agent does for another is no more than each agent above it may do itself. The engine says
# who those are (the ancestors), what it found of each, and whether there is room left in the part of
# a budget that was set aside. A run that no agent asked for has no ancestors.
package vedette.delegation

asked if type_name(input.context.delegation) != ""

every_place contains place if {
	is_array(input.context.delegation.ancestors)
	some place, _ in input.context.delegation.ancestors
}

# The ancestors that are granted the same verb on the same type of resource, in a mode that acts. A
# grant for some triggers covers nothing: theirs is another run. Nor does one with a key that nobody
# reads, which may be a limit that somebody misspelt; nor any of an agent of another owner than it names.
covered contains place if {
	is_array(input.context.delegation.ancestors)
	some place, ancestor in input.context.delegation.ancestors
	is_object(data.grants[ancestor.agent])
	object.get(data.grants[ancestor.agent], "owner", ancestor.owner) == ancestor.owner
	data.grants[ancestor.agent].mode in {"ask", "act"}
	ancestor.requested_mode in {"ask", "act"}
	ancestor.cover in {"ask", "act"}
	some granted in data.grants[ancestor.agent].tools
	is_object(granted)
	granted.verb == input.action.verb
	granted.resource == input.resource.type
	granted.impact in {"low", "high"}
	object.remove(granted, {"verb", "resource", "impact", "only"}) == {}
}

# … and those that would need no person for it.
free contains place if {
	is_array(input.context.delegation.ancestors)
	some place, ancestor in input.context.delegation.ancestors
	data.grants[ancestor.agent].mode == "act"
	ancestor.requested_mode == "act"
	ancestor.cover == "act"
	some granted in data.grants[ancestor.agent].tools
	is_object(granted)
	granted.verb == input.action.verb
	granted.resource == input.resource.type
	granted.impact == "low"
	object.remove(granted, {"verb", "resource", "impact"}) == {}
}

# What a person need not be asked for an ancestor's sake.
unasked if {
	is_string(input.action.tool)
	not asked
}

else if {
	count(every_place) > 0
	count(free) == count(every_place)
}

roomy if input.context.delegation.room == true

within if {
	count(every_place) > 0
	count(covered) == count(every_place)
	roomy
}

reasons contains reason if {
	is_array(input.context.delegation.ancestors)
	some place in (every_place - covered)
	agent := input.context.delegation.ancestors[place].agent
	is_string(agent)
	reason := concat(":", ["delegation.cover", agent])
	is_string(reason)
}

reasons contains "delegation.budget" if {
	asked
	not roomy
}

reasons contains "delegation.unknown" if {
	asked
	count(every_place) == 0
}

# The proof. Last in the file, so that no part of a cut file proves anything.
ok if {
	is_string(input.action.tool)
	not asked
	count(reasons) == 0
}

else if {
	within
	count(reasons) == 0
}
