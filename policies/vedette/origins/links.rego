# Links in texts. A text is no sink, but a link in it decides where its reader goes: where policy
# lists the text, each link is judged as a sink would be.
package vedette.origins

links_known if {
	is_array(input.action.links)
	data.links.complete == true
	is_object(data.links.tools)
}

# What is listed of a tool must be texts with their rules.
links_odd if type_name(data.links.tools[input.action.tool]) != "object"

links_unsettled contains place if {
	is_object(data.links.tools[input.action.tool])
	is_array(input.action.links)
	some place, says in data.links.tools[input.action.tool]
	some link in input.action.links
	is_string(place)
	is_string(link.at)
	startswith(concat("", [link.at, "/"]), concat("", [place, "/"]))
	link.origin != "trusted"
	taken := {one | is_array(says.accepts); some one in says.accepts; one == link.origin}
	count(taken) == 0
}

# Policy may let a person decide about the exact action instead.
links_for_person contains place if {
	some place in links_unsettled
	data.links.tools[input.action.tool][place].otherwise == "hold"
}

links_refused := links_unsettled - links_for_person

reasons contains reason if {
	some place in links_refused
	is_string(place)
	reason := concat(":", ["origins.link", place])
	is_string(reason)
}

holds contains reason if {
	some place in links_for_person
	is_string(place)
	reason := concat(":", ["origins.link", place])
	is_string(reason)
}

# All of this last, so that a cut file has no settled links.
links_settled if {
	links_known
	not links_odd
	count(links_unsettled) == 0
}

links_holdable if {
	links_known
	not links_odd
	count(links_refused) == 0
}
