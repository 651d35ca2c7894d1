# What the agent was granted: this tool, for this verb on this type of resource, and in which mode.
package vedette.grant

granted := data.grants[input.subject.agent].tools[input.action.tool]

in_force := data.grants[input.subject.agent].mode

# Policy grants a mode and agent.yaml requests one: the more careful of the two. Silent: observe.
mode := "act" if {
	in_force == "act"
	input.subject.requested_mode == "act"
}

else := "ask" if {
	in_force in {"ask", "act"}
	input.subject.requested_mode in {"ask", "act"}
}

else := "observe"

active if mode in {"act", "ask"}

# Reading a memory scope has no effect outside, so modes, limits and holds do not speak of it. A
# declared tool of the same name never looks like this: its arguments have origins.
reading if {
	input.action.tool == "memory.read"
	input.action.verb == "read"
	input.resource.type == "memory"
	input.action.sinks == []
	input.action.origins == {}
	input.action.high_impact == false
	is_object(input.action.args)
	object.keys(input.action.args) == {"bank", "scope"}
	is_string(input.action.args.bank)
	is_string(input.action.args.scope)
	input.resource.id == concat("/", [input.action.args.bank, input.action.args.scope])
}

may_read if {
	reading
	input.resource.id in data.grants[input.subject.agent].memory
}

listed if is_object(granted)

verb if granted.verb == input.action.verb

resource if granted.resource == input.resource.type

bound if {
	is_string(input.action.digest)
	input.action.digest != ""
	is_string(input.action.declared)
	input.action.declared != ""
	is_string(input.resource.id)
}

# The more careful of what policy says and what the tool declares.
impact := "low" if {
	granted.impact == "low"
	input.action.high_impact == false
}

else := "high" if granted.impact in {"high", "low"}

impact_known if is_string(impact)

# A grant may be for some triggers only: `triggers: [weekly-report]`, or with what holds for each,
# `triggers: {rent: {/account: [landlord]}}`. Then no other run has it. Whatever is neither names none.
tied if {
	is_object(granted)
	type_name(granted.triggers) != ""
}

woken if {
	listed
	not tied
}

else if {
	is_array(granted.triggers)
	is_string(input.context.trigger)
	input.context.trigger != ""
	input.context.trigger in granted.triggers
}

else if {
	is_object(granted.triggers)
	is_object(granted.triggers[input.context.trigger])
}

# A grant may name the values that an argument may have, for all runs as `only: {/folder: [Invoices]}`
# or for those of a trigger. A value `ref:/event/subject` stands for whatever that reference draws.
# What lies beyond them is for a person (holds). Whatever is no such list of an argument's values
# allows none.
confined if {
	is_object(granted)
	type_name(granted.only) != ""
}

# A text that is spelled like a reference is none.
fits(argument, values) if {
	is_string(argument)
	is_array(values)
	parts := split(argument, "/")
	count(parts) == 2
	parts[0] == ""
	is_string(parts[1])
	name := replace(replace(parts[1], "~1", "/"), "~0", "~")
	value := input.action.args[name]
	value in values
	not_spelled(value)
}

fits(argument, values) if {
	is_string(argument)
	is_array(values)
	source := input.action.sources[argument]
	is_string(source)
	concat("", ["ref:", source]) in values
}

not_spelled(value) if type_name(value) != "string"

not_spelled(value) if {
	is_string(value)
	trim_prefix(value, "ref:/") == value
}

limited contains argument if {
	is_object(granted.only)
	some argument, _ in granted.only
}

within contains argument if {
	is_object(granted.only)
	some argument, values in granted.only
	fits(argument, values)
}

limited_here contains argument if {
	is_object(granted.triggers)
	is_object(granted.triggers[input.context.trigger])
	some argument, _ in granted.triggers[input.context.trigger]
}

within_here contains argument if {
	is_object(granted.triggers)
	is_object(granted.triggers[input.context.trigger])
	some argument, values in granted.triggers[input.context.trigger]
	fits(argument, values)
}

beyond := (limited - within) | (limited_here - within_here)

# A key that nobody reads may be a limit that somebody misspelt, so it proves no lack of one.
understood if {
	is_object(granted)
	object.remove(granted, {"verb", "resource", "impact", "only", "triggers"}) == {}
}

named if not confined

else if is_object(granted.only)

unlimited if {
	understood
	named
	count(beyond) == 0
}

# It counts whatever speaks against it, so that a reason added counts too.
tool_granted if {
	listed
	verb
	resource
	bound
	impact_known
	woken
	count(reasons) == 0
}

reasons contains "grant.memory" if {
	reading
	not may_read
}

unlisted if {
	not reading
	not listed
}

reasons contains "grant.tool" if unlisted

reasons contains "grant.verb" if {
	listed
	not verb
}

reasons contains "grant.resource" if {
	listed
	not resource
}

reasons contains "grant.unbound" if {
	listed
	not bound
}

reasons contains "grant.trigger" if {
	listed
	not woken
}

reasons contains "grant.impact" if {
	listed
	not impact_known
}

readable if {
	may_read
	count(reasons) == 0
}

# The proof but for the mode, so that observe can say what would be.
would_ok if tool_granted

else if readable

# The proof. Last in the file, so that no part of a cut file proves anything.
ok if {
	tool_granted
	active
}

else if readable
