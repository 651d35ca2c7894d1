# Links in texts. A text is no sink, but a link in it decides where its reader goes: where policy
# lists the text, each link is judged as a sink would be.
package vedette.origins

links_known if {
	is_array(input.action.links)
	data.links.complete == true
	is_object(data.links.tools)
}

# The origins of the links in each text that is listed, and in all below it.
link_origins := {place: found |
	some place, _ in data.links.tools[input.action.tool]
	found := {given |
		some link in input.action.links
		startswith(concat("", [link.at, "/"]), concat("", [place, "/"]))
		given := link.origin
		is_string(given)
	}
}

links_unsettled contains place if {
	some place, found in link_origins
	taken := {given | some given in found; given in data.links.tools[input.action.tool][place].accepts}
	count((found - taken) - {"trusted"}) > 0
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
	count(links_unsettled) == 0
}

links_holdable if {
	links_known
	count(links_refused) == 0
}
