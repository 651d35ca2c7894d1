# How far and how much: hops, actions of this run, actions in calendar windows.
package vedette.limits

whole if {
	data.limits.complete == true
	data.budgets.complete == true
}

reached if {
	hops := input.context.event.hops
	is_number(hops)
	hops >= 0
	hops <= data.limits.hops
	is_number(data.limits.hops)
}

# Counters hold what was permitted so far, so at a limit there is no room left. Zero in a budget
# means that agent.yaml asks for no limit of its own. What it asks for by hour and day, and what the
# fleet has (data.budgets), is kept by the store, which counts for all workers: here it is not.
in_run if {
	run := input.context.counters.run
	most := input.context.budget.run
	is_number(run)
	is_number(most)
	run >= 0
	run < most
}

else if input.context.budget.run == 0

allowed := most if {
	most := data.limits.actions.agents[input.subject.agent]
	is_object(most)
}

else := most if {
	data.vedette.identity.known
	most := data.limits.actions["default"]
	is_object(most)
}

counted if {
	now := input.now
	is_number(now)
	now >= 0
	now < 9007199254740992
	now % 1 == 0
	used := input.context.counters
	is_number(used.minute)
	is_number(used.hour)
	is_number(used.day)
	used.minute >= 0
	used.hour >= 0
	used.day >= 0
	most := allowed
	is_number(most.minute)
	is_number(most.hour)
	is_number(most.day)
	asked := input.context.budget
	is_number(asked.hour)
	is_number(asked.day)
	asked.hour >= 0
	asked.day >= 0
}

minute_free if input.context.counters.minute < allowed.minute

hour_free if input.context.counters.hour < allowed.hour

day_free if input.context.counters.day < allowed.day

# Enough to let time decide. It counts whatever speaks against it, so that a reason added counts too.
holdable if {
	whole
	reached
	in_run
	counted
	count(reasons) == 0
}

# The full windows, each with its length in microseconds.
full contains {"window": "limits.minute", "length": 60000000} if not minute_free

full contains {"window": "limits.hour", "length": 3600000000} if not hour_free

full contains {"window": "limits.day", "length": 86400000000} if not day_free

# The first instant at which every full window has begun anew.
until := max([end |
	some each in full
	is_number(input.now)
	end := (input.now - (input.now % each.length)) + each.length
	is_number(end)
]) if {
	holdable
	count(full) > 0
}

waits contains window if {
	doing
	holdable
	some each in full
	window := each.window
	is_string(window)
}

# Reading a memory scope has no limit, unless a rule added here says so.
doing if not data.vedette.grant.reading

reasons contains "limits.data" if {
	doing
	not whole
}

reasons contains "limits.hops" if {
	doing
	not reached
}

reasons contains "limits.run" if {
	doing
	not in_run
}

reasons contains "limits.unknown" if {
	doing
	not counted
}

# The proof. Last in the file, so that no part of a cut file proves anything.
ok if {
	data.vedette.grant.reading
	count(reasons) == 0
	count(waits) == 0
}

else if {
	holdable
	minute_free
	hour_free
	day_free
	count(waits) == 0
}
