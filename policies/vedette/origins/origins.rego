# Where the sinks' values come from. Content must not decide who, where or which.
package vedette.origins

complete if {
	data.sinks.complete == true
	is_array(input.action.sinks)
	is_object(input.action.origins)
	is_object(input.action.args)
}

# Policy's own list counts too: a tool cannot leave a sink undeclared.
sinks contains sink if some sink in input.action.sinks

sinks contains sink if some sink, _ in data.sinks.tools[input.action.tool]

trusted contains sink if {
	some sink in sinks
	input.action.origins[sink] == "trusted"
}

doubted := sinks - trusted

accepted contains sink if {
	some sink in doubted
	input.action.origins[sink] in data.sinks.tools[input.action.tool][sink].accepts
}

# What is left needs a closer look: optional arguments, and pointers into an argument.
unclear := doubted - accepted

argument := {sink: name |
	some sink in unclear
	is_string(sink)
	parts := split(sink, "/")
	parts[0] == ""
	name := parts[1]
	is_string(name)
}

# An optional argument that was not given decides nothing. None is named `*`: what is meant by a sink
# of that name, nobody looked at.
settled contains sink if {
	some sink, escaped in argument
	escaped != "*"
	name := replace(replace(escaped, "~1", "/"), "~0", "~")
	is_object(input.action.args)
	count({name} - object.keys(input.action.args)) == 1
}

declared contains sink if some sink in input.action.sinks

# The engine labels what a tool declares as a sink within an argument by the sink's own pointer. One
# without a label may not be there; that it is not has to be seen.
inner := {sink: parts |
	some sink, _ in argument
	is_string(sink)
	parts := split(sink, "/")
	count(parts) > 2
	count({sink} - declared) == 0
	is_object(input.action.origins)
	count({sink} - object.keys(input.action.origins)) == 1
}

# A member that its object does not have, and whatever would be in it.
settled contains sink if {
	some sink, parts in inner
	is_string(parts[1])
	is_string(parts[2])
	holder := input.action.args[replace(replace(parts[1], "~1", "/"), "~0", "~")]
	is_object(holder)
	parts[2] != "*"
	member := replace(replace(parts[2], "~1", "/"), "~0", "~")
	count({member} - object.keys(holder)) == 1
}

# The elements of a list that has none.
settled contains sink if {
	some sink, parts in inner
	is_string(parts[1])
	parts[2] == "*"
	holder := input.action.args[replace(replace(parts[1], "~1", "/"), "~0", "~")]
	is_array(holder)
	count(holder) == 0
}

# The engine labels each element of an argument; one that it does not name has that argument's
# origin, which is the worst of its elements.
origin := {sink: found |
	some sink, escaped in argument
	found := input.action.origins[concat("", ["/", escaped])]
	is_string(found)
}

settled contains sink if {
	some sink, found in origin
	found == "trusted"
}

settled contains sink if {
	some sink, found in origin
	found in data.sinks.tools[input.action.tool][sink].accepts
}

unsettled := unclear - settled

# Policy may let a person decide about the exact action instead.
for_person contains sink if {
	some sink in unsettled
	origin[sink] in {"registered", "derived", "untrusted"}
	data.sinks.tools[input.action.tool][sink].otherwise == "hold"
}

refused := unsettled - for_person

# Full reasons, for people: the origin and the sink it was meant for.
reasons contains reason if {
	some sink, found in origin
	sink in refused
	is_string(sink)
	is_string(found)
	reason := concat("", ["origins.", found, ":", sink])
	is_string(reason)
}

reasons contains reason if {
	some sink in refused
	is_string(sink)
	count({sink} - object.keys(origin)) == 1
	reason := concat(":", ["origins.unknown", sink])
	is_string(reason)
}

# A sink that is no text has no name to tell.
reasons contains "origins.unknown" if {
	some sink in refused
	type_name(sink) != "string"
}

reasons contains "origins.shape" if not complete

reasons contains "origins.shape" if not links_known

holds contains reason if {
	some sink, found in origin
	sink in for_person
	is_string(sink)
	is_string(found)
	reason := concat("", ["origins.", found, ":", sink])
	is_string(reason)
}

# What speaks against a sink, or asks a person: counted, so that a reason added counts too.
unopposed if count(reasons) == 0

unasked if count(holds) == 0

# Every sink is filled from where policy allows, and so is every link that counts.
proven if {
	complete
	links_settled
	unopposed
	unasked
	count(doubted) == 0
}

else if {
	complete
	links_settled
	unopposed
	unasked
	count(unclear) == 0
}

else if {
	complete
	links_settled
	unopposed
	unasked
	count(unsettled) == 0
}

# Enough to let a person decide.
holdable if proven

else if {
	complete
	links_holdable
	unopposed
	count(refused) == 0
}

# The proof. Last in the file, so that no part of a cut file proves anything.
ok if proven

else if {
	holdable
	data.vedette.approval.ok
}
