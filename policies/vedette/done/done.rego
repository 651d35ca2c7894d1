# When a task may end. What ends it is an action like any other; the engine says of each done
# condition whether it holds, as far as it can find out. One that a person is to say holds the
# finish instead, whatever is here. What the engine itself refuses (conditions that are fixed, a plan
# that is not due) is denied by the name of its rule.
package vedette.done

finishing if input.action.tool == "task.finish"

held := [condition |
	is_array(input.context.task.conditions)
	some condition in input.context.task.conditions
	condition.held == true
]

# Each of them was found to hold, and there are some, or a person is asked.
met if {
	is_array(input.context.task.conditions)
	count(input.context.task.conditions) > 0
	count(held) == count(input.context.task.conditions)
}

met if {
	input.context.task.person == true
	is_array(input.context.task.conditions)
	count(held) == count(input.context.task.conditions)
}

unmet contains name if {
	is_array(input.context.task.conditions)
	some condition in input.context.task.conditions
	condition.held == false
	name := condition.name
	is_string(name)
}

reasons contains reason if {
	finishing
	some name in unmet
	is_string(name)
	reason := concat(":", ["task.unmet", name])
	is_string(reason)
}

reasons contains "task.unknown" if {
	finishing
	not met
	count(unmet) == 0
}

reasons contains rule if {
	rule := input.context.refuses
	is_string(rule)
	rule != ""
}

# The proof. Last in the file, so that no part of a cut file proves anything.
ok if {
	is_string(input.action.tool)
	not finishing
	count(reasons) == 0
}

else if {
	finishing
	met
	count(reasons) == 0
}
