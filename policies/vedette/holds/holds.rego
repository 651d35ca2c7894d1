# What must wait for a person, or for the fleet to be resumed.
package vedette.holds

running if input.context.stopped == false

# The closest threshold that policy names for this agent and tool.
least := milli if {
	milli := data.limits.confidence_milli.agents[input.subject.agent].tools[input.action.tool]
	is_number(milli)
}

else := milli if {
	milli := data.limits.confidence_milli.agents[input.subject.agent]["default"]
	is_number(milli)
}

else := milli if {
	data.vedette.identity.known
	milli := data.limits.confidence_milli["default"]
	is_number(milli)
}

sure if {
	data.limits.complete == true
	confidence := input.context.confidence
	is_number(least)
	is_number(confidence)
	confidence >= least
	confidence <= 1000
}

low_impact if data.vedette.grant.impact == "low"

# Observe is decided in the gateway; here it counts as what it would be.
unasked if data.vedette.grant.mode in {"act", "observe"}

# No agent above it would need a person for it.
unasked_above if data.vedette.delegation.unasked

# Every argument has a value that the grant names, where it names some.
unlimited if data.vedette.grant.unlimited

# Reading a memory scope asks nobody and stops for nothing, unless a rule added here says so.
doing if not data.vedette.grant.reading

stops contains "stopped" if {
	doing
	not running
}

asks contains "mode.ask" if {
	doing
	not unasked
}

asks contains "delegation.ask" if {
	doing
	not unasked_above
}

asks contains "impact.high" if {
	doing
	not low_impact
}

asks contains "confidence.low" if {
	doing
	not sure
}

asks contains "grant.only" if {
	doing
	not unlimited
}

asks contains reason if {
	some argument in data.vedette.grant.beyond
	is_string(argument)
	reason := concat(":", ["grant.only", argument])
	is_string(reason)
}

asks contains reason if some reason in data.vedette.origins.holds

# The proof. It counts whatever asks and stops, so that a rule added to either set counts too; an
# approval answers what asks, never what stops. Last in the file, so that no part of a cut file
# proves anything.
ok if {
	data.vedette.grant.reading
	count(asks) == 0
	count(stops) == 0
}

else if {
	running
	unasked
	unasked_above
	low_impact
	sure
	unlimited
	data.vedette.origins.proven
	count(asks) == 0
	count(stops) == 0
}

else if {
	running
	data.vedette.approval.ok
	count(stops) == 0
}
