# Who may read what goes out. A label names the permitted readers of an argument; what has no label is
# public. An action may carry labelled arguments only to those whom all of their labels name.
package vedette.secrecy

# The labels of this action's arguments.
labels contains readers if {
	is_object(input.action.readers)
	some readers in input.action.readers
}

known if {
	is_object(input.action.readers)
	is_object(input.action.args)
	is_array(input.action.sinks)
	data.sinks.complete == true
}

# A sink that only says which thing is meant receives nothing, where policy says so.
thing contains sink if {
	some sink in data.vedette.origins.sinks
	data.sinks.tools[input.action.tool][sink].receiver == false
}

receiving := data.vedette.origins.sinks - thing

# A sink that is an argument of its own, by the argument's name.
name := {sink: found |
	some sink in receiving
	is_string(sink)
	parts := split(sink, "/")
	count(parts) == 2
	parts[0] == ""
	is_string(parts[1])
	found := replace(replace(parts[1], "~1", "/"), "~0", "~")
	is_string(found)
}

# An optional argument that was not given receives nothing.
absent contains sink if {
	is_object(input.action.args)
	some sink, argument in name
	count({argument} - object.keys(input.action.args)) == 1
}

texts contains sink if {
	some sink, argument in name
	is_string(input.action.args[argument])
}

lists contains sink if {
	some sink, argument in name
	value := input.action.args[argument]
	is_array(value)
	odd := [item | some item in value; type_name(item) != "string"]
	count(odd) == 0
}

# Of what is neither it is not known who would receive it.
unknown := ((receiving - absent) - texts) - lists

receivers contains value if {
	some sink in texts
	value := input.action.args[name[sink]]
	is_string(value)
}

receivers contains value if {
	some sink in lists
	found := input.action.args[name[sink]]
	is_array(found)
	some value in found
	is_string(value)
}

# An address has one mark and nothing that a mail program reads as the end of it.
marks := [" ", "\t", "\n", "\r", ",", ";", ":", "<", ">", "(", ")", "[", "]", "\"", "'", "\\", "%", "!"]

# What in a label does not stand for itself.
words contains value if {
	some value in receivers
	is_string(value)
	startswith(value, "@")
}

words contains value if {
	some value in receivers
	is_string(value)
	startswith(value, "resource:")
}

words contains value if {
	some value in receivers
	is_string(value)
	startswith(value, "target:")
}

unsound contains value if {
	some value in receivers
	some mark in marks
	is_string(value)
	is_string(mark)
	contains(value, mark)
}

domain := {value: found |
	some value in (receivers - unsound)
	is_string(value)
	parts := split(value, "@")
	count(parts) == 2
	parts[0] != ""
	parts[1] != ""
	is_string(parts[1])
	found := concat("", ["@", parts[1]])
	is_string(found)
}

# The place itself may be a permitted reader: what stays there reaches nobody else.
place contains found if {
	is_string(input.resource.type)
	found := concat(":", ["resource", input.resource.type])
	is_string(found)
}

place contains found if {
	is_string(input.resource.id)
	found := concat(":", ["target", input.resource.id])
	is_string(found)
}

# The engine keeps the labels of its own rows.
kept if input.action.settles == "transactional"

# … and those of what one agent asks another: the task that it makes is as secret as they are.
kept if input.action.tool == "agent.ask"

# The labels that do not cover where this goes.
open contains readers if {
	some readers in labels
	type_name(readers) != "array"
}

open contains readers if {
	some readers in labels
	is_array(readers)
	inside := {one | some one in place; one in readers}
	count(inside) == 0
	named := {one | some one in (receivers - words); one in readers}
	belonging := {one | some one, found in domain; found in readers}
	count((receivers - named) - belonging) > 0
}

# With nobody named, it is not known whom it reaches.
open contains readers if {
	some readers in labels
	is_array(readers)
	inside := {one | some one in place; one in readers}
	count(inside) == 0
	count(receivers) == 0
}

open contains readers if {
	some readers in labels
	is_array(readers)
	inside := {one | some one in place; one in readers}
	count(inside) == 0
	count(unknown) > 0
}

reasons contains "secrecy.shape" if not known

reasons contains "secrecy.readers" if {
	known
	not covered
}

# No label is left whose readers do not name everybody whom this reaches.
covered if count(labels) == 0

else if kept

else if count(open) == 0

# The proof. It counts the reasons, so that one added counts too. Last in the file, so that no part of a cut file proves anything.
ok if {
	known
	covered
	count(reasons) == 0
}
