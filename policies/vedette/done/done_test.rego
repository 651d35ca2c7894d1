package vedette.done_test

import data.vedette.done

import data.vedette.testdata

replaced(path, value) := json.patch(testdata.question, [{"op": "add", "path": path, "value": value}])

finishing(conditions) := json.patch(replaced("/action/tool", "task.finish"), [{
	"op": "add",
	"path": "/context/task",
	"value": {"conditions": conditions, "person": false},
}])

condition(name, held) := {"name": name, "held": held, "why": "counted"}

test_another_action_is_no_matter_of_conditions if {
	done.ok with input as testdata.question
}

test_finish_with_all_conditions_held if {
	done.ok with input as finishing([condition("items", true), condition("sent", true)])
}

test_finish_with_one_unmet_is_denied_by_its_name if {
	asked := finishing([condition("items", true), condition("sent", false)])
	not done.ok with input as asked
	reasons := done.reasons with input as asked
	reasons == {"task.unmet:sent"}
}

test_finish_without_a_task_is_denied if {
	asked := replaced("/action/tool", "task.finish")
	not done.ok with input as asked
	reasons := done.reasons with input as asked
	reasons == {"task.unknown"}
}

test_finish_without_conditions_is_denied if {
	not done.ok with input as finishing([])
}

test_finish_that_a_person_answers_needs_no_other_condition if {
	done.ok with input as json.patch(finishing([]), [{"op": "add", "path": "/context/task/person", "value": true}])
}

test_person_answers_for_no_condition_but_their_own if {
	not done.ok with input as json.patch(finishing([condition("sent", false)]), [{"op": "add", "path": "/context/task/person", "value": true}])
}

test_condition_that_says_nothing_does_not_hold if {
	asked := finishing([{"name": "sent", "why": "nobody looked"}])
	not done.ok with input as asked
	reasons := done.reasons with input as asked
	reasons == {"task.unknown"}
}

test_what_the_engine_refuses_is_denied_by_its_rule if {
	asked := replaced("/context/refuses", "plan.no_trigger")
	not done.ok with input as asked
	reasons := done.reasons with input as asked
	reasons == {"plan.no_trigger"}
}

test_finish_that_is_met_and_refused_is_denied if {
	asked := json.patch(finishing([condition("items", true)]), [{
		"op": "add",
		"path": "/context/refuses",
		"value": "conditions.fixed",
	}])
	not done.ok with input as asked
}

test_nothing_refused_is_no_reason if {
	done.ok with input as replaced("/context/refuses", "")
}

test_question_without_an_action_is_denied if {
	not done.ok with input as {}
}

test_no_reason_against_it_is_no_proof if {
	not done.ok with input as finishing([{"name": "sent", "why": "nobody looked"}])
		with data.vedette.done.reasons as set()
}

test_added_reason_counts if {
	not done.ok with input as testdata.question
		with data.vedette.done.reasons as {"x"}
}
